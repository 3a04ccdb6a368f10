// Placement groups over two nodes: where actors go, what waits and why, and a node that dies.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <set>

#include "scheduler/init/init.hpp"
#include "tests/e2e/two_nodes.hpp"

namespace placement_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

struct Worker {
  int pid() { return ::getpid(); }
};

int pid_of_task() {
  return ::getpid();
}

}  // namespace

TEST_CASE("STRICT_SPREAD puts two actors on two nodes, and tasks go into a group, too", "[placement]") {
  auto session = init(0, nullptr, {.nodes = 2, .cpus_per_node = 2});
  const PlacementGroup group = session.placement_group(
      {{.num_cpus = 2}, {.num_cpus = 2}}, {.strategy = PlacementStrategy::kStrictSpread, .name = "pair"});
  group.wait(60s);
  CHECK_NOTHROW(group.wait(0s));  // was: never ready for who only looks
  CHECK(session.find_placement_group("pair").id() == group.id());
  const ActorOptions in{.num_cpus = 1, .isolated = true, .placement_group = group};
  std::set<NodeId> nodes;
  for (int bundle = 0; bundle < 2; ++bundle) {
    ActorOptions options = in;
    options.bundle = bundle;
    const auto worker = session.spawn<Worker>(options);
    CHECK(worker.call<&Worker::pid>().get(30s) > 0);
    nodes.insert(worker.address().node);
  }
  CHECK(nodes.size() == 2);
  // Outside of the group no CPU is left; in it there is.
  const auto outside = session.spawn_async<Worker>({.num_cpus = 1, .isolated = true});
  CHECK(session.with({.placement_group = group}).submit<&pid_of_task>().get(60s) > 0);
  CHECK_FALSE(outside.ready());
  CHECK(message_of([&] {
          session.spawn<Worker>({.isolated = true, .placement_group = group, .bundle = 2});
        }).find("placement group pair has no bundle 2: it has 2, from 0") != std::string::npos);
  CHECK(code_of([&] { session.placement_group({{.num_cpus = 1}}, {.name = "pair"}); }) == "refused");
  group.remove();
  CHECK(outside.get(60s).call<&Worker::pid>().get(30s) > 0);
  CHECK(code_of([&] { session.spawn<Worker>(in); }) == "refused");
  group.remove();  // again: nothing
}

TEST_CASE("a group that no node can hold waits, says so, and is ready when it can be", "[placement]") {
  auto session = init(0, nullptr, {.nodes = 2, .cpus_per_node = 2});
  const auto waits = session.placement_group({{.num_cpus = 2}, {.num_cpus = 2}},
                                             {.strategy = PlacementStrategy::kStrictPack});
  const std::string why = "STRICT_PACK wants all 2 bundles on one node, and none has 4 CPU";
  CHECK(waits.state().reason.find(why) != std::string::npos);
  const auto ready = waits.ready();
  CHECK(eventually([&] { return ready.waits_for().find(why) != std::string::npos; }, 30s));
  // On a loaded machine the head's word may come later than a second.
  CHECK(eventually(
      [&] { return message_of<Timeout>([&] { waits.wait(1s); }).find(why) != std::string::npos; }, 60s));
  const auto actor = session.spawn_async<Worker>({.num_cpus = 1, .isolated = true, .placement_group = waits});
  CHECK(eventually([&] { return actor.waits_for().find(why) != std::string::npos; }, 30s));
  waits.remove();
  CHECK(code_of([&] { ready.get(30s); }) == "refused");
  CHECK(code_of([&] { actor.get(30s); }) == "refused");
}

TEST_CASE("bad placement groups are refused with what is wrong", "[placement]") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 2});
  const auto why = [&](const std::vector<Bundle>& bundles) {
    return message_of([&] { session.placement_group(bundles); });
  };
  CHECK(why({}).find("it has no bundles") != std::string::npos);
  CHECK(why({{.num_cpus = 1}, {}}).find("bundle 1: it is empty") != std::string::npos);
  CHECK(why({{.num_cpus = -1}}).find("bundle 0 has num_cpus = -1") != std::string::npos);
  CHECK(why({{.num_gpus = 1.5}}).find("bundle 0 has num_gpus = 1.5") != std::string::npos);
  // Was: the driver's node cut the program off for a strategy that there is not.
  CHECK(code_of([&] {
          session.placement_group({{.num_cpus = 1}}, {.strategy = static_cast<PlacementStrategy>(77)});
        }) == "bad config");
  CHECK(code_of([&] { session.find_placement_group("none"); }) == "unavailable");
  CHECK(code_of([&] { session.spawn<Worker>({.bundle = 0}); }) == "bad config");
  CHECK(code_of([&] { PlacementGroup().wait(1s); }) == "bad config");
  CHECK(code_of([&] { session.spawn<Worker>({.placement_group = GroupId{5}}); }) == "refused");
}

TEST_CASE("a group whose node is killed is repaired, and its actor lives on there", "[placement]") {
  auto session = init(0, nullptr, {.nodes = 2, .cpus_per_node = 2});
  const auto group = session.placement_group({{.num_cpus = 2}, {.num_cpus = 2}},
                                             {.strategy = PlacementStrategy::kStrictSpread});
  group.wait(60s);
  const auto before = group.state();
  REQUIRE(before.generation == 1);
  const int far = before.nodes.at(0) == session.node() ? 1 : 0;
  const auto actor = session.spawn<Worker>({.num_cpus = 1,
                                            .isolated = true,
                                            .placement_group = group,
                                            .bundle = far,
                                            .max_restarts = -1,
                                            .max_task_retries = -1});
  const int pid = actor.call<&Worker::pid>().get(30s);
  ::kill(session.embedded()->node_pids().at(1), SIGKILL);
  CHECK(eventually([&] { return group.state().generation > 1; }, 90s));
  group.wait(60s);
  const auto after = group.state();
  CHECK(after.is_ready);
  CHECK(after.nodes.at(1 - static_cast<std::size_t>(far)) ==
        before.nodes.at(1 - static_cast<std::size_t>(far)));
  CHECK(after.nodes.at(static_cast<std::size_t>(far)) != before.nodes.at(static_cast<std::size_t>(far)));
  int now = pid;
  CHECK(eventually(
      [&] {
        try {
          return (now = actor.call<&Worker::pid>().get(30s)) != pid;
        } catch (const Unavailable&) {
          return false;
        }
      },
      90s));
}

TEST_CASE("a program's groups are listed by the command line, and go with it", "[placement]") {
  const TwoNodes cluster;
  {
    auto session =
        init(0, nullptr, {.address = cluster.address, .folder = cluster.root + "/a", .job = "grouped"});
    session
        .placement_group({{.num_cpus = 1}, {.num_cpus = 1}}, {.strategy = PlacementStrategy::kStrictSpread})
        .wait(60s);
    session.placement_group({{.num_cpus = 64}}, {.name = "large"});
    const Ran table = cluster.troupe("group list --folder " + cluster.root + "/a");
    INFO(table.output);
    CHECK(table.code == 0);
    CHECK(table.output.find("STRICT_SPREAD") != std::string::npos);
    CHECK(table.output.find("STRICT_SPREAD on 2 nodes: ") != std::string::npos);
    CHECK(table.output.find("no node has 64 CPU at all: the largest has 4") != std::string::npos);
    const Ran json = cluster.troupe("group list -o json --folder " + cluster.root + "/a");
    CHECK(json.output.find("\"state\": \"waiting\"") != std::string::npos);
    CHECK(json.output.find("\"name\": \"large\"") != std::string::npos);
  }
  CHECK(eventually(
      [&] { return cluster.troupe("group list -o json --folder " + cluster.root + "/a").output == "[]\n"; },
      60s));
}

}  // namespace placement_test
