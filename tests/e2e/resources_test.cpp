// Labels, custom resources and memory over two nodes that were started by hand, and a worker that takes more
// memory than it asked for.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <vector>

#include "scheduler/init/init.hpp"
#include "tests/e2e/two_nodes.hpp"

namespace resources_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Hoarder {
  /// Takes so much, and keeps it.
  std::int64_t take(std::int64_t bytes) {
    kept.emplace_back(static_cast<std::size_t>(bytes), 'x');
    return static_cast<std::int64_t>(kept.size());
  }
  int pid() { return ::getpid(); }
  std::vector<std::vector<char>> kept;
};

int pid_of_task() {
  return ::getpid();
}

}  // namespace

TEST_CASE("actors, tasks, groups and jobs go where their labels, resources and memory are", "[resources]") {
  const TwoNodes cluster("--resource tpu=2 --label zone=a --memory 512MiB", "--label zone=b --memory 2GiB");
  const auto troupe = [&](const std::string& words) {
    return cluster.troupe(words + " --folder " + cluster.root + "/a");
  };
  const Ran shown = troupe("node show one");
  INFO(shown.output);
  CHECK(shown.output.find("tpu          0 of 2 held") != std::string::npos);
  CHECK(shown.output.find("memory       0 bytes of 512 MiB held") != std::string::npos);
  CHECK(shown.output.find("labels       zone=a") != std::string::npos);
  {
    auto session = init(0, nullptr, {.address = cluster.address, .folder = cluster.root + "/a"});
    NodeId one, two;
    for (const auto& node : session.nodes()) {
      if (node.name == "one") one = node.id;
      if (node.name == "two") two = node.id;
    }
    REQUIRE((one && two));
    const auto tpu = session.spawn<Hoarder>({.resources = {{"tpu", 2}}, .isolated = true});
    CHECK(tpu.address().node == one);
    CHECK(session.spawn<Hoarder>({.labels = {{"zone", "b"}}}).address().node == two);
    const auto large = session.spawn<Hoarder>({.memory = 1024 * kMiB, .isolated = true});
    CHECK(large.address().node == two);
    CHECK(troupe("status").output.find("two holds 1 GiB of 2 GiB of memory; labels zone=b") !=
          std::string::npos);
    const auto waits = session.spawn_async<Hoarder>({.resources = {{"tpu", 1}}, .isolated = true});
    REQUIRE(eventually([&] { return !waits.waits_for().empty(); }));
    CHECK(waits.waits_for() == "no node has 1 tpu free: one has 0 of 2 tpu");
    CHECK(message_of([&] {
            session.spawn<Hoarder>({.resources = {{"fpga", 1}}});
          }).find("no node has resource fpga") != std::string::npos);
    CHECK(code_of([&] { session.spawn<Hoarder>({.resources = {{"cpu", 1}}}); }) == "bad config");
    session.kill(tpu);
    CHECK(waits.get(60s).address().node == one);
    CHECK(session.with({.memory = 64 * kMiB, .resources = {{"tpu", 0.5}}}).submit<&pid_of_task>().get(60s) >
          0);
    const auto group = session.placement_group(
        {{.memory = 256 * kMiB, .labels = {{"zone", "a"}}}, {.num_cpus = 1, .labels = {{"zone", "b"}}}});
    group.wait(60s);
    CHECK(group.state().nodes == std::vector<NodeId>{one, two});
    const auto member = session.spawn<Hoarder>(
        {.memory = 256 * kMiB, .isolated = true, .placement_group = group, .bundle = 0});
    CHECK(member.address().node == one);
  }
  Ran ran = cluster.troupe("job submit --folder " + cluster.root +
                           "/a --label zone=b --memory 1GiB -- sh -c 'echo $TROUPE_JOB_ID'");
  INFO(ran.output);
  CHECK(ran.code == 0);
  CHECK(troupe("job list -o json").output.find("\"driver_node_name\": \"two\"") != std::string::npos);
  ran = cluster.troupe("job submit --detach --id wants --resource fpga=1 --folder " + cluster.root +
                       "/a -- true");
  CHECK(ran.code == 0);
  CHECK(troupe("job why wants").output.find("no node has resource fpga; it waits for a node that has it") !=
        std::string::npos);
  for (const char* wrong :
       {"--memory 5x", "--memory -1", "--resource tpu", "--resource gpu=1", "--label zone"})
    CHECK(cluster.troupe(std::string("job submit --detach ") + wrong + " -- true").code == 2);
}

TEST_CASE("a worker above its request is ended when its node is short of memory, and says so",
          "[resources]") {
  auto session = init(0, nullptr, {.memory_per_node = 512 * kMiB});
  const auto modest = session.spawn<Hoarder>({.memory = 200 * kMiB, .isolated = true});
  const auto over = session.spawn<Hoarder>({.memory = 64 * kMiB, .isolated = true, .label = "over"});
  CHECK(modest.call<&Hoarder::take>(100 * kMiB).get(60s) == 1);
  CHECK(over.call<&Hoarder::take>(150 * kMiB).get(60s) == 1);  // the node has enough: it may
  over.call<&Hoarder::take>(400 * kMiB);
  std::string why;
  REQUIRE(eventually([&] {
    try {
      over.call<&Hoarder::pid>().get(10s);
    } catch (const ActorDied& died) {
      why = died.what();
    } catch (const Timeout&) {  // it takes its time to take it
    }
    return !why.empty();
  }));
  INFO(why);
  CHECK(why.find("over had ") != std::string::npos);
  CHECK(why.find(" of memory and had asked for 64 MiB, and its node is short of memory") !=
        std::string::npos);
  CHECK(modest.call<&Hoarder::pid>().get(60s) > 0);
}

TEST_CASE("a job's program above its request is ended with the reason, with all that it started",
          "[resources]") {
  const TwoNodes cluster("--memory 128MiB --label zone=a");
  const Ran ended =
      cluster.troupe("job submit --folder " + cluster.root + "/a --label zone=a --memory 32MiB -- sh -c '" +
                     "x=$(head -c 300000000 /dev/zero | tr \"\\0\" x); sleep 600'");
  INFO(ended.output);
  CHECK(ended.code == 137);
  CHECK(ended.output.find(" of memory and had asked for 32 MiB, and its node is short of memory") !=
        std::string::npos);
}

}  // namespace resources_test
