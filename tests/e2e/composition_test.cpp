// Deployments that ask others: what clients get, what a full or ended one means for them, and who ends first.
#include <signal.h>
#include <torch/torch.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <future>
#include <thread>

#include "actors/serve/serve.hpp"
#include "tests/actors/serve/http/raw_client.hpp"
#include "tests/e2e/support.hpp"

namespace composition_test {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

/// Adds to each number; throws above 100.
struct Add {
  float number = 1;
  int ms = 0;  ///< that it takes, but for zeros
  data::FieldSpec input() const { return {.shape = {2}}; }
  torch::Tensor predict(const torch::Tensor& input) const {
    const float most = input.max().item<float>();
    if (most > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    if (most > 100) throw std::out_of_range("a number above 100");
    return input + number;
  }
};
/// The sum of two others' answers, asked at once.
struct Both {
  serve::Handle first, second;
  data::FieldSpec input() const { return {.shape = {2}}; }
  torch::Tensor predict(const torch::Tensor& input) const {
    const auto asked = first.predict(input), other = second.predict(input);
    const torch::Tensor a = asked.get(), b = other.get();
    return a + b;
  }
};
/// What another one answers, twice.
struct Twice {
  serve::Handle of;
  data::FieldSpec input() const { return {.shape = {2}}; }
  torch::Tensor predict(const torch::Tensor& input) const {
    const torch::Tensor answer = of.predict(input).get();
    return 2 * answer;
  }
};
/// Asks for another shape than the other one takes.
struct Wrong {
  serve::Handle of;
  data::FieldSpec input() const { return {.shape = {2}}; }
  torch::Tensor predict(const torch::Tensor& input) const {
    const torch::Tensor answer = of.predict(input.narrow(1, 0, 1)).get();
    return answer;
  }
};

http::RawResponse ask(const serve::Served& served, const std::string& rows, const std::string& fields = "") {
  const std::string url = served.url();
  return http::RawClient(served.port())
      .ask(http::post(url.substr(url.find("/v1/")), "{\"inputs\": [" + rows + "]}", fields));
}

double metric(const serve::Served& served, const std::string& series) {
  const auto text = http::RawClient(served.port()).ask(http::get("/metrics")).body;
  const auto at = text.find(series + " ");
  return at == std::string::npos ? 0 : std::stod(text.substr(at + series.size() + 1));
}

}  // namespace

TEST_CASE("a deployment asks others, of which one asks another: values, batches, refusals, ends",
          "[serving]") {
  auto session = init(0, nullptr);
  auto one = serve::run(session, "one", Add{1}, {.port = 0});
  const int port = one.port();
  auto ten = serve::run(session, "ten", Add{10}, {.port = port});
  auto both = serve::run(session, "both", Both{one.handle(), ten.handle()}, {.port = port});
  auto twice = serve::run(session, "twice", Twice{serve::Handle("both")}, {.port = port, .max_batch = 8});
  CHECK(ask(one, "[1, 2]").body == "{\"outputs\": [[2,3]]}\n");
  CHECK(ask(both, "[1, 2], [3, 4]").body == "{\"outputs\": [[13,15],[17,19]]}\n");
  CHECK(ask(twice, "[1, 2]").body == "{\"outputs\": [[26,30]]}\n");
  const torch::Tensor direct = twice.predict(torch::tensor({{1.0F, 2.0F}}));
  CHECK(direct[0][1].item<float>() == 30);

  // What a struct below threw is told, and costs its own request alone.
  std::vector<std::future<http::RawResponse>> asked;
  for (int i = 0; i < 16; ++i)
    asked.push_back(
        std::async(std::launch::async, [&, i] { return ask(twice, i % 4 == 0 ? "[1, 200]" : "[1, 2]"); }));
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto response = asked[i].get();
    CHECK(response.status == (i % 4 == 0 ? 500 : 200));
    if (i % 4 == 0)
      CHECK_THAT(response.body, Contains("'both' has no answer") && Contains("a number above 100"));
  }

  // What makes no sense is told before anything starts.
  CHECK_THROWS_WITH(serve::run(session, "self", Twice{serve::Handle("self")}, {.port = port}),
                    Contains("cannot serve 'self': it would ask itself: it asks 'self'"));
  CHECK_THROWS_WITH(serve::run(session, "lost", Twice{serve::Handle("nobody")}, {.port = port}),
                    Contains("it asks 'nobody', which this program does not run"));
  CHECK_THROWS_WITH(serve::run(session, "wrong", Wrong{one.handle()}, {.port = port}),
                    Contains("give [rows, ...] of float32 [2]"));
  CHECK_THROWS_WITH(serve::run(session, "one", Add{1}, {.port = 0}),
                    Contains("asks the deployment that has"));
  CHECK_THROWS_WITH(one.handle().predict(torch::ones({1, 2})), Contains("Served::predict"));
  CHECK_THROWS_WITH(both.update(wire::Bytes(100)), Contains("the struct takes no weights"));

  // Those below end last.
  CHECK_THROWS_WITH(one.stop(),
                    Contains("cannot stop 'one': 'both' would have nobody to ask (stop that first)"));
  CHECK(ask(twice, "[1, 2]").status == 200);
  twice.stop();
  both.stop();
  one.stop();
  CHECK(ask(ten, "[1, 2]").status == 200);
}

// It said what the child takes, and no option's name.
TEST_CASE("a parent whose batches its child does not take is told which options do not fit", "[serving]") {
  auto session = init(0, nullptr);
  auto leaf = serve::run(session, "leaf", Add{1}, {.port = 0, .max_batch = 4, .max_queue = 8});
  CHECK_THROWS_WITH(
      serve::run(session, "top", Twice{leaf.handle()}, {.port = leaf.port()}),
      Contains("at most 8 samples") && Contains("asked for 64") &&
          Contains("lower max_batch of the deployment that asks, or raise max_queue of 'leaf'"));
  auto fits = serve::run(session, "top", Twice{leaf.handle()}, {.port = leaf.port(), .max_batch = 8});
  CHECK(ask(fits, "[1, 2]").status == 200);
}

TEST_CASE("a child's replicas are killed under load, and no request of its parent is lost", "[serving]") {
  auto session = init(0, nullptr);
  auto child = serve::run(session, "child", Add{1}, {.replicas = 2, .port = 0});
  auto parent = serve::run(session, "parent", Twice{child.handle()}, {.replicas = 2, .port = child.port()});
  std::atomic<bool> stop = false;
  std::atomic<int> answered = 0;
  std::vector<std::string> wrong(4);
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    clients.emplace_back([&, i] {
      const std::string body = "{\"inputs\": [[" + std::to_string(i) + ", 2]]}";
      const std::string right = "{\"outputs\": [[" + std::to_string(2 * (i + 1)) + ",6]]}\n";
      http::RawClient client(parent.port());
      while (!stop && wrong[i].empty()) {
        const auto response = client.ask(http::post("/v1/parent", body));
        response.body == right ? void(++answered)
                               : void(wrong[i] = std::to_string(response.status) + response.body);
      }
    });
  }
  for (int death = 0; death < 3; ++death) {
    const int before = answered;
    CHECK(e2e::eventually([&] { return answered > before + 50; }));
    CHECK(e2e::eventually([&] { return child.pids().size() == 2; }));
    ::kill(child.pids().at(0), SIGKILL);
  }
  const int before = answered;
  CHECK(e2e::eventually([&] { return answered > before + 50; }));
  stop = true;
  for (auto& client : clients) client.join();
  for (const auto& one : wrong) CHECK(one == "");
  CHECK(metric(parent, "troupe_serve_replica_starts_total{deployment=\"parent\"}") == 2);
  CHECK(metric(child, "troupe_serve_replica_starts_total{deployment=\"child\"}") >= 4);
  CHECK(metric(child, "troupe_serve_requests_total{code=\"200\",deployment=\"child\"}") >= 1);
}

// Replicas of the parent asked where calls had arrived before: an actor that had died with the node.
TEST_CASE("a parent asks its child also when the program has another node", "[serving]") {
  auto session = init(0, nullptr);
  auto one = serve::run(session, "one", Add{1}, {.port = 0});
  auto twice = serve::run(session, "twice", Twice{one.handle()}, {.port = one.port()});
  const auto before = twice.pids();
  ::kill(session.embedded()->node_pids().front(), SIGKILL);
  CHECK(e2e::eventually([&] { return twice.pids().size() == 1 && twice.pids() != before; }));
  CHECK(ask(twice, "[1, 2]").body == "{\"outputs\": [[4,6]]}\n");
}

TEST_CASE("a child that is full, has no time or ends: the parent's clients are told so", "[serving]") {
  auto session = init(0, nullptr);
  // A row each 300 ms, one of which waits.
  auto child = serve::run(session, "child", Add{1, 300}, {.port = 0, .max_batch = 1, .max_queue = 1});
  auto parent = serve::run(session, "parent", Twice{child.handle()},
                           {.replicas = 4, .port = child.port(), .max_batch = 1});
  std::vector<std::future<http::RawResponse>> asked;
  for (int i = 0; i < 16; ++i)
    asked.push_back(std::async(std::launch::async, [&] { return ask(parent, "[1, 2]"); }));
  int answered = 0, refused = 0;
  for (auto& one : asked) {
    const auto response = one.get();
    answered += response.status == 200;
    if (response.status != 429) continue;
    ++refused;
    CHECK(response.headers.count("retry-after") == 1);
    CHECK_THAT(response.body, Contains("'child' has no answer: ") && Contains("rows wait"));
  }
  CHECK(answered + refused == 16);
  CHECK(answered > 0);
  CHECK(refused > 0);

  // A deadline comes with the call: the child does not compute for nobody.
  const pid_t replica = child.pids().at(0);
  REQUIRE(e2e::stand_still(replica));
  CHECK(ask(parent, "[1, 2]", "X-Request-Timeout-Ms: 200\r\n").status == 504);
  CHECK(e2e::eventually(
      [&] { return metric(child, "troupe_serve_requests_total{code=\"504\",deployment=\"child\"}") >= 1; }));
  ::kill(replica, SIGCONT);
  CHECK(ask(parent, "[1, 2]").status == 200);

  // The child ends at once, as no order of ends would have it.
  { const auto gone = std::move(child); }
  const auto response = ask(parent, "[1, 2]");
  CHECK(response.status == 503);
  CHECK_THAT(response.body, Contains("'child' has no answer: it does not run any more"));
  // One that runs again under its name is asked.
  auto again = serve::run(session, "child", Add{5}, {.port = parent.port()});
  CHECK(ask(parent, "[1, 2]").body == "{\"outputs\": [[12,14]]}\n");
}

TEST_CASE("a signal ends parents before children, and what was accepted is answered", "[serving]") {
  const e2e::TempFolder folder;
  e2e::Program program("program: serves a parent and a child", folder.path());
  REQUIRE(e2e::eventually([&] { return !e2e::read_file(folder / "under_way").empty(); }));
  ::kill(program.pid(), SIGTERM);
  CHECK(program.wait(60s) == "exit code 0");
  CHECK_THAT(e2e::read_file(folder / "out"), Contains("All tests passed"));
}

TEST_CASE("program: serves a parent and a child", "[.program]") {
  std::signal(SIGTERM, SIG_DFL);  // not Catch's
  auto session = init(0, nullptr);
  auto child = serve::run(session, "child", Add{1, 2000}, {.port = 0, .max_batch = 1});
  auto parent = serve::run(session, "parent", Twice{child.handle()}, {.port = child.port(), .max_batch = 1});
  std::vector<std::future<http::RawResponse>> asked;
  for (int i = 0; i < 3; ++i)
    asked.push_back(std::async(std::launch::async, [&] { return ask(parent, "[1, 2]"); }));
  std::thread tells([&] {
    const auto all_wait = [&] {
      return metric(child, "troupe_serve_ongoing_requests{deployment=\"parent\"}") == 3;
    };
    if (e2e::eventually(all_wait)) e2e::write_file(e2e::program_folder() + "/under_way", "yes");
  });
  CHECK(child.wait() == SIGTERM);
  tells.join();
  for (auto& one : asked) CHECK(one.get().body == "{\"outputs\": [[4,6]]}\n");
}

}  // namespace composition_test
