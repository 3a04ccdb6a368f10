#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/scheduler/cluster/scale_run.hpp"
#include "tests/scheduler/cluster/turns_run.hpp"

using namespace troupe;
using namespace troupe::cluster;
using troupe::test::ScaleCounts;
using troupe::test::ScaleRun;
using troupe::test::TurnsRun;

namespace {

void print(std::uint64_t nodes, const std::array<ScaleCounts, ScaleRun::kPhases>& phases) {
  for (int i = 0; i < ScaleRun::kPhases; ++i) {
    const ScaleCounts& c = phases[static_cast<std::size_t>(i)];
    std::printf(
        "%6llu nodes, %-18s %8llu events %8llu messages %10llu bytes %6llu syncs %8llu records %7llu "
        "placed\n",
        static_cast<unsigned long long>(nodes), ScaleRun::kNames[static_cast<std::size_t>(i)],
        static_cast<unsigned long long>(c.events), static_cast<unsigned long long>(c.messages),
        static_cast<unsigned long long>(c.bytes), static_cast<unsigned long long>(c.batches),
        static_cast<unsigned long long>(c.changes), static_cast<unsigned long long>(c.placed));
  }
}

}  // namespace

// A join sent all nodes to all nodes, encoded once each; every actor's end went everywhere; every event was a
// sync.
TEST_CASE("what the head says, writes and decides is linear in the nodes") {
  ScaleRun small(1000);
  ScaleRun large(10'000);
  const auto few = small.run();
  const auto many = large.run();
  print(1000, few);
  print(10'000, many);
  for (std::size_t i = 0; i < few.size(); ++i) {
    INFO(ScaleRun::kNames[i]);
    const auto a_node = [](std::uint64_t few_count, std::uint64_t many_count) {
      CHECK(many_count <= 11 * few_count + 100);
    };
    a_node(few[i].messages, many[i].messages);
    a_node(few[i].bytes, many[i].bytes);
    a_node(few[i].batches, many[i].batches);
    a_node(few[i].changes, many[i].changes);
    a_node(few[i].placed, many[i].placed);
  }
  const auto& cluster = large.head().cluster();
  CHECK(cluster.nodes().size() == 9'001);
  CHECK(many[1].placed == 100'000);
  CHECK(many[3].placed == 10'000);
  std::size_t alive = 0, most = 0;
  for (const auto& [id, actor] : cluster.actors()) alive += actor.record.state == ActorState::kAlive ? 1 : 0;
  for (const auto& [id, node] : cluster.nodes()) most = std::max(most, node.actors.size());
  CHECK(alive == 100'000);
  CHECK(most == 12);  // isolated ones are spread
  // A death is told to those who asked, once, and a sync carries many events.
  CHECK(many[2].messages - many[2].answers <= 1'000 * (2 * ScaleRun::kPeersANode + 1) * 2);
  CHECK(many[2].answers <= many[2].events);  // and a heartbeat is answered once
  CHECK(many[1].batches * 50 < many[1].events);
  cluster.check_invariants();
}

TEST_CASE("among 100,000 workers of tasks just enough make room for what waits") {
  TurnsRun run(10'000);
  const auto print = [](const char* what, const TurnsRun::Ticks& ticks) {
    std::printf("a tick while %-30s %7.2f ms, %.2f at most\n", what, ticks.mean_ms, ticks.most_ms);
    return ticks.told;
  };
  CHECK(print("nobody waits for long", run.tick(1)) == 0);
  CHECK(print("two programs share", run.tick(8)) == 0);
  run.wants_room(1, kCpu / 2);
  CHECK(print("an actor waits", run.tick(4)) == 1);
  run.wants_room(100, kCpu);
  CHECK(print("a hundred wait", run.tick(4)) == 63);  // with the first as many as have their turn at a time
  run.head().check_invariants();
  TurnsRun other(10'000);
  other.wants_room(1, TurnsRun::kWorkersANode * kCpu);
  // And as many of the other program for the four asks of the one whose workers these are.
  CHECK(print("one waits for a whole node", other.tick(4)) == TurnsRun::kWorkersANode + 4);
  other.wants_group();
  CHECK(print("a group waits", other.tick(4)) == 8 * TurnsRun::kWorkersANode);
  other.head().check_invariants();
}
