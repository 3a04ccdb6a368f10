// Looking at what runs in a cluster started by hand: the output of actors over their lives, processes with
// what they say of themselves, and dumps of them.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/core/process_title.hpp"
#include "tests/e2e/two_nodes.hpp"
#include "troupe/session.hpp"

namespace looks_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;
namespace fs = std::filesystem;
using Catch::Matchers::Contains;

namespace {

struct Talker {
  int say(const std::string& text) {
    std::printf("%s\n", text.c_str());
    name_process_work("talks");
    note_process("step", "7");
    note_process("logical_ranks", "2..4");
    return ::getpid();
  }
};

struct Cluster : TwoNodes {
  DriverSession join() const {
    return init(0, nullptr, {.address = address, .folder = root + "/a", .job = "talks"});
  }
  Ran look(const std::string& words) const { return troupe(words + " --folder " + root + "/a"); }
  bool says(const std::string& words, const std::string& text) const {
    return look(words).output.find(text) != std::string::npos;
  }
};

NodeId node_named(const Session& session, const std::string& name) {
  for (const auto& node : session.nodes()) {
    if (node.name == name) return node.id;
  }
  throw std::runtime_error("the session has no node " + name);
}

}  // namespace

TEST_CASE("an actor's output is read on its node, of each life, and after its death", "[looks]") {
  const Cluster cluster;
  auto session = cluster.join();
  auto actor = session.spawn<Talker>({.num_cpus = 1,
                                      .isolated = true,
                                      .node = node_named(session, "one"),
                                      .name = "talker",
                                      .max_restarts = 1,
                                      .max_task_retries = 0});
  const int first = actor.call<&Talker::say>("hello one").get(60s);
  CHECK(eventually([&] { return cluster.says("logs talker", "hello one\n"); }));
  CHECK(cluster.look("logs talker --since 1h --tail 1").output == "hello one\n");
  CHECK(cluster.look("logs talker --since 2099-01-01").output.empty());

  const std::string followed = cluster.root + "/followed";
  const Ran begun = shell("(" TROUPE_CLI " logs --actor talker --follow --folder " + cluster.root + "/a >" +
                          followed + " 2>&1; echo \"exit $?\" >>" + followed + ") >/dev/null 2>&1 & echo");
  REQUIRE(begun.code == 0);
  REQUIRE(eventually([&] { return read_file(followed).find("hello one") != std::string::npos; }));
  ::kill(first, SIGKILL);
  REQUIRE(eventually([&] {
    try {
      return actor.call<&Talker::say>("hello two").get(60s) != first;
    } catch (const Error&) {
      return false;
    }
  }));
  CHECK(eventually([&] { return cluster.says("logs talker", "hello two\n"); }));
  const Ran both = cluster.look("logs talker");
  INFO(both.output);
  CHECK(both.output.find("hello one\n") < both.output.find("its process has ended: "));
  CHECK(both.output.find("its process has ended: ") < both.output.find("life 2 begins\n"));
  CHECK(both.output.find("life 2 begins\n") < both.output.find("hello two\n"));
  CHECK(cluster.look("logs talker --tail 1").output == "hello two\n");
  // The other machine's folder sees what is on its own node, and that alone.
  const std::string theirs = " --folder " + cluster.root + "/b";
  CHECK_THAT(cluster.troupe("logs talker" + theirs).output, Contains("may not ask for it"));
  auto visitor = session.spawn<Talker>(
      {.num_cpus = 1, .isolated = true, .node = node_named(session, "two"), .name = "visitor"});
  visitor.call<&Talker::say>("hello there").get(60s);
  CHECK(eventually([&] {
    return cluster.troupe("logs visitor" + theirs).output.find("hello there") != std::string::npos;
  }));

  const std::string id = to_string(actor.address().actor);
  session.kill(actor, "it has said enough");
  REQUIRE(eventually([&] { return read_file(followed).find("exit ") != std::string::npos; }));
  INFO(read_file(followed));
  CHECK_THAT(read_file(followed), Contains("hello two\n") && Contains("it has said enough") &&
                                      Contains("actor talker has ended\n") && Contains("exit 0\n"));
  CHECK_THAT(cluster.look("logs " + id).output, Contains("hello one\n") && Contains("hello two\n"));
  const Ran none = cluster.look("logs nobody");
  CHECK(none.code == 1);
  CHECK_THAT(none.output, Contains("no job, no live node and no actor has that id or name"));
}

TEST_CASE("processes say what they are, and write dumps when they are asked", "[looks]") {
  const Cluster cluster;
  auto session = cluster.join();
  auto actor = session.spawn<Talker>({.num_cpus = 1, .isolated = true, .label = "talker 0"});
  const int pid = actor.call<&Talker::say>("hello").get(60s);
  // As ps shows it, where the kernel lets a process say so.
  const ProcessTitle title = read_process_title(pid);
  if (!title.title.empty()) {
    CHECK(title.title == "talker 0 of talks");
    const auto all = nlohmann::json::parse(cluster.look("status -o json").output);
    const auto& seen = all["processes"];
    REQUIRE(seen.size() == 1);
    CHECK(seen[0]["pid"] == pid);
    CHECK(seen[0]["step"] == 7);
    CHECK(seen[0]["up_s"] >= 0);
    CHECK(seen[0]["logical_ranks"] == nlohmann::json({2, 3}));
    CHECK(seen[0]["title"] == "talker 0 of talks");
    CHECK(seen[0]["actors"][0] == to_string(actor.address().actor));
  }
  CHECK_THAT(cluster.look("status").output, Contains(std::to_string(pid)) && Contains("talker 0"));

  const Ran dumped = cluster.look("dump talks -o json");
  INFO(dumped.output);
  REQUIRE(dumped.code == 0);
  const auto nodes = nlohmann::json::parse(dumped.output);
  REQUIRE(nodes.size() == 1);
  CHECK(nodes[0]["processes"][0]["pid"] == pid);
  REQUIRE(nodes[0]["files"].size() == 1);
  const std::string stacks = read_file(nodes[0]["files"][0].get<std::string>());
  CHECK_THAT(stacks, Contains("process " + std::to_string(pid)) && Contains("thread ") && Contains("+0x"));
  CHECK(actor.call<&Talker::say>("on it goes").get(60s) == pid);
  CHECK_THAT(cluster.look("dump one").output + cluster.look("dump two").output, Contains(": 1 of 1 worker"));

  // One that is stopped does not answer, and that is said.
  REQUIRE(stand_still(pid));
  const Ran held = cluster.look("dump");
  ::kill(pid, SIGCONT);
  CHECK(held.code == 1);
  CHECK_THAT(held.output, Contains("did not answer"));
  const Ran none = cluster.look("dump nothing");
  CHECK(none.code == 1);
  CHECK_THAT(none.output, Contains("no live node and no job that runs has that id or name"));
  // A dump is for the head's owner, and for the node's own machine.
  const Ran other = cluster.troupe("dump one --folder " + cluster.root + "/b");
  CHECK(other.code == 1);
  CHECK_THAT(other.output, Contains("may not ask for it"));
}

// The head knows of no light actors: a job that had no others had no workers to dump.
TEST_CASE("the worker of a job's light actors is dumped with its job", "[looks]") {
  const Cluster cluster;
  auto session = cluster.join();
  auto actor = session.spawn<Talker>();
  const int pid = actor.call<&Talker::say>("hello").get(60s);
  const Ran dumped = cluster.look("dump talks -o json");
  INFO(dumped.output);
  REQUIRE(dumped.code == 0);
  const auto nodes = nlohmann::json::parse(dumped.output);
  bool is_there = false;
  for (const auto& node : nodes) {
    for (const auto& process : node["processes"]) is_there = is_there || process["pid"] == pid;
  }
  CHECK(is_there);
}

}  // namespace looks_test
