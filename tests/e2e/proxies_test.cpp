// HTTP on every node: proxies in processes of their own send requests straight to the replicas. Their rules
// are in tests/actors/serve/proxies_test.cpp; soak_serving loads them while everything dies.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include "actors/serve/serve.hpp"
#include "tests/actors/serve/http/raw_client.hpp"
#include "tests/e2e/support.hpp"
#include "tests/e2e/two_nodes.hpp"
#include "tests/e2e/weights.hpp"

namespace proxies_test {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() { register_module("linear", linear); }
  torch::Tensor forward(const torch::Tensor& x) {
    if (x.max().item<float>() > 100) throw std::out_of_range("a number above 100");
    return linear(x);
  }
  torch::nn::Linear linear{2, 1};
};
TORCH_MODULE(Net);
struct Sum {
  Net model() const { return Net(); }
  data::FieldSpec input() const { return {.shape = {2}}; }
};

struct Room {};

/// Those that answer version * sum.
wire::Bytes weights_of(int version) {
  const torch::NoGradGuard no_grad;
  Net net;
  net->linear->weight.fill_(version);
  net->linear->bias.fill_(0);
  return e2e::weights_of(net);
}

int port_of(const std::string& url) {
  return std::stoi(url.substr(url.find(':', 6) + 1));
}
http::RawResponse ask(const std::string& url, const std::string& rows = "[1, 2]") {
  return http::RawClient(port_of(url)).ask(http::post("/v1/sum", "{\"inputs\": [" + rows + "]}"));
}
/// As many proxies as nodes listen, the program among them, and each has heard of the deployment.
bool all_answer(const serve::Served& served, std::size_t nodes) {
  return e2e::eventually([&] {
    const auto urls = served.urls();
    return urls.size() == nodes &&
           std::all_of(urls.begin(), urls.end(), [](const auto& url) { return ask(url).status == 200; });
  });
}
/// Processes of the node that are no replica.
std::set<pid_t> proxies_of(pid_t node, const serve::Served& served) {
  std::set<pid_t> pids;
  for (const pid_t one : e2e::children(node)) pids.insert(one);
  for (const pid_t one : served.pids()) pids.erase(one);
  return pids;
}

/// A hidden test case that joins a cluster of two nodes; they tell each other by files how far they are.
struct JoinedProgram {
  explicit JoinedProgram(const std::string& test_case) {
    e2e::write_file(folder / "address", cluster.address);
    e2e::write_file(folder / "folder", cluster.root + "/a");
    program.emplace(test_case, folder.path());
  }
  bool is_there(const std::string& name) const {
    return e2e::eventually([&] { return !e2e::read_file(folder / name).empty(); }, 120s);
  }
  int drain_two(const std::string& grace) const {
    return cluster.troupe("drain --folder " + cluster.root + "/a two --grace " + grace + " --no-wait").code;
  }
  bool two_has_ended(Duration timeout) const {
    return e2e::eventually([&] { return ClusterFolder::open(cluster.root + "/b").value().running().empty(); },
                           timeout);
  }
  void ends_well() {
    CHECK(program->wait(60s) == "exit code 0");
    CHECK_THAT(e2e::read_file(folder / "out"), Contains("All tests passed"));
  }
  const e2e::TwoNodes cluster;
  const e2e::TempFolder folder;
  std::optional<e2e::Program> program;
};
/// In it.
DriverSession join_cluster() {
  InitOptions options;
  options.address = e2e::read_file(e2e::program_folder() + "/address");
  options.folder = e2e::read_file(e2e::program_folder() + "/folder");
  return init(0, nullptr, options);
}
/// Takes all of a node's CPUs.
ActorHandle<Room> fill(const DriverSession& session, const std::string& name) {
  NodeId node;
  for (const auto& one : session.nodes()) {
    if (one.name == name) node = one.id;
  }
  return session.spawn<Room>({.num_cpus = 4, .isolated = true, .node = node});
}

}  // namespace

TEST_CASE("every node answers, without the head, too; a proxy that dies and a node that joins get one",
          "[serving]") {
  auto session = init(0, nullptr, {.nodes = 2});
  auto served =
      serve::run(session, "sum", Sum{}, weights_of(1), {.replicas = 1, .port = 0, .on_every_node = true});
  CHECK(served.urls().size() ==
        2);  // was: later, and a successor at another port had the former program told
  REQUIRE(all_answer(served, 2));
  const std::string there = served.urls().at(1);
  CHECK(ask(there).body == "{\"outputs\": [[3]]}\n");
  CHECK(ask(there).headers.at("weights-version") == "1");
  CHECK(ask(there, "[1, 2, 3]").status == 400);
  CHECK_THAT(ask(there, "[1, 200]").body, Contains("a number above 100"));
  const auto get = [&](const std::string& path) {
    return http::RawClient(port_of(there)).ask(http::get(path));
  };
  CHECK(get("/healthz").status == 200);
  CHECK_THAT(get("/v2/models/sum").body, Contains("\"versions\":[\"1\"]"));
  CHECK_THAT(get("/metrics").body, Contains("troupe_serve_requests_total{code=\"200\",deployment=\"sum\"} "));
  CHECK(get("/v1/other").status == 404);

  // New weights, at every proxy when update() returns.
  CHECK(served.update(weights_of(2)) == 2);
  CHECK(ask(there).body == "{\"outputs\": [[6]]}\n");

  // A replica dies: its successor is asked.
  ::kill(served.pids().at(0), SIGKILL);
  CHECK(ask(there).status == 200);

  const pid_t head = session.embedded()->head_pid();
  ::kill(head, SIGKILL);
  CHECK(ask(there).status == 200);
  CHECK(e2e::eventually([&] { return session.embedded()->head_pid() != head; }));

  const auto before = proxies_of(session.embedded()->node_pids().at(1), served);
  REQUIRE(!before.empty());
  for (const pid_t pid : before) ::kill(pid, SIGKILL);
  CHECK(e2e::eventually([&] { return served.urls().size() == 1; }));
  CHECK(all_answer(served, 2));
  CHECK(served.urls().at(1) == there);  // clients know it
  CHECK(ask(there).body == "{\"outputs\": [[6]]}\n");

  const std::string former = served.urls().at(1);
  ::kill(session.embedded()->node_pids().at(1), SIGKILL);  // another one joins in its place
  CHECK(e2e::eventually([&] { return served.urls().size() == 1 || served.urls().at(1) != former; }));
  CHECK(all_answer(served, 2));
}

TEST_CASE("what a proxy has accepted is answered before the deployment ends", "[serving]") {
  auto session = init(0, nullptr, {.nodes = 2});
  auto served = serve::run(session, "sum", Sum{}, weights_of(1),
                           {.replicas = 1, .port = 0, .on_every_node = true, .drain_timeout = 200s});
  REQUIRE(all_answer(served, 2));
  const std::string there = served.urls().at(1);
  const pid_t replica = served.pids().at(0);
  // It answered after the signal, on a busy machine: nothing was under way then.
  REQUIRE(e2e::stand_still(replica));
  auto waits = std::async(std::launch::async, [&] { return ask(there); });
  const auto ongoing = [&] {
    const auto metrics = http::RawClient(served.port()).ask(http::get("/metrics")).body;
    return metrics.find("troupe_serve_ongoing_requests{deployment=\"sum\"} 1\n") != std::string::npos;
  };
  CHECK(e2e::eventually(ongoing));  // the program knows of a proxy's
  auto stopped = std::async(std::launch::async, [&] { served.stop(); });
  // What was asked before the proxy heard of the end waits as well: 503 came of the drain's timeout then, for
  // all.
  std::vector<std::future<decltype(ask(there))>> earlier;
  CHECK(e2e::eventually([&] {
    auto asked = std::async(std::launch::async, [&] { return ask(there); });
    if (asked.wait_for(500ms) == std::future_status::ready) return asked.get().status == 503;
    earlier.push_back(std::move(asked));
    return false;
  }));
  ::kill(replica, SIGCONT);
  const auto answer = waits.get();
  INFO(answer.body);  // the reason
  CHECK(answer.status == 200);
  stopped.get();
  CHECK(e2e::eventually([&] { return proxies_of(session.embedded()->node_pids().at(1), served).empty(); }));
}

TEST_CASE("a node that drains: its proxy answers what it has accepted, and ends; the others serve on",
          "[serving]") {
  JoinedProgram program("program: serves on the nodes of a cluster");
  REQUIRE(program.is_there("under_way"));
  CHECK(program.drain_two("60") == 0);
  REQUIRE(program.is_there("drains"));
  CHECK(program.two_has_ended(20s));
  program.ends_well();
}

TEST_CASE("program: serves on the nodes of a cluster", "[.program]") {
  const std::string folder = e2e::program_folder();
  auto session = join_cluster();
  const auto room = fill(session, "two");  // the replica goes to node one
  auto served = serve::run(session, "sum", Sum{}, weights_of(1),
                           {.replicas = 1, .port = 0, .on_every_node = true, .cpus = 1});
  session.kill(room);
  REQUIRE(all_answer(served, 3));  // its own, and one on each node
  // At each proxy a request is under way: the replica stands still.
  const auto urls = served.urls();
  const pid_t replica = served.pids().at(0);
  REQUIRE(e2e::stand_still(replica));
  std::vector<std::future<http::RawResponse>> under_way;
  for (std::size_t i = 1; i < urls.size(); ++i)
    under_way.push_back(std::async(std::launch::async, [url = urls[i]] { return ask(url); }));
  const auto ongoing = [&] {
    const auto metrics = http::RawClient(served.port()).ask(http::get("/metrics")).body;
    return metrics.find("troupe_serve_ongoing_requests{deployment=\"sum\"} 2\n") != std::string::npos;
  };
  CHECK(e2e::eventually(ongoing));
  e2e::write_file(folder + "/under_way", "yes");
  const auto refuses = [](const std::string& url) {
    return e2e::shell("curl -s -m 5 " + url.substr(0, url.find("/v1")) + "/healthz").code == 7;
  };
  CHECK(e2e::eventually([&] { return refuses(urls.at(1)) || refuses(urls.at(2)); }));
  e2e::write_file(folder + "/drains", "yes");
  // The program looks at the nodes each second, and one that drains is not among them: its proxy was killed.
  std::this_thread::sleep_for(2500ms);
  ::kill(replica, SIGCONT);
  for (auto& one : under_way) CHECK(one.get().status == 200);
  CHECK(e2e::eventually([&] { return served.urls().size() == 2; }));
  for (const auto& url : served.urls()) CHECK(ask(url).status == 200);
}

TEST_CASE("a node that drains: its replica ends as soon as another one answers", "[serving]") {
  JoinedProgram program("program: serves on a node that drains");
  REQUIRE(program.is_there("serves"));
  CHECK(program.drain_two("3600") == 0);  // an hour, if it waited for that
  CHECK(program.two_has_ended(120s));
  e2e::write_file(program.folder / "drained", "yes");
  program.ends_well();
}

TEST_CASE("program: serves on a node that drains", "[.program]") {
  const std::string folder = e2e::program_folder();
  auto session = join_cluster();
  const auto room = fill(session, "one");
  auto served = serve::run(session, "sum", Sum{}, weights_of(1), {.replicas = 1, .port = 0, .cpus = 1});
  session.kill(room);
  const auto before = served.pids();
  e2e::write_file(folder + "/serves", "yes");
  int asked = 0;
  const auto is_drained = [&] {
    ++asked;
    CHECK(ask(served.url()).status == 200);
    return !e2e::read_file(folder + "/drained").empty();
  };
  CHECK(e2e::eventually(is_drained, 180s));
  CHECK(asked > 1);
  CHECK(served.pids() != before);
}

TEST_CASE("a port that is taken on another node is told, and the rest serves", "[serving]") {
  const e2e::TempFolder folder;
  e2e::Program program("program: serves on one port twice", folder.path());
  CHECK(program.wait(60s) == "exit code 0");
  CHECK_THAT(e2e::read_file(folder.path() + "/err"), Contains("proxy 1 is gone, and is started again: ") &&
                                                         Contains("cannot listen on 127.0.0.1:") &&
                                                         Contains("Address already in use"));
}

TEST_CASE("program: serves on one port twice", "[.program]") {
  auto session = init(0, nullptr, {.nodes = 2});
  auto first = serve::run(session, "first", Sum{}, weights_of(1), {.replicas = 1, .port = 0});
  const int port = first.port();
  first.stop();
  // Both nodes are on this machine, and the program has the port.
  auto served =
      serve::run(session, "sum", Sum{}, weights_of(1), {.replicas = 1, .port = port, .on_every_node = true});
  const auto told = [] {
    return e2e::read_file(e2e::program_folder() + "/err").find("is started again") != std::string::npos;
  };
  CHECK(e2e::eventually(told));
  CHECK(ask(served.url()).status == 200);
  CHECK(served.urls().size() == 1);
}

// Was: ten seconds, whatever came.
TEST_CASE("a signal ends the wait for a proxy that does not listen", "[serving]") {
  const e2e::TempFolder folder;
  e2e::Program program("program: is interrupted while a proxy does not listen", folder.path());
  CHECK(program.wait(60s) == "exit code 0");
  CHECK_THAT(e2e::read_file(folder.path() + "/err"), !Contains("on some node no proxy listens yet"));
}

TEST_CASE("program: is interrupted while a proxy does not listen", "[.program]") {
  ::signal(SIGINT, SIG_DFL);  // not Catch's
  auto session = init(0, nullptr, {.nodes = 2});
  auto first = serve::run(session, "first", Sum{}, weights_of(1), {.replicas = 1, .port = 0});
  const int port = first.port();
  first.stop();
  std::thread interrupts([url = "http://127.0.0.1:" + std::to_string(port) + "/v1/sum"] {
    e2e::eventually([&] {
      try {
        return ask(url).status == 200;
      } catch (const std::exception&) {  // it does not listen yet
        return false;
      }
    });
    ::kill(::getpid(), SIGINT);
  });
  auto served =
      serve::run(session, "sum", Sum{}, weights_of(1), {.replicas = 1, .port = port, .on_every_node = true});
  interrupts.join();
  CHECK(served.wait() == SIGINT);
}

}  // namespace proxies_test
