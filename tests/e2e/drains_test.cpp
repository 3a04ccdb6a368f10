// Nodes that drain, with real processes: by troupe drain, by SIGTERM, in time and not.
#include <signal.h>

#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/e2e/two_nodes.hpp"
#include "tests/support/contains.hpp"
#include "troupe/jobs.hpp"
#include "troupe/session.hpp"

namespace drains_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;
using troupe::test::contains;

namespace {

struct Cluster : TwoNodes {
  Ran drain(const std::string& words) const { return troupe("drain --folder " + root + "/a " + words); }
  std::string status() const { return troupe("status --folder " + root + "/a").output; }
  JobClient jobs() const { return JobClient({.address = address, .folder = root + "/a"}); }
  /// A job that runs on node "two" alone, until its file is there: "one" has no room then.
  std::string on_two(JobClient& client, int retries = 0) const {
    const auto runs = [&](const std::string& id, const std::string& node) {
      const JobInfo job = client.status(id);
      return job.status == JobStatus::kRunning && (node.empty() || job.node == node);
    };
    const std::string program = "until [ -e " + root + "/done ]; do sleep 0.02; done";
    const JobSpec spec{.program = "sh", .args = {"-c", program}, .num_cpus = 4, .retries = retries};
    const std::string first = client.submit(spec), second = client.submit(spec);
    REQUIRE(eventually([&] { return runs(first, "") && runs(second, ""); }));
    const bool is_first = runs(first, "two");
    client.stop(is_first ? second : first);
    client.wait(is_first ? second : first);
    return is_first ? first : second;
  }
  void finish() const { write_file(root + "/done", ""); }
  bool two_has_ended_by_now() const { return ClusterFolder::open(root + "/b").value().running().empty(); }
  bool two_has_ended() const {
    return eventually([&] { return two_has_ended_by_now(); });
  }
};

/// Where it ran.
std::string where(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return to_string(ProcessGate::current()->address().node);
}
/// Computes once the file is there; says before that it has begun.
std::vector<float> numbers_after(const std::string& file) {
  write_file(file + ".begun", "");
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(10ms);
  return std::vector<float>(1 << 20, 1.0F);
}
float second(const ObjectRef<std::vector<float>>& numbers) {
  return numbers.view()[1];
}

}  // namespace

// Was: a worker there never had nothing to do, so it got tasks until the grace time was over, and those died.
TEST_CASE("a queue of tasks leaves a node that drains, and none of them is lost", "[drains]") {
  const Cluster cluster;
  auto session = init(0, nullptr, {.address = cluster.address, .folder = cluster.root + "/a"});
  const auto once = session.with({.max_retries = 0});
  NodeId two;
  for (const auto& node : session.nodes()) {
    if (node.name == "two") two = node.id;
  }
  // Its result must be kept, and a node that drains starts no process that would.
  const std::string file = cluster.root + "/compute";
  const auto numbers = session.with({.max_retries = 0, .node = two}).compute<&numbers_after>(file);
  REQUIRE(eventually([&] { return std::filesystem::exists(file + ".begun"); }, 60s));
  std::deque<Future<std::string>> queue;
  std::set<std::string> nodes;
  int ended = 0;
  const auto feed = [&] {
    while (queue.size() < 64) queue.push_back(once.submit<&where>(10));
    nodes.insert(queue.front().get(60s));
    queue.pop_front();
    ++ended;
  };
  while (ended < 100 || nodes.size() < 2) feed();
  const Ran told = cluster.drain("two --grace 20 --no-wait");
  REQUIRE(told.code == 0);
  write_file(file, "");
  // If the feeding stopped, its worker there would end for want of tasks.
  while (!cluster.two_has_ended_by_now()) feed();
  CHECK(contains(read_file(cluster.root + "/b/node.log"), "it has drained (troupe drain"));
  nodes.clear();
  for (int i = 0; i < 200; ++i) feed();
  CHECK(nodes.size() == 1);
  CHECK(once.submit<&second>(numbers).get(60s) == 1.0F);
}

TEST_CASE("a node drains: it waits for its job, nothing new goes there, and then it has left", "[drains]") {
  const Cluster cluster;
  JobClient jobs = cluster.jobs();
  const std::string job = cluster.on_two(jobs);
  const Ran told = cluster.drain("two --grace 600 --no-wait");
  CHECK(told.code == 0);
  CHECK(told.output == "node two drains\n");
  const std::string status = cluster.status();
  INFO(status);
  CHECK(contains(status, "draining"));
  CHECK(contains(status, "two drains: waits for submitted job " + job + "; it leaves in"));
  // Both would be needed for these.
  const JobSpec whole{.program = "true", .num_cpus = 4};
  const std::string here = jobs.submit(whole), also_here = jobs.submit(whole);
  CHECK(jobs.wait(here).node == "one");
  CHECK(jobs.wait(also_here).node == "one");
  cluster.finish();
  const JobInfo ended = jobs.wait(job);
  CHECK(ended.status == JobStatus::kSucceeded);
  const Ran left = cluster.drain("two");  // again: it waits for the end
  INFO(left.output);
  CHECK((left.code == 0 || contains(left.output, "no live node has that name")));
  CHECK(cluster.two_has_ended());
  CHECK(count(cluster.status(), "alive") == 1);
  CHECK(contains(read_file(cluster.root + "/b/node.log"), "has drained and left"));
}

TEST_CASE("what still runs when the grace time is over ends with the node, and is tried again elsewhere",
          "[drains]") {
  const Cluster cluster;
  JobClient jobs = cluster.jobs();
  const std::string job = cluster.on_two(jobs, 1);
  const Ran left = cluster.drain("two --grace 1");
  INFO(left.output);
  CHECK(left.code == 0);
  CHECK(contains(left.output, "node two drains: waits for submitted job " + job));
  CHECK(contains(left.output, "node two has left\n"));
  CHECK(cluster.two_has_ended());
  CHECK(eventually([&] {
    const JobInfo again = jobs.status(job);
    return again.status == JobStatus::kRunning && again.node == "one" && again.attempt == 2;
  }));
  cluster.finish();
  CHECK(jobs.wait(job).exit_code == 0);
}

TEST_CASE("troupe drain waits on over a restart of the head, and the node drains on", "[drains]") {
  const Cluster cluster;
  JobClient jobs = cluster.jobs();
  const std::string job = cluster.on_two(jobs);
  const std::string said = cluster.root + "/said";
  Ran drained;
  std::thread drains([&] {
    drained = shell(std::string(TROUPE_CLI " drain --folder ") + cluster.root + "/a two --grace 600 >" +
                    said + " 2>&1");
  });
  const bool has_begun = eventually([&] { return contains(read_file(said), "two drains: "); });
  const pid_t head = children(cluster.supervisor("a"), "troupe-head").at(0);
  ::kill(head, SIGKILL);
  const bool is_back = eventually([&] {
    const auto heads = children(cluster.supervisor("a"), "troupe-head");
    return heads.size() == 1 && heads[0] != head &&
           contains(cluster.status(), "two drains: waits for submitted job " + job);
  });
  const JobSpec whole{.program = "true", .num_cpus = 4};
  const std::string here = jobs.submit(whole), also_here = jobs.submit(whole);
  CHECK(jobs.wait(here).node == "one");
  CHECK(jobs.wait(also_here).node == "one");
  cluster.finish();
  drains.join();
  CHECK(has_begun);
  CHECK(is_back);
  CHECK(drained.code == 0);
  const std::string text = read_file(said);
  INFO(text);
  CHECK(contains(text, "node two has left"));
  CHECK(jobs.wait(job).exit_code == 0);
  CHECK(cluster.two_has_ended());
}

// Was: "node two has left", and 0.
TEST_CASE("a node that dies while it drains has not left, and what ended with it is told", "[drains]") {
  const Cluster cluster;
  JobClient jobs = cluster.jobs();
  const std::string job = cluster.on_two(jobs);
  const std::string said = cluster.root + "/said";
  const Ran drained = shell(
      std::string(TROUPE_CLI " drain --folder ") + cluster.root + "/a two --grace 600 >" + said +
      " 2>&1 & p=$!; until grep -q 'two drains: ' " + said + "; do sleep 0.05; done; kill -KILL " +
      std::to_string(children(cluster.supervisor("b"), "troupe-node").at(0)) + "; wait $p; echo \"code $?\"");
  CHECK(contains(drained.output, "code 1\n"));
  const std::string text = read_file(said);
  INFO(text);
  CHECK(contains(text, "node two died before it had left: "));
  CHECK(contains(text, "; with it ended submitted job " + job + " (a node that is started there now"));
  CHECK_FALSE(contains(text, "node two has left"));
}

TEST_CASE("a drain is cancelled, and the node goes on", "[drains]") {
  const Cluster cluster;
  JobClient jobs = cluster.jobs();
  const std::string job = cluster.on_two(jobs);
  // Was: Ctrl-C said nothing, and the drain went on.
  const std::string said = cluster.root + "/said";
  const Ran left = shell(std::string(TROUPE_CLI " drain --folder ") + cluster.root + "/a two --grace 600 >" +
                         said + " 2>&1 & p=$!; until grep -q 'two drains: ' " + said +
                         "; do sleep 0.05; done; kill -INT $p; wait $p; echo \"code $?\"");
  CHECK(contains(left.output, "code 130"));
  CHECK(contains(read_file(said), "node two goes on draining: troupe drain --folder " + cluster.root +
                                      "/a two --cancel takes it back"));
  CHECK(contains(cluster.status(), "draining"));
  const Ran cancelled = cluster.drain("two --cancel");
  CHECK(cancelled.output == "node two goes on\n");
  CHECK(cancelled.code == 0);
  CHECK(eventually([&] { return count(cluster.status(), "alive") == 2; }));
  cluster.finish();
  CHECK(jobs.wait(job).exit_code == 0);
  // It takes new jobs again.
  const JobSpec spec{.program = "sleep", .args = {"600"}, .num_cpus = 4};
  const std::string first = jobs.submit(spec), second = jobs.submit(spec);
  CHECK(eventually([&] {
    return jobs.status(first).status == JobStatus::kRunning &&
           jobs.status(second).status == JobStatus::kRunning;
  }));
}

TEST_CASE("SIGTERM drains the node of its machine, a second one ends it at once", "[drains]") {
  const Cluster cluster;
  JobClient jobs = cluster.jobs();
  const std::string job = cluster.on_two(jobs);
  const pid_t start = cluster.supervisor("b");
  ::kill(start, SIGTERM);
  REQUIRE(eventually([&] { return contains(cluster.status(), "draining"); }));
  CHECK(contains(cluster.status(), "(SIGTERM on its machine)"));
  CHECK(jobs.status(job).status == JobStatus::kRunning);
  SECTION("it waits for its job, and only its machine could call it back") {
    const Ran refused = cluster.drain("two --cancel");
    CHECK(refused.code == 1);
    CHECK(contains(refused.output, "node two goes on draining: its own machine told it to (SIGTERM)"));
    cluster.finish();
    CHECK(jobs.wait(job).status == JobStatus::kSucceeded);
  }
  SECTION("not any more") {
    ::kill(start, SIGTERM);
    const JobInfo ended = jobs.wait(job);
    CHECK(ended.status == JobStatus::kFailed);
    CHECK(contains(ended.why, "its node leaves"));
  }
  CHECK(cluster.two_has_ended());
}

TEST_CASE("what cannot be drained is refused with the reason", "[drains]") {
  const Cluster cluster;
  const auto refused = [&](const std::string& words, const std::string& part, int code = 1) {
    const Ran ran = cluster.drain(words);
    INFO(words << ": " << ran.output);
    CHECK(ran.code == code);
    CHECK(contains(ran.output, part));
  };
  refused("three", "no live node has that name or id (troupe status shows those that live)");
  refused("two --grace -1", "'-1' is not a whole number of 0 to 604800", 2);
  refused("", "node is required", 2);
  // A machine drains its own nodes alone.
  const Ran other = cluster.troupe("drain one --folder " + cluster.root + "/b");
  CHECK(other.code == 1);
  CHECK(contains(other.output, "run it on the node's own machine, or on the head's"));
}

}  // namespace drains_test
