// What the dashboard shows and whom it answers. Its pages in a browser: dashboard.sh.

#include <catch2/catch.hpp>

#include "scheduler/cli/dashboard/snapshot.hpp"
#include "scheduler/cli/dashboard/training_curve.hpp"

using namespace troupe;
using namespace troupe::cli;
using nlohmann::json;

namespace {

/// A cluster of so many nodes with 4 CPUs each, one of them held, and actors of two classes.
wire::StatusAnswer cluster_of(int nodes, int actors) {
  wire::StatusAnswer all;
  all.address = "127.0.0.1:6380";
  for (int i = 0; i < nodes; ++i) {
    wire::NodeStatus node;
    node.node.id = NodeId{static_cast<std::uint64_t>(i + 1)};
    node.node.name = "node-" + std::to_string(i);
    node.node.cpu_e4 = 40'000;
    node.cpu_used_e4 = 10'000;
    node.state = "alive";
    all.nodes.push_back(node);
  }
  cluster::JobRecord job;
  job.job = JobId{7};
  job.name = "Digits";
  all.jobs.push_back(job);
  for (int i = 0; i < actors; ++i) {
    wire::ActorStatus actor;
    actor.record.actor = ActorId{static_cast<std::uint64_t>(i + 1)};
    actor.record.spec.type = i % 2 == 0 ? "Trainer" : "Loader";
    actor.record.spec.job = job.job;
    actor.record.node = NodeId{1};
    actor.record.state = i == 0 ? cluster::ActorState::kStarting : cluster::ActorState::kAlive;
    actor.reason = "as asked";
    all.actors.push_back(actor);
  }
  return all;
}

std::string step_line(std::int64_t step, double loss) {
  return json{{"event", "step"}, {"epoch", 1}, {"step", step}, {"steps_per_epoch", 1'000'000}, {"loss", loss}}
             .dump() +
         "\n";
}

}  // namespace

TEST_CASE("a snapshot sums nodes and counts actors by class") {
  ClusterView view{cluster_of(3, 5)};
  JobInfo job;
  job.id = "job-1";
  job.program = {"echo", "a b"};
  view.jobs = {job};
  view.sweeps = {R"({"name": "digits"})"};
  view.deployments = {{{"name", "plain"}, {"pid", 7}}};
  const json all = snapshot_of(view);
  CHECK(all["totals"]["cpus"] == 12.0);
  CHECK(all["totals"]["cpus_used"] == 3.0);
  CHECK(all["totals"]["actors"] == 5);
  REQUIRE(all["actors"].size() == 2);
  CHECK(all["actors"][0] == json({{"class", "Loader"}, {"job", "Digits"}, {"states", {{"alive", 2}}}}));
  CHECK(all["actors"][1]["states"] == json({{"alive", 2}, {"starting", 1}}));
  CHECK(all["jobs"][0]["entrypoint"] == "echo 'a b'");
  CHECK(all["programs"][0]["name"] == "Digits");
  CHECK(all["sweeps"][0]["name"] == "digits");
  CHECK(all["deployments"][0]["pid"] == 7);
  CHECK(all["error"].is_null());
}

TEST_CASE("a snapshot of a large cluster stays small, and says what it left out") {
  ClusterView view{cluster_of(700, 10'000)};
  view.jobs.resize(1000);
  view.status.waiting.assign(300, "Trainer waits: no node has 8 CPUs");
  view.deployments.assign(201, {{"name", "plain"}});
  const json all = snapshot_of(view);
  CHECK(all["nodes"].size() == 500);
  CHECK(all["jobs"].size() == 200);
  CHECK(all["waiting"].size() == 100);
  CHECK(all["left_out"] == json({{"nodes", 200},
                                 {"jobs", 800},
                                 {"actors", 0},
                                 {"groups", 0},
                                 {"waiting", 200},
                                 {"deployments", 1}}));
  CHECK(all["totals"]["cpus"] == 2800.0);  // of all of them
  CHECK(all["totals"]["waiting"] == 300);
  CHECK(all.dump().size() < 300'000);
}

TEST_CASE("actors are found by a word, a page at a time") {
  const auto status = cluster_of(1, 101);
  const json page = page_of_actors(status, "TRAINER", 40, 20);
  CHECK(page["total"] == 51);
  REQUIRE(page["actors"].size() == 11);
  CHECK(page["actors"][0]["class"] == "Trainer");
  CHECK(page["actors"][0]["node"] == "node-0");
  CHECK(page["actors"][0]["job"] == "Digits");
  CHECK(page["actors"][0]["why"] == "as asked");
  CHECK(page_of_actors(status, "starting", 0, 20)["total"] == 1);
  CHECK(page_of_actors(status, "nobody", 0, 20)["actors"].empty());
  CHECK(page_of_actors(status, "", 1000, 20)["actors"].empty());
}

TEST_CASE("parameters of an address are decoded") {
  CHECK(parameter_of("since=a-1&text=two%20words", "text") == "two words");
  CHECK(parameter_of("since=a-1&text=two+words", "since") == "a-1");
  CHECK(parameter_of("text=", "text") == "");
  CHECK_FALSE(parameter_of("text=%zz", "text"));
  CHECK_FALSE(parameter_of("context=1", "text"));
  CHECK_FALSE(parameter_of("", "text"));
}

TEST_CASE("a page of another name gets nothing of this machine's") {
  for (const char* own :
       {"localhost", "localhost:8265", "LOCALHOST:1", "127.0.0.1:8265", "127.1.2.3", "[::1]:8265", "[::1]"})
    CHECK(is_own_host(own, "127.0.0.1"));
  for (const char* other :
       {"", "evil.example:8265", "127.evil.example", "localhost.evil.example", "10.0.0.1", "[::2]:1"})
    CHECK_FALSE(is_own_host(other, "127.0.0.1"));
}

TEST_CASE("a training curve keeps evenly spread losses, however long the run is") {
  TrainingCurve curve("run.jsonl");
  for (int step = 1; step <= 100'000; ++step) curve.feed(step_line(step, 1.0 / step));
  const json all = curve.as_json();
  CHECK(all["steps"] == 100'000);
  const auto& losses = all["losses"];
  CHECK(losses.size() <= TrainingCurve::kMostPoints);
  CHECK(losses.size() >= TrainingCurve::kMostPoints / 2);
  const std::int64_t every = losses[1][0].get<std::int64_t>() - losses[0][0].get<std::int64_t>();
  for (std::size_t i = 1; i < losses.size(); ++i)
    REQUIRE(losses[i][0].get<std::int64_t>() - losses[i - 1][0].get<std::int64_t>() == every);
}

TEST_CASE("a training curve reads lines in pieces, and leaves out what is none") {
  TrainingCurve curve("run.jsonl");
  const std::string line = step_line(1, 0.5);
  curve.feed(R"({"event":"job_started","what":"ConvNet"})"
             "\nno json\n[1]\n{\"event\":7}\n{\"event\":\"step\",\"loss\":null}\n");
  curve.feed(line.substr(0, 10));
  CHECK(curve.as_json()["losses"].empty());
  curve.feed(line.substr(10));
  curve.feed(R"({"event":"epoch","epoch":1,"metrics":{"test/accuracy":0.9}})"
             "\n" +
             std::string(2'000'000, 'x'));
  const json all = curve.as_json();
  CHECK(all["what"] == "ConvNet");
  CHECK(all["losses"] == json::array({{1, 0.5}}));
  REQUIRE(all["epochs"].size() == 1);
  CHECK(all["epochs"][0]["metrics"]["test/accuracy"] == 0.9);
}
