// GPUs dealt to real processes, on nodes that pretend to have them.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "scheduler/init/init.hpp"
#include "tests/e2e/support.hpp"

namespace gpus_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

struct Gpu {
  /// What CUDA would find in this process.
  std::string visible() {
    const char* devices = std::getenv("CUDA_VISIBLE_DEVICES");
    return devices == nullptr ? "all" : devices;
  }
  int pid() { return ::getpid(); }
};

/// An embedded cluster of nodes that each believe to have so many GPUs. Whoever ran this test may see others.
DriverSession cluster_with(int gpus, InitOptions options = {}) {
  ::setenv("TROUPE_PRETEND_GPUS", std::to_string(gpus).c_str(), 1);
  ::setenv("CUDA_VISIBLE_DEVICES", "17", 1);
  auto session = init(0, nullptr, options);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ::unsetenv("TROUPE_PRETEND_GPUS");
  return session;
}

std::string seen_by(const ActorHandle<Gpu>& actor) {
  return actor.call<&Gpu::visible>().get(20s);
}

}  // namespace

TEST_CASE("an actor sees the GPUs that it holds and no others", "[gpus]") {
  auto session = cluster_with(4);
  const auto two = session.spawn<Gpu>({.num_gpus = 2, .isolated = true});
  CHECK(seen_by(two) == "0,1");
  const auto half = session.spawn<Gpu>({.num_gpus = 0.5, .isolated = true});
  const auto other_half = session.spawn<Gpu>({.num_gpus = 0.5, .isolated = true});
  CHECK(seen_by(half) == "2");
  CHECK(seen_by(other_half) == "2");
  CHECK(seen_by(session.spawn<Gpu>({.num_gpus = 1, .isolated = true})) == "3");
  CHECK(seen_by(session.spawn<Gpu>({.isolated = true})).empty());
  CHECK(seen_by(session.spawn<Gpu>()).empty());
  CHECK(session.nodes().front().gpus == std::vector<std::string>{"0", "1", "2", "3"});
}

TEST_CASE("who finds no GPU free waits, hears why, and gets the GPU of one that died", "[gpus]") {
  auto session = cluster_with(2);
  const auto first = session.spawn<Gpu>({.num_gpus = 1, .isolated = true});
  const auto second = session.spawn<Gpu>({.num_gpus = 1, .isolated = true});
  const auto third = session.spawn_async<Gpu>({.num_gpus = 1, .isolated = true});
  REQUIRE(eventually([&] { return !third.waits_for().empty(); }));
  CHECK(third.waits_for() == "no node has 1 GPU free: 0 has 0 of 2 GPUs");
  CHECK_FALSE(third.ready());
  ::kill(second.call<&Gpu::pid>().get(20s), SIGKILL);
  CHECK(seen_by(third.get(30s)) == "1");
  CHECK(seen_by(first) == "0");
}

TEST_CASE("more GPUs than any node has are refused, and so is a node that is to have more than there are",
          "[gpus]") {
  {
    auto session = cluster_with(2, {.nodes = 2, .gpus_per_node = 1});
    CHECK(message_of<Refused>([&] {
            session.spawn<Gpu>({.num_gpus = 2, .isolated = true});
          }).find("no node has 2 GPUs at all: the most GPUs of one are 1") != std::string::npos);
    std::set<NodeId> nodes;
    for (int i = 0; i < 2; ++i)
      nodes.insert(session.spawn<Gpu>({.num_gpus = 1, .isolated = true}).address().node);
    CHECK(nodes.size() == 2);
  }
  CHECK(message_of([] {
          cluster_with(2, {.gpus_per_node = 3});
        }).find("it is to have 3 GPUs, and there are 2 for it") != std::string::npos);
}

}  // namespace gpus_test
