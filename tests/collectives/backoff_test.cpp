/// How a rank waits (collectives/native/backoff.hpp), and which cores a group has.

#include "collectives/native/backoff.hpp"

#include <sched.h>

#include <catch2/catch.hpp>
#include <thread>

#include "collectives/native/region.hpp"

using namespace troupe;
using namespace troupe::collectives;

namespace {

using Turn = Backoff::Turn;

/// Turns of one wait until it sleeps. With `looks`, how often it asked who is on this core.
unsigned turns_until_sleep(bool crowded, Backoff::Credit& credit, unsigned* looks = nullptr) {
  Backoff backoff(crowded, &credit);
  unsigned turns = 0;
  const auto beside = [&] {
    if (looks != nullptr) ++*looks;
    return false;
  };
  while (backoff.next(beside) != Turn::kSleep) ++turns;
  return turns;
}

void wait_shortly(Backoff::Credit& credit) {
  Backoff backoff(false, &credit);
  CHECK(backoff.next([] { return false; }) == Turn::kAgain);
}

constexpr unsigned kLong = 100'000;  // pauses: more than there are yields in the 2 ms before it sleeps

}  // namespace

TEST_CASE("who waited shortly has credit: it does not yield when a wait is longer") {
  // On a loaded machine a rank that yielded got its core back after 3 ms, and by then the other had yielded:
  // an all_reduce of 64 KiB took 4 ms as a rule, and 0.01 ms now.
  Backoff::Credit credit;
  unsigned looks = 0;
  CHECK(turns_until_sleep(false, credit, &looks) > kLong);
  CHECK(looks > 1000);
  for (unsigned i = 1; i < Backoff::Credit::kMost; ++i) {
    CHECK(credit.waits == Backoff::Credit::kMost - i);
    Backoff long_wait(false, &credit);
    for (int turn = 0; turn < 1000; ++turn) long_wait.next([] { return false; });
  }
  CHECK(credit.waits == 0);
  CHECK(turns_until_sleep(false, credit) < kLong);
  wait_shortly(credit);
  CHECK(turns_until_sleep(false, credit) > kLong);
  // With more ranks than cores nobody spins.
  looks = 0;
  CHECK(turns_until_sleep(true, credit, &looks) < kLong);
  CHECK(looks == 0);
}

TEST_CASE("the cores of a group are those that its ranks may run on together") {
  // Ranks that mpirun or taskset bound to a core each took themselves for more than there are cores, and
  // yielded.
  const Geometry geometry{.world_size = 2, .local_ranks = {0, 1}, .data_bytes = 0};
  const auto memory =
      std::make_shared<SharedMemory>(SharedMemory::create("cores", region_bytes(geometry), false).value());
  const auto region = Region::attach(memory, geometry, {1, 1}).value();
  cpu_set_t all;
  REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
  std::size_t cores = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &all)) continue;
    ++cores;
    std::thread([&] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      if (::sched_setaffinity(0, sizeof one, &one) != 0) return;
      region.add_cores();
      region.add_cores();
    }).join();
    CHECK(region.cores() == cores);
  }
}
