// Deployments of a program over HTTP: what they answer, what they refuse, and what happens when a node dies.
// The machine's own rules are in tests/actors/serve; examples/serve/ask.sh kills replicas under load.
#include <fcntl.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/serve/serve.hpp"
#include "runtime/host/may_wait.hpp"
#include "tests/actors/serve/http/exposition.hpp"
#include "tests/actors/serve/http/raw_client.hpp"
#include "tests/e2e/support.hpp"
#include "tests/e2e/weights.hpp"

namespace serving_test {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Contains;
using e2e::weights_of;

namespace {

constexpr float kDies = 666;

/// Throws for an input above 100, and ends its process where its bias says so.
struct NetImpl : torch::nn::Module {
  NetImpl() { register_module("hidden", hidden); }
  torch::Tensor forward(const torch::Tensor& x) {
    if (hidden->bias[0].item<float>() == kDies) ::_exit(1);
    if (x.max().item<float>() > 100) throw std::out_of_range("a number above 100");
    return is_training() ? hidden(x) * 0 : hidden(x);
  }
  torch::nn::Linear hidden{4, 3};
};
TORCH_MODULE(Net);

struct Plain {
  Net model() const { return Net(); }
  data::FieldSpec input() const { return {.shape = {4}}; }
};
/// Says more: its own predict, in bfloat16, of integers.
struct Classes {
  int add = 0;
  Net model() const { return Net(); }
  data::FieldSpec input() const { return {.dtype = data::DType::kInt64, .shape = {4}}; }
  train::Precision precision() const { return {.autocast = true}; }
  torch::Tensor predict(Net& net, const torch::Tensor& input) const {
    const torch::Tensor output = net->forward(input.to(torch::kFloat32));
    TORCH_CHECK(output.scalar_type() == torch::kBFloat16 && !c10::GradMode::is_enabled());
    return output.argmax(1) + add;
  }
};

/// Answers what no tensor of ours is where a sample says so, hangs at 93, and ends its process at kDies.
struct Odd {
  Net model() const { return Net(); }
  data::FieldSpec input() const { return {.shape = {4}}; }
  torch::Tensor predict(Net& net, const torch::Tensor& input) const {
    const float most = input.max().item<float>();
    if (most == kDies) ::_exit(1);
    while (most == 93) ::pause();
    const torch::Tensor output = net->forward(input.clamp(-1, 1));
    if (most == 94) return output + torch::empty({std::int64_t{1} << 45}).sum();
    if (most == 95) return output.narrow(0, 0, output.size(0) - 1);
    if (most == 97) return output.to_sparse();
    if (most == 98) return torch::complex(output, output);
    return output;
  }
};

/// Its weights are two pieces.
struct HeavyNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x + ballast[0]; }
  torch::Tensor ballast = register_parameter("ballast", torch::ones({5'000'000}));
};
TORCH_MODULE(HeavyNet);
struct Heavy {
  HeavyNet model() const { return HeavyNet(); }
  data::FieldSpec input() const { return {.shape = {4}}; }
};

struct Asked {
  int status = 0;
  nlohmann::json body;
};
Asked ask(const std::string& url, const std::string& json, const std::string& more = "") {
  const auto ran = e2e::shell("curl -s -m 60 -w '\n%{http_code}' " + more + " -d '" + json + "' " + url);
  const auto line = ran.output.rfind('\n');
  if (line == std::string::npos) return {};
  return {std::stoi(ran.output.substr(line + 1)),
          nlohmann::json::parse(ran.output.substr(0, line), nullptr, false)};
}

/// What the process prints to its standard error meanwhile.
class Printed {
 public:
  Printed() : path_(folder_.path() + "/printed"), kept_(::dup(2)) {
    const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(file, 2);
    ::close(file);
  }
  ~Printed() {
    ::dup2(kept_, 2);
    ::close(kept_);
  }
  std::string text() const { return e2e::read_file(path_); }

 private:
  const e2e::TempFolder folder_;
  const std::string path_;
  const int kept_;
};

const char* const kTwo = R"({"inputs": [[1, 2, 3, 4], [5, -6, 7, 8]]})";

}  // namespace

TEST_CASE("two deployments answer on one port, as their nets and structs say", "[serving]") {
  auto session = init(0, nullptr);
  torch::manual_seed(7);
  Net net;
  net->eval();
  const auto weights = weights_of(net);
  auto plain = serve::run(session, "plain", Plain{}, weights, {.port = 0});
  const auto classes =
      serve::run(session, "classes", Classes{10}, weights, {.replicas = 2, .port = plain.port()});
  CHECK(plain.url() == "http://127.0.0.1:" + std::to_string(plain.port()) + "/v1/plain");
  CHECK(classes.pids().size() == 2);

  const torch::NoGradGuard no_grad;
  const torch::Tensor input = torch::tensor({{1.0F, 2.0F, 3.0F, 4.0F}, {5.0F, -6.0F, 7.0F, 8.0F}});
  const torch::Tensor expected = net->forward(input);
  const Asked answer = ask(plain.url(), kTwo);
  REQUIRE(answer.status == 200);
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 3; ++k)
      CHECK(answer.body["outputs"][i][k].get<double>() == Approx(expected[i][k].item<float>()).epsilon(1e-4));
  }
  const torch::Tensor direct = plain.predict(input);
  CHECK(torch::allclose(direct, expected, 1e-3, 1e-4));
  CHECK_THROWS_AS(plain.predict(torch::ones({2, 3})), BadConfig);
  CHECK_THROWS_WITH(plain.predict(torch::full({1, 4}, 200.0F)), Contains("a number above 100"));
  const Asked counted = ask(classes.url(), kTwo);
  REQUIRE(counted.status == 200);
  CHECK(counted.body["outputs"].size() == 2);
  CHECK(counted.body["outputs"][0].get<int>() >= 10);

  CHECK(ask(plain.url(), R"({"inputs": [[1, 2]]})").status == 400);
  CHECK(ask(plain.url() + "/extra", kTwo).status == 404);
  CHECK(ask(plain.url(), kTwo, "-X PUT").status == 405);
  const Asked threw = ask(plain.url(), R"({"inputs": [[1, 2, 3, 400]]})");
  CHECK(threw.status == 500);
  CHECK_THAT(threw.body.value("error", ""), Contains("a number above 100"));
  CHECK(ask(plain.url(), kTwo).status == 200);

  // The route and the port are taken; another name is not one.
  const serve::ServeOptions here{.port = plain.port()};
  CHECK_THROWS_WITH(serve::run(session, "plain", Plain{}, weights, here), Contains("/v1/plain"));
  CHECK_THROWS_AS(serve::run(session, "a/b", Plain{}, weights, here), BadConfig);
  CHECK_THROWS_AS(serve::run(session, "none", Plain{}, weights, {.replicas = 0}), BadConfig);
  CHECK_THROWS_AS(serve::run(session, "none", Plain{}, "/no/such/file", here), BadConfig);
  const auto nothing = checkpoint::write_safetensors(checkpoint::lay_out_safetensors({}).value());
  CHECK_THROWS_WITH(serve::run(session, "none", Plain{}, nothing, here), Contains("hidden.weight"));
  CHECK(ask(plain.url(), kTwo).status == 200);  // what did not start took nothing with it

  plain.stop();
  CHECK(ask(plain.url(), kTwo).status == 404);
  CHECK(ask(classes.url(), kTwo).status == 200);
}

TEST_CASE("behind a replica that stands still requests end, too, and it is killed", "[serving]") {
  auto session = init(0, nullptr);
  const auto served = serve::run(session, "plain", Plain{}, weights_of(Net()),
                                 {.port = 0, .max_batch = 1, .max_queue = 1, .health_timeout = 5s});
  const std::string one = R"({"inputs": [[1, 2, 3, 4]]})";
  const auto measured = [&](const std::string& name, int value) {
    const auto text = e2e::shell("curl -s http://127.0.0.1:" + std::to_string(served.port()) + "/metrics");
    return text.output.find(name + "{deployment=\"plain\"} " + std::to_string(value) + "\n") !=
           std::string::npos;
  };
  const int pid = served.pids().at(0);
  REQUIRE(e2e::stand_still(pid));
  CHECK(ask(served.url(), one, "-H 'X-Request-Timeout-Ms: 100'").status == 504);
  CHECK(e2e::shell("curl -s -m 0.3 -d '" + one + "' " + served.url()).code == 28);  // it leaves
  CHECK(e2e::eventually([&] { return measured("troupe_serve_cancelled_total", 1); }));
  Asked waited;
  std::thread waits([&] { waited = ask(served.url(), one); });
  CHECK(e2e::eventually([&] { return measured("troupe_serve_queued_rows", 1); }));
  const auto refused = e2e::shell("curl -si -d '" + one + "' " + served.url());
  CHECK_THAT(refused.output, Contains("429 Too Many Requests") && Contains("Retry-After: "));
  waits.join();
  CHECK(waited.status == 200);  // by its successor
  CHECK(e2e::eventually([&] { return !e2e::is_alive(pid); }));
}

// The first of them failed its whole batch, with the ids of actor, process and node in the body.
TEST_CASE("an output that cannot be sent fails its own request alone, and clients are shown no ids",
          "[serving]") {
  auto session = init(0, nullptr);
  auto served =
      serve::run(session, "odd", Odd{}, weights_of(Net()), {.port = 0, .max_batch = 3, .batch_wait = 20s});
  const auto ask_together = [&](const std::string& odd) {
    std::vector<std::future<Asked>> asked;
    for (const std::string& last : {std::string("1"), odd, std::string("2")})
      asked.push_back(std::async(std::launch::async, [&served, last] {
        return ask(served.url(), R"({"inputs": [[1, 2, 3, )" + last + "]]}");
      }));
    std::vector<Asked> answers;
    for (auto& one : asked) answers.push_back(one.get());
    return answers;
  };
  const int replica = served.pids().at(0);
  for (const auto& [sample, what, why] :
       {std::tuple{"97", "the net's output cannot be sent", "layout is Sparse"},
        {"98", "the net's output cannot be sent", "ComplexFloat"},
        {"95", "the net's output is of another number of samples", "return a row for each sample"},
        {"94", "the net", "memory"}}) {
    const auto answers = ask_together(sample);
    CHECK(answers[0].status == 200);
    CHECK(answers[2].status == 200);
    CHECK(answers[1].status == 500);
    CHECK_THAT(answers[1].body.value("error", ""), Contains(what) && Contains(why));
  }
  CHECK(served.pids() == std::vector{replica});  // it outlived all of that

  const Asked died = ask(served.url(), R"({"inputs": [[1, 2, 3, 666], [1, 2, 3, 1], [1, 2, 3, 1]]})");
  CHECK(died.status == 500);
  const std::string told = died.body.value("error", "");
  CHECK(told == "two replicas died while they computed it");

  // A client may say that nothing more comes.
  http::RawClient half(served.port());
  REQUIRE(half.send(http::post("/v1/odd", R"({"inputs": [[1,2,3,4],[1,2,3,4],[1,2,3,4]]})")));
  half.finish_sending();
  http::RawResponse response = half.read();
  while (response.status == 100) response = half.read();
  CHECK(response.status == 200);

  const Asked late = ask(
      "http://127.0.0.1:" + std::to_string(served.port()) + "/v2/models/odd/infer",
      R"({"inputs": [{"name": "input", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}], "parameters": {"timeout": 1}})");
  CHECK(late.status == 504);
  CHECK_THAT(late.body.value("error", ""), Contains("its deadline"));

  // What all of that came to, as Prometheus reads it.
  const std::string metrics = http::RawClient(served.port()).ask(http::get("/metrics")).body;
  CHECK(http::problems_of_exposition(metrics) == "");
  CHECK(http::promtool_on(metrics) == "");
  CHECK_THAT(metrics, Contains("troupe_serve_requests_total{code=\"500\",deployment=\"odd\"} 5\n"));

  CHECK_THROWS_WITH(served.update(wire::Bytes{}), Contains("empty") && !Contains("return_weights"));
  CHECK_THROWS_WITH(served.update(train::RunResult{}), Contains("return_weights"));
  CHECK_THROWS_AS(served.update(train::Snapshot{}), BadConfig);
}

TEST_CASE("a net that hangs costs its own request alone", "[serving]") {
  auto session = init(0, nullptr);
  const Printed printed;
  const auto served = serve::run(session, "odd", Odd{}, weights_of(Net()),
                                 {.replicas = 2, .port = 0, .max_batch = 1, .health_timeout = 2s});
  auto hangs =
      std::async(std::launch::async, [&] { return ask(served.url(), R"({"inputs": [[1, 2, 3, 93]]})"); });
  int answered = 0;
  while (hangs.wait_for(0s) != std::future_status::ready)
    answered += ask(served.url(), R"({"inputs": [[1, 2, 3, 4]]})").status == 200 ? 1 : -1000;
  CHECK(answered > 0);
  const Asked hung = hangs.get();
  CHECK(hung.status == 500);
  CHECK(hung.body.value("error", "") == "two replicas died while they computed it");
  // Only those that crashed were in the log.
  CHECK(e2e::eventually(
      [&] { return printed.text().find("failed: it has not answered for 2 s") != std::string::npos; }));
}

TEST_CASE("a port that somebody else has is told", "[serving]") {
  auto session = init(0, nullptr);
  auto first = serve::run(session, "first", Plain{}, weights_of(Net()), {.port = 0});
  const int port = first.port();
  first.stop();
  const auto own = serve::run(session, "first", Plain{}, weights_of(Net()), {.port = port});
  CHECK(ask(own.url(), kTwo).status == 200);
  const e2e::TempFolder folder;
  e2e::write_file(folder.path() + "/port", std::to_string(port));
  e2e::Program other("program: serves on a port that is in use", folder.path());
  CHECK(other.wait(60s) == "exit code 0");
  CHECK_THAT(e2e::read_file(folder.path() + "/out"), Contains("All tests passed"));
}

TEST_CASE("program: serves on a port that is in use", "[.program]") {
  auto session = init(0, nullptr);
  const int port = std::stoi(e2e::read_file(e2e::program_folder() + "/port"));
  CHECK_THROWS_AS(serve::run(session, "first", Plain{}, weights_of(Net()), {.port = port}), Unavailable);
}

// Was: once for each request that came and once for each that was answered.
TEST_CASE("who waits for a deployment's end is not woken by its requests", "[serving]") {
  auto session = init(0, nullptr);
  auto served = serve::run(session, "plain", Plain{}, weights_of(Net()), {.port = 0});
  std::atomic<pid_t> waiter = 0;
  std::thread waits([&] {
    waiter = ::gettid();
    served.wait();
  });
  REQUIRE(e2e::eventually([&] { return waiter != 0; }));
  const auto woken = [&] {
    const auto status = e2e::read_file("/proc/self/task/" + std::to_string(waiter) + "/status");
    return std::stol(status.substr(status.find("\nvoluntary_ctxt_switches:") + 25));
  };
  http::RawClient client(served.port());
  const auto before = woken();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) REQUIRE(client.ask(http::post("/v1/plain", kTwo)).status == 200);
  const auto looks = (std::chrono::steady_clock::now() - begin) / 50ms;  // for a signal
  CHECK(woken() - before < 2 * looks + 200);
  served.stop();
  waits.join();
}

TEST_CASE("requests wait while the program's node is replaced", "[serving]") {
  auto session = init(0, nullptr);
  const auto served = serve::run(session, "plain", Plain{}, weights_of(Net()), {.port = 0});
  const pid_t node = session.embedded()->node_pids().front();
  ::kill(node, SIGKILL);
  CHECK(ask(served.url(), kTwo).status == 200);
  CHECK(e2e::eventually([&] { return served.pids().size() == 1; }));
  CHECK(e2e::children(session.embedded()->node_pids().front()).size() <= 2);  // nobody lives on beside it
}

TEST_CASE("to zero replicas while nobody asks, and back for a request, which waits for one", "[serving]") {
  auto session = init(0, nullptr);
  const auto served = serve::run(session, "rare", Plain{}, weights_of(Net()),
                                 {.replicas = {0, 2}, .port = 0, .downscale_delay = 1s});
  http::RawClient client(served.port());
  const auto has = [&](const std::string& line) {
    return client.ask(http::get("/metrics")).body.find(line + "\n") != std::string::npos;
  };
  const auto is_at_zero = [&] { return has("troupe_serve_desired_replicas{deployment=\"rare\"} 0"); };
  CHECK(e2e::eventually([&] { return served.pids().empty() && is_at_zero(); }));
  CHECK(client.ask(http::get("/healthz")).status == 200);  // who asks is answered
  CHECK(client.ask(http::get("/v2/models/rare/ready")).status == 200);
  CHECK(ask(served.url(), kTwo, "-H X-Request-Timeout-Ms:1").status == 504);
  CHECK(ask(served.url(), kTwo).status == 200);
  CHECK(has("troupe_serve_cold_starts_total{deployment=\"rare\"} 1"));
  const std::string page = client.ask(http::get("/metrics")).body;
  CHECK(http::problems_of_exposition(page) == "");
  CHECK(http::promtool_on(page) == "");

  // What the last replica died of is told; one that was not needed any more died of nothing.
  const auto status = [&] {
    return e2e::shell(TROUPE_CLI " serve status rare -o json --pid " + std::to_string(::getpid())).output;
  };
  CHECK_THAT(status(), Contains("\"last_failure\": null") && Contains("\"cold_starts\": 1"));
  const auto pids = served.pids();
  REQUIRE(pids.size() == 1);
  ::kill(pids[0], SIGKILL);
  CHECK(e2e::eventually([&] { return status().find("the kernel, as memory ran out") != std::string::npos; }));
  CHECK(ask(served.url(), kTwo).status == 200);
}

namespace {

/// Those that answer v * (sum of the sample) + 100 * v, exactly, three times.
wire::Bytes weights_of_version(float v, float bias) {
  const torch::NoGradGuard no_grad;
  Net net;
  net->hidden->weight.fill_(v);
  net->hidden->bias.fill_(bias);
  return weights_of(net);
}
wire::Bytes weights_of_version(float v) {
  return weights_of_version(v, 100 * v);
}

/// A client asks on and on, and holds every answer to the version that it names.
struct Client {
  int asked = 0;
  std::map<int, int> answers;  ///< by version
  std::string wrong;

  void ask(int port, unsigned seed, const std::atomic<bool>& stop) {
    http::RawClient client(port);
    for (unsigned n = seed; !stop; n += 7) {
      nlohmann::json inputs;
      for (unsigned row = 0; row < 1 + n % 11; ++row) inputs.push_back({n % 5, row, 1, n % 3});
      const auto response = client.ask(http::post("/v1/plain", nlohmann::json{{"inputs", inputs}}.dump()));
      ++asked;
      if (response.status != 200) return void(wrong = std::to_string(response.status) + response.body);
      const int version = std::stoi(response.headers.at("weights-version"));
      nlohmann::json expected;
      for (const auto& row : inputs) {
        const int sum = row[0].get<int>() + row[1].get<int>() + row[2].get<int>() + row[3].get<int>();
        expected.push_back(std::vector<double>(3, version * sum + 100 * version));
      }
      const auto outputs =
          nlohmann::json::parse(response.body)["outputs"].get<std::vector<std::vector<double>>>();
      if (outputs != expected.get<std::vector<std::vector<double>>>())
        return void(wrong = "version " + std::to_string(version) + " answered " + response.body);
      ++answers[version];
    }
  }
};

}  // namespace

TEST_CASE("weights change under load, and a replica dies: each request is answered, by one version",
          "[serving]") {
  auto session = init(0, nullptr);
  auto served = serve::run(session, "plain", Plain{}, weights_of_version(1),
                           {.replicas = 2, .port = 0, .max_batch = 8});
  CHECK_THROWS_WITH(served.rollback(), Contains("no weights to go back to"));
  std::atomic<bool> stop = false;
  std::vector<Client> clients(4);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < clients.size(); ++i)
    threads.emplace_back([&, i] { clients[i].ask(served.port(), i, stop); });
  const auto answering = [&] {
    return std::stoi(http::RawClient(served.port())
                         .ask(http::post("/v1/plain", R"({"inputs": [[1, 2, 3, 4]]})"))
                         .headers["weights-version"]);
  };

  CHECK(served.update(weights_of_version(2)) == 2);
  CHECK(answering() == 2);
  auto third = std::async(std::launch::async, [&] { return served.update(weights_of_version(3)); });
  ::kill(served.pids().front(), SIGKILL);
  CHECK(third.get() == 3);
  CHECK(answering() == 3);
  CHECK(served.pids().size() == 2);

  // What does not come up leaves the old weights.
  const auto none = checkpoint::write_safetensors(checkpoint::lay_out_safetensors({}).value());
  CHECK_THROWS_WITH(served.update(none), Contains("weights 3 go on") && Contains("hidden.weight"));
  CHECK_THROWS_WITH(served.update(wire::Bytes(100)), Contains("cannot update 'plain'"));
  CHECK_THROWS_WITH(served.update(weights_of_version(6, kDies)), Contains("died in a row"));
  CHECK_THROWS_AS(served.update("/no/such/file"), BadConfig);
  CHECK(served.version() == 3);
  CHECK(answering() == 3);

  CHECK(served.update(weights_of_version(7)) == 7);  // a number that was given stays given
  CHECK(served.rollback() == 3);
  CHECK(answering() == 3);
  CHECK(served.rollback() == 7);
  const auto metrics = http::RawClient(served.port()).ask(http::get("/metrics")).body;
  CHECK_THAT(metrics, Contains("troupe_serve_weights_version{deployment=\"plain\"} 7\n") &&
                          Contains("troupe_serve_updates_total{deployment=\"plain\",result=\"done\"} 5\n") &&
                          Contains("troupe_serve_updates_total{deployment=\"plain\",result=\"failed\"} 3\n"));
  stop = true;
  for (auto& thread : threads) thread.join();
  std::map<int, int> answers;
  for (const Client& client : clients) {
    CHECK(client.wrong == "");
    CHECK(client.asked > 0);
    for (const auto& [version, count] : client.answers) answers[version] += count;
  }
  CHECK(answers.size() == 4);
  std::string counts;
  for (const auto& [version, count] : answers)
    counts += " version " + std::to_string(version) + ": " + std::to_string(count);
  std::printf("answers by%s\n", counts.c_str());
}

// Was: run() neither returned nor threw, as long as another one could be started.
TEST_CASE("replicas that die in their first batch fail serve::run()", "[serving]") {
  auto session = init(0, nullptr);
  const auto run = [&] {
    return serve::run(session, "dies", Plain{}, weights_of_version(1, kDies), {.port = 0});
  };
  CHECK_THROWS_AS(run(), Unavailable);
  CHECK_THROWS_WITH(run(), Contains("no replica comes up: 5 starts in a row failed"));
}

// Was: the piece that found none was never sent, and its replica came too late: the update failed, or, of
// many replicas that loaded at a time, the deployment.
TEST_CASE("weights wait for room in the program's own memory", "[serving]") {
  auto session = init(0, nullptr);
  const Printed printed;
  const HeavyNet net;
  auto served = serve::run(session, "heavy", Heavy{}, weights_of(*net), {.port = 0, .start_timeout = 60s});
  std::vector<ObjectRef<std::vector<std::byte>>> objects;
  const auto fill = [&](std::size_t bytes) {
    const NoWaitScope in_own_memory;
    const std::vector<std::byte> value(bytes);
    try {
      for (;;) objects.push_back(session.put(value));
    } catch (const LimitExceeded&) {  // it is full
    }
  };
  fill(std::size_t{16} << 20);
  fill(std::size_t{1} << 20);
  CHECK(objects.size() > 60);
  auto update = std::async(std::launch::async, [&] { return served.update(weights_of(*net)); });
  const char* const told = "heavy: the weights of replica 2 wait for room: ";
  CHECK(e2e::eventually([&] { return printed.text().find(told) != std::string::npos; }));
  objects.clear();
  CHECK(update.get() == 2);
}

TEST_CASE("an update ends with its deployment, and with a word from elsewhere", "[serving]") {
  auto session = init(0, nullptr);
  auto served = serve::run(session, "plain", Plain{}, weights_of_version(1), {.replicas = 2, .port = 0});
  const auto update = [&] {
    return std::async(std::launch::async, [&] { return served.update(weights_of_version(2)); });
  };
  const auto rolls_out = [&] {
    const auto metrics = http::RawClient(served.port()).ask(http::get("/metrics")).body;
    return metrics.find("troupe_serve_update_version{deployment=\"plain\"} 0\n") == std::string::npos;
  };
  auto first = update();
  REQUIRE(e2e::eventually(rolls_out));
  CHECK_THROWS_WITH(served.update(weights_of_version(3)), Contains("another update is under way"));
  CHECK(first.get() == 2);  // it lost nothing by that
  first = update();
  REQUIRE(e2e::eventually(rolls_out));
  CHECK(served.rollback() == 2);
  CHECK_THROWS_WITH(first.get(), Contains("rolled back"));
  auto second = update();
  REQUIRE(e2e::eventually(rolls_out));
  served.stop();
  CHECK_THROWS_WITH(second.get(), Contains("the deployment ends"));
  CHECK_THROWS_AS(served.update(weights_of_version(2)), Unavailable);
}

TEST_CASE("troupe serve shows a program's deployments, and changes them while they answer", "[serving]") {
  auto session = init(0, nullptr);
  auto served = serve::run(session, "plain", Plain{}, weights_of_version(1), {.replicas = {1, 3}, .port = 0});
  const std::string me = std::to_string(::getpid());
  const auto cli = [&](const std::string& words) { return e2e::shell(TROUPE_CLI " serve " + words); };
  const auto on_plain = [&](const std::string& command, const std::string& more = "") {
    return cli(command + " plain --pid " + me + " " + more);
  };
  const e2e::Ran list = cli("list");
  CHECK(list.code == 0);
  CHECK_THAT(list.output, Contains(" " + me + "  " + served.url() + "\n"));
  std::atomic<bool> stop = false;
  Client client;
  std::thread asks([&] { client.ask(served.port(), 1, stop); });

  CHECK_THAT(on_plain("scale", "2").output, Contains(" of 2 replicas are ready"));
  CHECK(e2e::eventually([&] { return served.pids().size() == 2; }));
  const auto status = nlohmann::json::parse(on_plain("status", "-o json").output);
  CHECK(status["state"] == "ready");
  CHECK(status["replicas"]["min"] == 2);
  CHECK(status["replicas"]["pids"].size() == 2);
  CHECK(status["weights"] == 1);

  const e2e::TempFolder folder;
  const auto second = weights_of_version(2);
  e2e::write_file(folder / "second", {reinterpret_cast<const char*>(second.data()), second.size()});
  e2e::write_file(folder / "nonsense", "nonsense");
  CHECK(on_plain("update", folder / "second").output == "plain: weights 2 answer\n");
  CHECK(served.version() == 2);
  const e2e::Ran bad = on_plain("update", folder / "nonsense");
  CHECK(bad.code == 1);
  CHECK_THAT(bad.output, Contains("troupe: cannot update 'plain': weights 2 go on"));
  CHECK(on_plain("rollback").output == "plain: weights 1 answer\n");
  const std::string page = "export TROUPE_FOLDER=" + (folder / "state") +
                           "; " TROUPE_CLI
                           " start --head --port 0 --cpus 1 --detach >/dev/null; timeout 60 " TROUPE_CLI
                           " dashboard --port 0 >" +
                           (folder / "url") + " & for i in $(seq 300); do [ -s " + (folder / "url") +
                           " ] && break; sleep 0.1; done; curl -sS --noproxy '*' $(cat " + (folder / "url") +
                           ")api/snapshot; curl -sS --noproxy '*' $(cat " + (folder / "url") +
                           ")metrics; kill %1; " TROUPE_CLI " stop >/dev/null";
  CHECK_THAT(e2e::shell(page).output,
             Contains("\"name\":\"plain\"") && Contains("\"pid\":" + me + ",") &&
                 Contains("troupe_serve_requests_total{port=\"" + std::to_string(served.port()) +
                          "\",process=\"" + me + "\""));
  CHECK_THROWS_AS(served.scale({2, 1}), BadConfig);
  CHECK_THAT(on_plain("status", "--port 1").output, Contains("there is no deployment 'plain' here"));

  auto waits = std::async(std::launch::async, [&] { return served.wait(); });
  stop = true;
  asks.join();
  CHECK(client.wrong == "");
  CHECK(client.answers.size() == 2);
  CHECK(on_plain("stop").output == "stopped plain\n");
  CHECK(waits.get() == 0);
  CHECK(on_plain("status").code == 1);
}

TEST_CASE("HTTPS with a certificate and its key; and what is neither is told", "[serving]") {
  auto session = init(0, nullptr);
  const test::TempFolder folder;
  const std::string certificate = folder.path() + "/certificate.pem", key = folder.path() + "/key.pem";
  REQUIRE(
      e2e::shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj "
                 "/CN=here -addext subjectAltName=IP:127.0.0.1 -keyout " +
                 key + " -out " + certificate)
          .code == 0);
  const serve::ServeOptions options{.port = 0, .tls_certificate = certificate, .tls_key = key};
  auto served = serve::run(session, "plain", Plain{}, weights_of_version(2), options);
  CHECK(served.url() == "https://127.0.0.1:" + std::to_string(served.port()) + "/v1/plain");
  const std::string trust = "--cacert " + certificate;
  const Asked answer = ask(served.url(), kTwo, trust);
  REQUIRE(answer.status == 200);
  CHECK(answer.body["outputs"][0][0].get<double>() == 220);
  // Many samples, which come in several records; several requests on one connection; the server's own end.
  nlohmann::json samples;
  for (int i = 0; i < 1000; ++i) samples.push_back({i % 7, 0.125, 0.25, 0.5});
  e2e::write_file(folder.path() + "/many", nlohmann::json{{"inputs", samples}}.dump());
  const Asked many = ask(served.url(), "@" + folder.path() + "/many", trust);
  CHECK(many.body["outputs"].size() == 1000);
  const auto twice =
      e2e::shell("curl -sv -m 20 " + trust + " -d '" + kTwo + "' " + served.url() + " " + served.url());
  CHECK_THAT(twice.output, Contains("Re-using existing connection") && Contains("TLSv1.3"));
  CHECK(ask(served.url(), kTwo, trust + " -H 'Connection: close'").status == 200);
  CHECK(ask(served.url(), kTwo, trust + " --tls-max 1.1").status == 0);
  CHECK(ask(served.url(), kTwo).status == 0);  // curl trusts nobody's certificate
  CHECK(http::RawClient(served.port()).ask(http::get("/healthz")).status == 0);  // no TLS

  auto other = options;
  other.port = served.port();
  other.tls_certificate = other.tls_key = "";
  CHECK_THROWS_WITH(serve::run(session, "other", Plain{}, weights_of_version(2), other),
                    Contains("certificate"));
  other = options;
  other.tls_certificate = "/no/such/file";
  CHECK_THROWS_WITH(serve::run(session, "other", Plain{}, weights_of_version(2), other),
                    Contains("'/no/such/file' is no certificate"));
  other.tls_certificate = certificate;
  other.tls_key = certificate;
  CHECK_THROWS_WITH(serve::run(session, "other", Plain{}, weights_of_version(2), other),
                    Contains("is no key of that certificate"));
  other.tls_key = "";
  CHECK_THROWS_AS(serve::run(session, "other", Plain{}, weights_of_version(2), other), BadConfig);
  served.stop();
}

}  // namespace serving_test
