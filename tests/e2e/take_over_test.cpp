// New code in place: a program that takes the place of another one that serves, with requests under way all
// the time. The programs are hidden cases of this one: they answer with what their variable says, as changed
// code would.
#include "actors/serve/take_over.hpp"

#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "actors/serve/serve.hpp"
#include "tests/actors/serve/http/raw_client.hpp"
#include "tests/e2e/serving_cluster.hpp"
#include "tests/e2e/support.hpp"

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

std::string self() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace

TEST_CASE("a numbered program", "[.program]") {
  auto session = init(0, nullptr);
  const int number = number_of_program();
  auto first = serve::run(session, "numbered", Numbered{number}, {.port = 0, .take_over = number > 1});
  const serve::ServeOptions same{.port = first.port(), .take_over = number > 1};
  auto second = serve::run(session, "beside", Numbered{10 * number}, same);
  first.wait();
  second.wait();
}

TEST_CASE("a program takes the place of another one, with both of its deployments: no request is lost",
          "[serving]") {
  const auto start = [](int number, const e2e::TempFolder& folder) {
    ::setenv("NUMBER", std::to_string(number).c_str(), 1);
    return std::make_unique<e2e::Program>("a numbered program", folder.path());
  };
  const e2e::TempFolder one, two;
  auto first = start(1, one);
  REQUIRE(is_served_by_another_than("beside", 0));
  const auto before = status_of("numbered");
  const int port = before["port"].get<int>();
  Load numbered(port, "numbered"), beside(port, "beside");
  auto second = start(2, two);
  REQUIRE(is_served_by_another_than("beside", before["pid"].get<int>()));
  CHECK(status_of("numbered")["port"] == port);
  // The former program answers what it has, and ends by itself.
  CHECK(e2e::eventually([&] { return !e2e::is_alive(before["pid"].get<int>()); }));
  http::RawClient last(port);
  CHECK_THAT(last.ask(http::post("/v1/numbered", R"({"inputs": [[1]]})")).body, Contains("[[2]]"));
  CHECK(numbered.numbers() == std::set<int>{1, 2});
  CHECK(beside.numbers() == std::set<int>{10, 20});
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

  // What does not come up leaves the one that serves.
  std::ofstream(program) << "#!/bin/sh\necho it is broken\nexit 1\n";
  const Ran broken = cluster.run(text, "--replace");
  CHECK(broken.code == 1);
  CHECK_THAT(broken.output, Contains("it is broken"));
  install(3);
  CHECK(cluster.run(text, "--replace").code == 0);
  CHECK(load.numbers() == std::set<int>{1, 2, 3});
  CHECK(e2e::shell(TROUPE_CLI " serve stop single").code == 0);
}

TEST_CASE("a program of one deployment", "[.program]") {
  auto session = init(0, nullptr);
  serve::run(session, "single", Numbered{number_of_program()}).wait();
}

TEST_CASE("whose place is taken is told by the programs' answers") {
  using Answers = std::vector<std::pair<int, std::string>>;
  const std::string both =
      R"({"deployments":[{"name":"a","port":1},{"name":"b","port":1},{"name":"a","port":2}]})";
  CHECK_FALSE(serve::predecessor_among({}, "a", 0).value());
  CHECK_FALSE(serve::predecessor_among(Answers{{7, both}}, "c", 0).value());
  const auto one = serve::predecessor_among(Answers{{7, both}, {8, "nonsense"}, {9, "[]"}}, "a", 1).value();
  REQUIRE(one);
  CHECK(one->pid == 7);
  CHECK(one->names == std::vector<std::string>{"a", "b"});
  const auto two = serve::predecessor_among(Answers{{7, both}}, "a", 0);
  REQUIRE_FALSE(two);
  CHECK_THAT(two.error().message(), Contains("cannot take over 'a'"));
}
