// What the dashboard shows and whom it answers. Its pages in a browser: dashboard.sh.

#include <catch2/catch.hpp>

#include "scheduler/cli/dashboard/metrics.hpp"
#include "scheduler/cli/dashboard/snapshot.hpp"
#include "scheduler/cli/dashboard/training_curve.hpp"
#include "tests/actors/serve/http/exposition.hpp"

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

TEST_CASE("a page of metrics: of the head, nodes, actors, jobs, training runs and sweeps") {
  ClusterView view{cluster_of(2, 5)};
  view.status.nodes[1].node.name = "a\"b";
  view.status.nodes[1].state = "draining";
  view.status.nodes[0].node.other.amounts = {{"memory", 1024}, {"tpu", 20'000}};
  view.status.nodes[0].other_used = {{"memory", 256}, {"tpu", 5'000}};
  view.status.nodes[0].node.other.labels = {{"zone", "a"}};
  wire::NodeStatus driver;
  driver.node.id = NodeId{9};
  driver.node.gateway = true;
  driver.state = "alive";
  view.status.nodes.push_back(driver);
  view.status.waiting = {"Trainer waits: no node has 8 CPUs"};
  view.status.head.messages = 7;
  view.status.head.changes = 3;
  view.status.head.write_times.assign(std::size(wire::kWriteBounds) + 1, 0);
  view.status.head.write_times[4] = 2;
  view.status.head.write_times.back() = 1;
  view.status.head.write_ns = 3'500'000'000;
  JobInfo job;
  job.queue = "nights";
  view.jobs = {job, job};
  job.status = JobStatus::kRunning;
  view.jobs.push_back(job);
  job.status = JobStatus::kFailed;
  view.jobs.push_back(job);
  TrainingCurve curve("run.jsonl");
  curve.feed(
      R"({"event":"step","epoch":2,"step":3,"steps_per_epoch":10,"loss":0.25,"samples_per_s":512.5,"trainers_alive":4})"
      "\n"
      R"({"event":"fault","what":"trainer 2 died"})"
      "\n");
  view.training = {curve.as_json().dump(), TrainingCurve("later.jsonl").as_json().dump()};
  view.sweeps = {
      R"({"name":"digits","state":"running","states":{"running":2,"finished":1},"metric":"test/accuracy","trials":8,"best":{"value":0.75}})",
      R"({"name":"means","state":"done","states":{"failed":1},"metric":"m","trials":1,"repeats":3,"best":{"value":9},"best_config":{"mean":0.5}})",
      R"({"name":"broken","state":"cannot read it"})"};
  const std::string page = metrics_of(view);
  CAPTURE(page);
  for (const char* line : {"troupe_head_up 1",
                           "troupe_head_messages_total 7",
                           "troupe_head_store_changes_total 3",
                           "troupe_head_store_write_seconds_bucket{le=\"0.001\"} 0",
                           "troupe_head_store_write_seconds_bucket{le=\"0.0025\"} 2",
                           "troupe_head_store_write_seconds_bucket{le=\"+Inf\"} 3",
                           "troupe_head_store_write_seconds_sum 3.5",
                           "troupe_nodes{state=\"alive\"} 1",
                           "troupe_nodes{state=\"draining\"} 1",
                           "troupe_nodes{state=\"silent\"} 0",
                           "troupe_cpus 8",
                           "troupe_free_cpus 6",
                           "troupe_gpus 0",
                           "troupe_node_free_cpus{id=\"2\",node=\"a\\\"b\"} 3",
                           "troupe_node_resource{id=\"1\",node=\"node-0\",resource=\"memory\"} 1024",
                           "troupe_node_free_resource{id=\"1\",node=\"node-0\",resource=\"memory\"} 768",
                           "troupe_node_free_resource{id=\"1\",node=\"node-0\",resource=\"tpu\"} 1.5",
                           "troupe_node_label{id=\"1\",node=\"node-0\",key=\"zone\",value=\"a\"} 1",
                           "troupe_actors{state=\"alive\"} 4",
                           "troupe_actors{state=\"starting\"} 1",
                           "troupe_actors{state=\"restarting\"} 0",
                           "troupe_waiting_spawn_kinds 1",
                           "troupe_programs 1",
                           "troupe_jobs{state=\"queued\"} 2",
                           "troupe_jobs{state=\"running\"} 1",
                           "troupe_jobs{state=\"failed\"} 1",
                           "troupe_queue_jobs{queue=\"nights\",state=\"waits\"} 2",
                           "troupe_queue_jobs{queue=\"nights\",state=\"runs\"} 1",
                           "troupe_training_step{run=\"run.jsonl\"} 13",
                           "troupe_training_loss{run=\"run.jsonl\"} 0.25",
                           "troupe_training_samples_per_second{run=\"run.jsonl\"} 512.5",
                           "troupe_training_trainers{run=\"run.jsonl\"} 4",
                           "troupe_training_deaths_survived_total{run=\"run.jsonl\"} 1",
                           "troupe_training_deaths_survived_total{run=\"later.jsonl\"} 0",
                           "troupe_tune_trials{sweep=\"digits\",state=\"running\"} 2",
                           "troupe_tune_trials{sweep=\"digits\",state=\"failed\"} 0",
                           "troupe_tune_running{sweep=\"digits\"} 1",
                           "troupe_tune_best{sweep=\"digits\",metric=\"test/accuracy\"} 0.75",
                           "troupe_tune_best{sweep=\"means\",metric=\"m\"} 0.5"}) {
    CAPTURE(line);
    CHECK(page.find(std::string(line) + "\n") != std::string::npos);
  }
  CHECK(page.find("troupe_training_loss{run=\"later.jsonl\"}") == std::string::npos);  // it has none yet
  CHECK(page.find("broken") == std::string::npos);
  CHECK(http::problems_of_exposition(page) == "");
  CHECK(http::promtool_on(page) == "");

  // What a head that is gone said last is not how it is.
  view.error = "the head does not answer";
  const std::string without = metrics_of(view);
  CHECK(without.find("troupe_head_up 0\n") != std::string::npos);
  CHECK(without.find("troupe_nodes") == std::string::npos);
  CHECK(without.find("troupe_jobs") == std::string::npos);
  CHECK(without.find("troupe_training_loss") != std::string::npos);
  CHECK(http::problems_of_exposition(without) == "");
}

TEST_CASE("pages of programs that serve come in one: a family once, and whose each series is") {
  const std::string first =
      "# HELP troupe_serve_requests_total Requests.\n# TYPE troupe_serve_requests_total counter\n"
      "troupe_serve_requests_total{code=\"200\",deployment=\"a b\"} 7\n"
      "# HELP other Of another library.\n# TYPE other gauge\nother 1\n"
      "# HELP troupe_serve_plain P.\n# TYPE troupe_serve_plain gauge\ntroupe_serve_plain 2\nnonsense\n";
  const ServingPages serving{{{7, 8000, first}, {9, 8001, first}, {9, 8002, ""}}, 2, 1};
  const std::string page = merged(serving);
  CHECK(page ==
        "# HELP troupe_serve_plain P.\n# TYPE troupe_serve_plain gauge\n"
        "troupe_serve_plain{port=\"8000\",process=\"7\"} 2\n"
        "troupe_serve_plain{port=\"8001\",process=\"9\"} 2\n"
        "# HELP troupe_serve_requests_total Requests.\n# TYPE troupe_serve_requests_total counter\n"
        "troupe_serve_requests_total{port=\"8000\",process=\"7\",code=\"200\",deployment=\"a b\"} 7\n"
        "troupe_serve_requests_total{port=\"8001\",process=\"9\",code=\"200\",deployment=\"a b\"} 7\n");
  const std::string all = metrics_of({}, serving);
  CHECK(all.find("troupe_serving_programs{state=\"silent\"} 1\n") != std::string::npos);
  CHECK(http::problems_of_exposition(all) == "");
  CHECK(http::promtool_on(all) == "");
}

TEST_CASE("a page of metrics of a large cluster stays small") {
  const std::string page = metrics_of({cluster_of(700, 10'000)});
  CHECK(page.find("troupe_cpus 2800\n") != std::string::npos);  // of all of them
  CHECK(page.find("id=\"1f4\"") != std::string::npos);
  CHECK(page.find("id=\"1f5\"") == std::string::npos);
  CHECK(page.size() < 300'000);
  CHECK(http::promtool_on(page) == "");
}
