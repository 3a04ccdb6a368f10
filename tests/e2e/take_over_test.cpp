// New code in place: a program that takes the place of another one that serves, with requests under way all
// the time. The programs are hidden cases of this one: they answer with what their variable says, as changed
// code would.
#include "actors/serve/take_over.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "actors/serve/serve.hpp"
#include "tests/actors/serve/http/raw_client.hpp"
#include "tests/e2e/serving_cluster.hpp"
#include "tests/e2e/support.hpp"

namespace take_over_test {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Contains;
using e2e::Ran;

namespace {

/// Answers its number, and takes a moment for it.
struct Numbered {
  int number = 0;
  data::FieldSpec input() const { return {.shape = {1}}; }
  torch::Tensor predict(const torch::Tensor& input) const {
    std::this_thread::sleep_for(5ms);
    return torch::full({input.size(0), 1}, number, torch::kInt64);
  }
};

int number_of_program() {
  const char* const text = std::getenv("NUMBER");
  return text == nullptr ? 0 : std::atoi(text);
}

/// What serves on this machine under that name, as troupe serve says it; null: not one.
nlohmann::json status_of(const std::string& name) {
  const Ran ran = e2e::shell(TROUPE_CLI " serve status " + name + " -o json");
  return ran.code == 0 ? nlohmann::json::parse(ran.output, nullptr, false) : nlohmann::json();
}
bool is_served_by_another_than(const std::string& name, int pid) {
  return e2e::eventually([&] {
    const auto status = status_of(name);
    return status.is_object() && status["pid"] != pid;
  });
}

/// Asks on and on: on one connection as long as the server leaves it open, or on a new one each time.
struct AsksOn {
  std::map<int, int> answers;  ///< by number
  std::string wrong;
  void ask(int port, bool keeps, const std::string& name, const std::atomic<bool>& stop) try {
    auto client = std::make_unique<http::RawClient>(port);
    while (!stop) {
      const auto response = client->ask(http::post("/v1/" + name, R"({"inputs": [[1]]})"));
      if (response.status != 200) return void(wrong = std::to_string(response.status) + " " + response.body);
      ++answers[nlohmann::json::parse(response.body)["outputs"][0][0].get<int>()];
      // As a client of HTTP does: one that is idle for a while, on a busy machine, may be closed.
      const bool closes = response.headers.contains("connection") || client->closed_by_now();
      if (closes || !keeps) client = std::make_unique<http::RawClient>(port);
    }
  } catch (const std::exception& error) {
    wrong = error.what();
  }
};

struct Load {
  std::atomic<bool> stop = false;
  std::vector<AsksOn> clients;
  std::vector<std::thread> threads;
  Load(int port, const std::string& name) : clients(4) {
    for (std::size_t i = 0; i < clients.size(); ++i)
      threads.emplace_back([this, i, port, name] { clients[i].ask(port, i % 2 == 0, name, stop); });
  }
  ~Load() { end(); }
  void end() {
    stop = true;
    for (auto& thread : threads) thread.join();
    threads.clear();
  }
  /// Each client has had an answer with this number.
  std::set<int> numbers() {
    end();
    std::set<int> all;
    for (const AsksOn& client : clients) {
      CHECK(client.wrong == "");
      for (const auto& [number, count] : client.answers) all.insert(number);
    }
    return all;
  }
};

using Cluster = e2e::ServingCluster;

std::unique_ptr<e2e::Program> start_numbered(const char* program, int number, const e2e::TempFolder& folder,
                                             int port = 0) {
  ::setenv("NUMBER", std::to_string(number).c_str(), 1);
  ::setenv("PORT_TO_TAKE", std::to_string(port).c_str(), 1);
  return std::make_unique<e2e::Program>(program, folder.path());
}
int port_to_take() {
  const char* const text = std::getenv("PORT_TO_TAKE");
  return text == nullptr ? 0 : std::atoi(text);
}

/// That nobody has now.
int free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  socklen_t length = sizeof at;
  REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0);
  return ntohs(at.sin_port);
}

std::string self() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace

TEST_CASE("a numbered program", "[.program]") {
  auto session = init(0, nullptr);
  const int number = number_of_program();
  const bool takes = number > 1;
  std::optional<serve::Served> more;  // code that has a deployment more, before those that were there
  if (takes)
    more.emplace(
        serve::run(session, "more", Numbered{100 * number}, {.port = port_to_take(), .take_over = true}));
  auto first = serve::run(session, "numbered", Numbered{number}, {.port = 0, .take_over = takes});
  const serve::ServeOptions same{.port = first.port(), .take_over = takes};
  auto second = serve::run(session, "beside", Numbered{10 * number}, same);
  first.wait();
  second.wait();
}

TEST_CASE("a program takes the place of another one, with both of its deployments: no request is lost",
          "[serving]") {
  const e2e::TempFolder one, two;
  auto first = start_numbered("a numbered program", 1, one);
  REQUIRE(is_served_by_another_than("beside", 0));
  const auto before = status_of("numbered");
  const int port = before["port"].get<int>();
  Load numbered(port, "numbered"), beside(port, "beside");
  auto second = start_numbered("a numbered program", 2, two, port);
  REQUIRE(is_served_by_another_than("beside", before["pid"].get<int>()));
  CHECK(status_of("numbered")["port"] == port);
  // The former program answers what it has, and ends by itself.
  CHECK(e2e::eventually([&] { return !e2e::is_alive(before["pid"].get<int>()); }));
  http::RawClient last(port);
  CHECK_THAT(last.ask(http::post("/v1/numbered", R"({"inputs": [[1]]})")).body, Contains("[[2]]"));
  CHECK_THAT(last.ask(http::post("/v1/more", R"({"inputs": [[1]]})")).body, Contains("[[200]]"));
  CHECK(numbered.numbers() == std::set<int>{1, 2});
  CHECK(beside.numbers() == std::set<int>{10, 20});
}

TEST_CASE("a numbered program on two nodes", "[.program]") {
  auto session = init(0, nullptr, {.nodes = 2});
  const int number = number_of_program();
  auto served = serve::run(session, "everywhere", Numbered{number},
                           {.port = 0, .on_every_node = true, .take_over = number > 1});
  std::thread tells([&] {
    e2e::eventually([&] { return served.urls().size() == 2; });
    std::string text;
    for (const auto& url : served.urls()) text += url + "\n";
    e2e::write_file(e2e::program_folder() + "/urls", text);
  });
  served.wait();
  tells.join();
}

TEST_CASE("a program that serves on every node is replaced on every node: no request is lost", "[serving]") {
  const e2e::TempFolder one, two;
  auto first = start_numbered("a numbered program on two nodes", 1, one);
  REQUIRE(e2e::eventually([&] { return !e2e::read_file(one / "urls").empty(); }, 120s));
  const auto before = status_of("everywhere");
  std::vector<int> ports;
  std::istringstream lines(e2e::read_file(one / "urls"));
  for (std::string url; std::getline(lines, url);)
    ports.push_back(std::stoi(url.substr(url.find(':', 6) + 1)));
  REQUIRE(ports.size() == 2);
  const auto answers_there = [&] {
    return http::RawClient(ports[1]).ask(http::post("/v1/everywhere", R"({"inputs": [[1]]})")).body;
  };
  CHECK(e2e::eventually([&] { return answers_there().find("[[1]]") != std::string::npos; }));
  Load here(ports[0], "everywhere"), there(ports[1], "everywhere");
  auto second = start_numbered("a numbered program on two nodes", 2, two);
  REQUIRE(is_served_by_another_than("everywhere", before["pid"].get<int>()));
  CHECK(e2e::eventually([&] { return !e2e::is_alive(before["pid"].get<int>()); }));
  CHECK_THAT(answers_there(), Contains("[[2]]"));
  CHECK(here.numbers() == std::set<int>{1, 2});
  CHECK(there.numbers() == std::set<int>{1, 2});
  CHECK(e2e::eventually([&] { return e2e::read_file(two / "urls") == e2e::read_file(one / "urls"); }, 120s));
}

TEST_CASE("a program that never waits", "[.program]") {
  auto session = init(0, nullptr);
  const auto served = serve::run(session, "single", Numbered{2}, {.port = 0, .take_over = true});
  e2e::eventually([&] { return !std::filesystem::exists(e2e::program_folder() + "/goes_on"); }, 600s);
}

// Was: the other one went on answering, and nobody was told why.
TEST_CASE("a program that takes a place and never calls wait() is told what it misses", "[serving]") {
  const e2e::TempFolder one, two;
  auto first = start_numbered("a program of one deployment", 1, one);
  REQUIRE(is_served_by_another_than("single", 0));
  const auto before = status_of("single");
  e2e::write_file(two / "goes_on", "");
  auto second = start_numbered("a program that never waits", 2, two);
  const std::string answers = "'single' is ready, and process " + std::to_string(before["pid"].get<int>()) +
                              " answers at port " + std::to_string(before["port"].get<int>()) +
                              " until this program calls wait()";
  CHECK(
      e2e::eventually([&] { return e2e::read_file(two / "err").find(answers) != std::string::npos; }, 120s));
  std::filesystem::remove(two / "goes_on");
  CHECK(second->wait(120s) == "exit code 0");
  CHECK(status_of("single")["pid"] == before["pid"]);
}

TEST_CASE("a program at the port of another", "[.program]") {
  auto session = init(0, nullptr);
  auto other = serve::run(session, "other", Numbered{7}, {.port = port_to_take(), .take_over = true});
  CHECK_THROWS_WITH(other.wait(), Contains("cannot listen on port") && Contains("serves 'single' there"));
}

TEST_CASE("who only has the port of another program does not take its place", "[serving]") {
  const e2e::TempFolder one, two;
  auto first = start_numbered("a program of one deployment", 1, one);
  REQUIRE(is_served_by_another_than("single", 0));
  const int port = status_of("single")["port"].get<int>();
  auto second = start_numbered("a program at the port of another", 2, two, port);
  CHECK(second->wait(120s) == "exit code 0");
  CHECK_THAT(e2e::read_file(two / "out"), Contains("All tests passed"));
  http::RawClient last(port);
  CHECK_THAT(last.ask(http::post("/v1/single", R"({"inputs": [[1]]})")).body, Contains("[[1]]"));
}

TEST_CASE("troupe serve run --replace starts changed code in the place of a job that serves", "[serving]") {
  const Cluster cluster("numbered");
  // A binary that changes: what is at its path says the number.
  const std::string program = cluster.root + "/program";
  const auto install = [&](int number) {
    std::ofstream(program + ".new") << "#!/bin/sh\nexport NUMBER=" << number << "\nexec " << self()
                                    << " 'a program of one deployment'\n";
    std::filesystem::permissions(program + ".new", std::filesystem::perms::owner_all);
    std::filesystem::rename(program + ".new", program);
  };
  const std::string text = "program = \"" + program + "\"\n[deployments.single]\nport = 0\nmax_batch = 8\n";
  install(1);
  std::ofstream(cluster.root + "/w") << "weights";
  const Ran weighty = cluster.run(text + "weights = \"w\"\n");
  CHECK(weighty.code == 1);
  CHECK_THAT(weighty.output, Contains("and its struct has no net"));
  const Ran first = cluster.run(text);
  INFO(first.output);
  REQUIRE(first.code == 0);
  const auto before = status_of("single");
  Load load(before["port"].get<int>(), "single");
  install(2);
  CHECK_THAT(cluster.run(text + "max_queue = 99\n").output, Contains("with --replace another process"));
  const Ran replaced = cluster.run(text, "--replace");
  INFO(replaced.output);
  CHECK(replaced.code == 0);
  CHECK_THAT(replaced.output, Contains("has answered what it had, and ended"));
  CHECK(status_of("single")["port"] == before["port"]);
  CHECK(status_of("single")["pid"] != before["pid"]);
  CHECK_THAT(cluster.run(text).output, Contains("nothing has changed"));

  // A name that the program does not serve is found before the other one is told to go. Was: that one ended,
  // and nobody said so.
  const Ran unserved = cluster.run(text + "[deployments.other]\nreplicas = 1\n", "--replace");
  CHECK(unserved.code == 1);
  CHECK_THAT(unserved.output, Contains("the program ended before it served 'other'"));
  CHECK(status_of("single")["port"] == before["port"]);

  // Was: it had taken the place when serve::run() returned, and nobody served.
  std::ofstream(program) << "#!/bin/sh\nexport DIES=1\nexec " << self() << " 'a program of one deployment'\n";
  const Ran dies = cluster.run(text, "--replace");
  CHECK(dies.code == 1);
  CHECK_THAT(dies.output, Contains("the program ended before it served 'single'") &&
                              Contains("; the one before it serves on"));
  CHECK(status_of("single")["port"] == before["port"]);

  // What does not come up leaves the one that serves.
  std::ofstream(program) << "#!/bin/sh\necho it is broken\nexit 1\n";
  const Ran broken = cluster.run(text, "--replace");
  CHECK(broken.code == 1);
  CHECK_THAT(broken.output, Contains("it is broken"));
  // One that hangs is named as what is to be ended. Was: "apply it on the machine where it runs, or start it
  // again: --restart", which would have ended the one that serves.
  std::ofstream(program) << "#!/bin/sh\nexec sleep 1000\n";
  const Ran hangs = cluster.run(text, "--replace --timeout 2");
  CHECK(hangs.code == 1);
  CHECK_THAT(hangs.output, Contains("troupe: waits until 'single' answers: its program runs on node "));
  CHECK_THAT(hangs.output, Contains("troupe job stop 'numbered~3' ends it, and the one before it serves on"));
  CHECK_THAT(cluster.run(text, "--replace").output,
             Contains("is being started in the place of the one before it") &&
                 Contains("end it, and apply the file to the one before it: "
                          "troupe job stop 'numbered~3'"));
  CHECK(cluster.troupe("job stop numbered~3").code == 0);
  install(3);
  CHECK(cluster.run(text, "--replace").code == 0);
  CHECK(load.numbers() == std::set<int>{1, 2, 3});

  // To another port: nobody takes the former one, whose program ends all the same.
  const int port = free_port();
  const Ran moved =
      cluster.run("program = \"" + program + "\"\n[deployments.single]\nport = " + std::to_string(port) +
                      "\nmax_batch = 8\n",
                  "--replace --timeout 120");
  INFO(moved.output);
  CHECK(moved.code == 0);
  CHECK_THAT(moved.output, Contains("has answered what it had, and ended"));
  CHECK(status_of("single")["port"] == port);
  CHECK(e2e::shell(TROUPE_CLI " serve stop single").code == 0);
}

TEST_CASE("a program of one deployment", "[.program]") {
  auto session = init(0, nullptr);
  auto served = serve::run(session, "single", Numbered{number_of_program()}, {.port = 0});
  if (std::getenv("DIES") != nullptr) ::_exit(7);
  served.wait();
}

TEST_CASE("whose place is taken is told by the programs' answers") {
  using Answers = serve::ServingStatus;
  const std::string both =
      R"({"deployments":[{"name":"a","port":1},{"name":"b","port":1},{"name":"a","port":2}]})";
  const auto find = [](const Answers& answers, const std::string& name, int port,
                       const std::string& job = "") {
    return serve::predecessor_among(answers, {name, "127.0.0.1", port, job});
  };
  CHECK_FALSE(find({}, "a", 0).value());
  CHECK_FALSE(find(Answers{{7, both}}, "c", 0).value());
  const auto one =
      find(Answers{{7, both}, {8, "nonsense"}, {9, "[]"}, {10, R"({"deployments":7})"}}, "a", 1).value();
  REQUIRE(one);
  CHECK(one->pid == 7);
  CHECK(one->names == std::vector<std::string>{"a", "b"});
  CHECK(one->is_certain);
  const auto two = find(Answers{{7, both}}, "a", 0);
  REQUIRE_FALSE(two);
  CHECK_THAT(two.error().message(), Contains("cannot take over 'a'"));

  // Who only has the port, at that address.
  const std::string old =
      R"({"job":"j1","deployments":[{"name":"a","port":1,"url":"http://127.0.0.1:1/v1/a","fleet":"f"}]})";
  const auto at_port = find(Answers{{7, old}}, "new", 1).value();
  REQUIRE(at_port);
  CHECK_FALSE(at_port->is_certain);
  CHECK(at_port->fleet == "f");
  CHECK_FALSE(serve::predecessor_among({{7, old}}, {"new", "127.0.0.2", 1, ""}).value());
  CHECK_FALSE(find(Answers{{7, old}}, "new", 2).value());
  // The job that is replaced, and no other program that serves the same.
  const std::string other = R"({"job":"j2","deployments":[{"name":"a","port":2}]})";
  CHECK(find(Answers{{7, old}, {8, other}}, "a", 0, "j1").value()->pid == 7);
  CHECK(find(Answers{{7, old}, {8, other}}, "new", 1, "j1").value()->is_certain);
  CHECK_FALSE(find(Answers{{7, old}, {8, other}}, "a", 2, "j1").value());

  // Was: "cannot listen on 127.0.0.1:18431: Address already in use", of a program that was stopped.
  const ErrorInfo taken{ErrorCode::kUnavailable, "cannot listen", "in use", "give another port"};
  CHECK(serve::with_silent(taken, {}).message() == taken.message());
  CHECK_THAT(serve::with_silent(taken, {7, 8}).message(),
             Contains("in use; process 7, process 8 of this user serves here, has not answered for 10 s") &&
                 Contains("kill -CONT") && Contains("give another port"));

  // Of proxies that of the node.
  const auto proxy = [](const char* fleet, const char* node) {
    return std::string(R"({"deployments":[{"name":"a","port":3,"fleet":")") + fleet + R"(","node":")" + node +
           "\"}]}";
  };
  const Answers proxies{{7, proxy("f", "x")}, {8, proxy("f", "y")}, {9, proxy("g", "z")}, {10, "[]"}};
  CHECK(serve::proxy_among(proxies, "f", "y")->pid == 8);
  CHECK(serve::proxy_among(proxies, "f", "z")->pid == 7);
  CHECK(serve::proxy_among(proxies, "f", "z")->who == Serving::kProxy);
  CHECK_FALSE(serve::proxy_among(proxies, "h", "x"));
}

}  // namespace take_over_test
