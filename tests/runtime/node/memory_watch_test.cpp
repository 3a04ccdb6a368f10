// Which process is ended when a node is short of memory.
#include "runtime/node/memory_watch.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <future>
#include <thread>

#include "runtime/node/memory_look.hpp"
#include "runtime/node/process_memory.hpp"
#include "tests/runtime/node/machine_fixture.hpp"

using namespace troupe;
using namespace troupe::node;

using namespace std::chrono_literals;
using F = Fixture;

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// Of 256 MiB, on a machine that has enough.
const NodeMemory kNode{256 * kMiB, 16'384 * kMiB, 8'192 * kMiB};

/// The worker of an isolated actor that asked for 64 MiB.
ProcessId start_limited(F& f, ActorId actor) {
  auto spec = F::spec(true);
  spec.demand.other.amounts = {{"memory", 64 * kMiB}};
  return F::find<StartWorker>(f.head(cluster::StartActor{F::kNode, actor, spec, ""}))->process;
}
/// Of the two that there are: this one has so much, the other one 300 MiB.
std::vector<MemoryClaim> claims_of_two(F& f, ProcessId one, std::int64_t mib) {
  auto claims = f.machine.memory_claims();
  REQUIRE(claims.size() == 2);
  for (MemoryClaim& claim : claims) claim.use.has = (claim.process == one ? mib : 300) * kMiB;
  return claims;
}

}  // namespace

TEST_CASE("Of those that have more than they asked for the one with most above it is ended, and says why") {
  const std::vector<MemoryUse> uses{
      {"modest", 100 * kMiB, 90 * kMiB}, {"over", 64 * kMiB, 100 * kMiB}, {"worse", 32 * kMiB, 80 * kMiB}};
  const auto end = process_to_end(kNode, uses);
  REQUIRE(end);
  CHECK(end->which == 2);
  CHECK(end->reason ==
        "worse had 80 MiB of memory and had asked for 32 MiB, and its node is short of memory: its processes "
        "have "
        "270 MiB of the 256 MiB that it offers");
}

TEST_CASE("Nobody is ended who keeps to what it asked for, who asked for nothing, or without need") {
  CHECK_FALSE(process_to_end(kNode, {{"modest", 200 * kMiB, 200 * kMiB}, {"asked for none", 0, 900 * kMiB}}));
  CHECK_FALSE(process_to_end(kNode, {{"over", 64 * kMiB, 200 * kMiB}}));
  CHECK_FALSE(process_to_end({}, {{"over", 64 * kMiB, 200 * kMiB}}));  // nothing is known of the node
  CHECK_FALSE(any_is_over({{"modest", 1, 1}, {"asked for none", 0, 5}}));
  CHECK(any_is_over({{"over", 1, 2}}));
  // What was chosen before is still there: its memory comes back in a moment.
  CHECK_FALSE(
      process_to_end(kNode, {{"over", 64 * kMiB, 200 * kMiB}, {"ends", 32 * kMiB, 300 * kMiB, true}}));
}

// Was: "had 1 GiB of memory and had asked for 1 GiB, ... its processes have 1 GiB of the 1 GiB".
TEST_CASE("figures of memory that differ are told apart") {
  const auto end =
      process_to_end({64 * kMiB, 16'384 * kMiB, 8'192 * kMiB}, {{"over", 64 * kMiB, 64 * kMiB + 4096}});
  REQUIRE(end);
  CHECK(
      end->reason ==
      "over had 67112960 bytes of memory and had asked for 67108864 bytes, and its node is short of memory: "
      "its processes have 67112960 bytes of the 67108864 bytes that it offers");
}

// Was: a program of 100 MiB with three forks that shared them had 400 MiB, and was killed on an idle node.
TEST_CASE(
    "What processes share after a fork is no shortage: together they have what the machine has in use") {
  const NodeMemory idle{256 * kMiB, 16'384 * kMiB, 16'184 * kMiB};  // 200 MiB are in use
  CHECK_FALSE(process_to_end(idle, {{"forks", 64 * kMiB, 400 * kMiB}}));
  NodeMemory swaps = idle;
  swaps.swapped = 100 * kMiB;
  const auto end = process_to_end(swaps, {{"over", 64 * kMiB, 400 * kMiB}});
  REQUIRE(end);
  CHECK(end->reason.find("its processes have 300 MiB of the 256 MiB that it offers") != std::string::npos);
}

TEST_CASE("A machine that has not a twentieth of its memory left is short, whatever the node offers") {
  const NodeMemory full{0, 1'000 * kMiB, 49 * kMiB};
  const auto end = process_to_end(full, {{"over", 64 * kMiB, 65 * kMiB}});
  REQUIRE(end);
  CHECK(end->reason.find("its machine has 49 MiB of 1000 MiB left") != std::string::npos);
  CHECK_FALSE(process_to_end({0, 1'000 * kMiB, 50 * kMiB}, {{"over", 64 * kMiB, 65 * kMiB}}));
}

TEST_CASE("A node offers what it is told, or a share of what it may use") {
  CHECK(memory_to_offer(5, 100, 1) == 5);
  CHECK(memory_to_offer(0, 100, 1) == 0);
  CHECK(memory_to_offer(-1, 1000 * kMiB, 1) == 700 * kMiB);
  CHECK(memory_to_offer(-1, 1000 * kMiB, 2) == 350 * kMiB);
  CHECK(memory_to_offer(-1, std::nullopt, 1) == 0);
  CHECK(memory_to_offer(-1, std::uint64_t{1} << 63, 1) > 0);
}

TEST_CASE("A worker that has more than its actor asked for is killed with the reason, and once") {
  F f;
  const ProcessId worker = start_limited(f, ActorId{1});
  f.said(worker, wire::Hello{}, 1);
  f.said(worker, wire::ActorUp{{1}});
  auto claims = f.machine.memory_claims();
  REQUIRE(claims.size() == 1);
  CHECK(claims[0].process == worker);
  CHECK(claims[0].use.asked == 64 * kMiB);
  claims[0].use.has = 300 * kMiB;
  const auto killed = f.on(MemoryMeasured{kNode, claims});
  REQUIRE(F::find<KillProcess>(killed) != nullptr);
  CHECK(f.machine.memory_claims().at(0).use.is_ending);
  CHECK(F::find<KillProcess>(f.on(MemoryMeasured{kNode, f.machine.memory_claims()})) == nullptr);
  const auto told = f.on(ProcessEnding{worker, "killed by signal 9 (SIGKILL)"});
  const auto* down = F::told<cluster::ActorDown>(told);
  REQUIRE(down != nullptr);
  CHECK(down->reason.find("had 300 MiB of memory and had asked for 64 MiB") != std::string::npos);
  CHECK_FALSE(down->on_purpose);
}

// Was: memory of one that was killed for another reason counted, and another one was killed for it.
TEST_CASE("Nobody is ended for memory while a worker dies that had some") {
  F f;
  const ProcessId dies = start_limited(f, ActorId{1});
  start_limited(f, ActorId{2});
  f.said(dies, wire::Hello{}, 1);
  f.said(dies, wire::ActorUp{{1}});
  f.head(cluster::KillActor{F::kNode, {1}, "its owner wants it gone"});
  const auto claims = claims_of_two(f, dies, 200);
  CHECK(F::find<KillProcess>(f.on(MemoryMeasured{kNode, claims})) == nullptr);
}

TEST_CASE("A process's anonymous memory is read, without what it shares, and so is its group's") {
  const std::int64_t before = anonymous_bytes(::getpid());
  REQUIRE(before > 0);
  constexpr std::size_t kBytes = 64 << 20;
  const auto map = [&](int kind) {
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    std::memset(memory, 1, kBytes);
    return memory;
  };
  void* shared = map(MAP_SHARED);
  CHECK(anonymous_bytes(::getpid()) - before < 32 * kMiB);
  void* own = map(MAP_PRIVATE);
  CHECK(anonymous_bytes(::getpid()) - before > 48 * kMiB);
  const pid_t group = ::getpgrp();
  const auto members = processes_of_groups({group}).at(group);
  CHECK(std::find(members.begin(), members.end(), ::getpid()) != members.end());
  CHECK(share_of_anonymous_bytes(::getpid()) > 48 * kMiB);
  ::munmap(shared, kBytes);
  ::munmap(own, kBytes);
  CHECK(anonymous_bytes(-1) == 0);
  CHECK(share_of_anonymous_bytes(-1) == 0);
}

// Was: a program whose forks shared its pages had them once for each, and was killed for them.
TEST_CASE("What a program shares with its forks is counted once, and one that has more is found") {
  constexpr std::size_t kBytes = 96 << 20;
  void* own = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(own != MAP_FAILED);
  std::memset(own, 1, kBytes);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::vector<pid_t> forks;
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::setpgid(0, i == 0 ? 0 : forks[0]);
      ::close(ends[1]);
      char byte = 0;
      [[maybe_unused]] const auto read = ::read(ends[0], &byte, 1);  // until the test is over, or gone
      ::_exit(0);
    }
    ::setpgid(child, i == 0 ? child : forks[0]);
    forks.push_back(child);
  }
  const pid_t group = forks[0];
  CHECK(processes_of_groups({group}).at(group).size() == 3);
  const auto claim = [&](std::int64_t asked) {
    return std::vector<MemoryClaim>{{{}, "job-1", 1, {"job job-1", asked}, group}};
  };
  StuckProcesses none;
  CHECK_FALSE(
      look_at_memory(0, claim(160 * kMiB), none));  // three times 72 of 96, since this one has a quarter
  const auto found = look_at_memory(0, claim(8 * kMiB), none);
  REQUIRE(found);
  CHECK(found->claims.at(0).use.has > 8 * kMiB);
  CHECK(found->claims.at(0).use.has < 160 * kMiB);
  ::close(ends[1]);
  for (const pid_t child : forks) ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::munmap(own, kBytes);
}

// A look takes its time: what was killed meanwhile gives its memory back.
TEST_CASE("Nobody is ended by a look that is older than another one's end") {
  F f;
  const ProcessId dies = start_limited(f, ActorId{1});
  start_limited(f, ActorId{2});
  f.said(dies, wire::Hello{}, 1);
  f.said(dies, wire::ActorUp{{1}});
  const auto claims = claims_of_two(f, dies, 200);
  f.head(cluster::KillActor{F::kNode, {1}, "its owner wants it gone"});
  CHECK(F::find<KillProcess>(f.on(MemoryMeasured{kNode, claims})) == nullptr);
}

// Was: a look in whose time anything ended counted for nothing, and where workers come and go none counted.
TEST_CASE("What has ended since a look gives its memory back, and the others are looked at") {
  F f;
  const ProcessId ends = start_limited(f, ActorId{1}), over = start_limited(f, ActorId{2});
  const auto claims = claims_of_two(f, ends, 400);
  f.on(ProcessEnded{ends, "exit code 0"});
  REQUIRE(f.machine.memory_claims().size() == 1);
  const NodeMemory full{0, 1'000 * kMiB, 10 * kMiB};
  CHECK(F::find<KillProcess>(f.on(MemoryMeasured{full, claims})) == nullptr);  // it has 410 MiB by now
  const auto killed = f.on(MemoryMeasured{kNode, claims});
  REQUIRE(F::find<KillProcess>(killed) != nullptr);
  CHECK(F::find<KillProcess>(killed)->process == over);
}

// Was: one process that held the lock of its memory kept all others of its node from being found.
TEST_CASE("A look goes past a process that an earlier one still waits for, and finds others") {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const std::vector<MemoryClaim> claims{{{1}, {}, 0, {"stuck", 1}, child},
                                        {{2}, {}, 0, {"over", 1}, ::getpid()}};
  std::promise<void> stuck;
  std::promise<void> begun;
  const auto share = [&, until = stuck.get_future().share()](pid_t process) -> std::int64_t {
    if (process == child) {
      begun.set_value();
      until.wait_for(120s);
    }
    return 50 * kMiB;
  };
  StuckProcesses all;
  std::thread first([&] { look_at_memory(0, claims, all, share); });
  begun.get_future().wait();
  const auto found = look_at_memory(0, claims, all, share);
  REQUIRE(found);
  CHECK(found->claims.at(0).use.has == 1);  // of it no kill would give anything back
  CHECK(found->claims.at(1).use.has == 50 * kMiB);
  stuck.set_value();
  first.join();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}
