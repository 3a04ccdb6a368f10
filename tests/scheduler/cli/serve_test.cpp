// `troupe serve`, as a person runs it, on a program that is played here: tests/e2e/serving_test.cpp has a
// real one.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/link/socket/named_socket.hpp"
#include "scheduler/cli/serving_programs.hpp"
#include "tests/support/contains.hpp"
#include "tests/support/shell.hpp"

using namespace troupe;
using troupe::test::contains;

namespace {

using test::Ran;

Ran serve(const std::string& words) {
  return test::shell(TROUPE_CLI " serve " + words);
}

/// Answers every question but the first of a command (status) with `answer`.
class Played {
 public:
  Played()
      : listening_(
            listen_by_name("troupe-serve-" + std::to_string(::geteuid()) + "-" + std::to_string(::getpid()))
                .value()),
        thread_([this] { run(); }) {}
  ~Played() {
    over_ = true;
    thread_.join();
  }
  std::string last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  void answers(std::string status, std::string rest) {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    rest_ = std::move(rest);
  }

 private:
  void run() {
    while (!over_) {
      pollfd wait{listening_.get(), POLLIN, 0};
      if (::poll(&wait, 1, 20) != 1) continue;
      auto link = accept_by_name(listening_);
      if (!link) continue;
      char question[4096];
      const ssize_t got = ::recv(link->fd(), question, sizeof question, 0);
      const std::lock_guard lock(mutex_);
      last_.assign(question, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      const std::string& said = last_ == R"({"do":"status"})" ? status_ : rest_;
      if (!said.empty()) static_cast<void>(::send(link->fd(), said.data(), said.size(), MSG_NOSIGNAL));
    }
  }
  UniqueFd listening_;
  std::atomic<bool> over_ = false;
  std::mutex mutex_;
  std::string status_, rest_, last_;
  std::thread thread_;
};

constexpr const char* kStatus =
    R"({"pid":1,"deployments":[{"name":"dig\u001b[2Jits","url":"http://127.0.0.1:8000/v1/digits",
"port":8000,"state":"ready","weights":3,"rolls_out":null,"replicas":{"min":1,"max":4,"wanted":2,"starting":1,"ready":1,
"ending":0,"pids":[12]},"queued_rows":7,"ongoing_requests":9},{"name":"fixed","port":8001,"replicas":{"min":2,"max":2}},
{"name":"twice","port":1},{"name":"twice","port":2}]})";

}  // namespace

TEST_CASE("programs that serve are found among the sockets of a machine") {
  const std::string sockets =
      "Num       RefCount Protocol Flags    Type St Inode Path\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 1234 @troupe-serve-7-12\n"
      "0000000000000000: 00000003 00000000 00000000 0005 03 1235 @troupe-serve-7-12\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 1236 @troupe-serve-77-13\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 1237 @troupe-serve-7-13x\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 1238 /tmp/@troupe-serve-7-14\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 1240 @troupe-proxy-7-15\n"
      "0000000000000000: 00000002 00000000 00010000 0005 01 1239 @troupe-serve-7-9";
  CHECK(cli::serving_pids(sockets, 7) == std::vector<int>{9, 12});
  CHECK(cli::serving_pids("", 7).empty());
  CHECK(serving_pids(sockets, 7, Serving::kProxy) == std::vector<int>{15});
}

// One after another, each program that hung took its share of a scrape's time.
TEST_CASE("programs that serve are asked all at once, and have one deadline together") {
  const unsigned me = ::geteuid();
  // No processes of these numbers are asked: the names of sockets alone count.
  const std::vector<int> pids{2'000'000'001, 2'000'000'002, 2'000'000'003};
  std::vector<UniqueFd> sockets;
  for (std::size_t i = 0; i < 2; ++i)
    sockets.push_back(listen_by_name(serving_socket_name(me, pids[i])).value());
  // Two answer when both were asked; the third is not there.
  const std::string long_answer(300'000, 'x');
  std::thread answers([&] {
    std::vector<SocketLink> links;
    char question[64];
    for (std::size_t i = 0; i < 2; ++i) {
      pollfd wait{sockets[i].get(), POLLIN, 0};
      if (::poll(&wait, 1, 30'000) != 1) return;
      links.push_back(accept_by_name(sockets[i]).value());
      if (::recv(links[i].fd(), question, sizeof question, 0) != 5) return;
    }
    std::vector<UniqueFd> comes_with;
    comes_with.emplace_back(::dup(STDERR_FILENO));
    comes_with.emplace_back(::dup(STDERR_FILENO));
    answer_serving(links[0].fd(), long_answer);
    answer_serving(links[1].fd(), "yes", comes_with);
  });
  const auto said = ask_serving(pids, "hello", std::chrono::seconds(30));
  answers.join();
  REQUIRE(said.size() == 3);
  REQUIRE(said[0]);
  CHECK(said[0]->text == long_answer);
  REQUIRE(said[1]);
  CHECK(said[1]->text == "yes");
  CHECK(said[1]->fds.size() == 2);
  REQUIRE_FALSE(said[2]);
  CHECK(said[2].error().code == ErrorCode::kUnavailable);
  // Nobody accepts: also when more wait than its queue holds, nobody waits longer than that.
  for (int i = 0; i < 40; ++i) {
    const auto silent = ask_serving(std::span(pids).first(1), "hello", std::chrono::milliseconds(20));
    REQUIRE_FALSE(silent[0]);
    CHECK(silent[0].error().code == ErrorCode::kTimeout);
  }
}

TEST_CASE("troupe serve: what programs tell as tables and JSON, and what is asked of them") {
  Played program;
  program.answers(kStatus, "");
  const std::string pid = " --pid " + std::to_string(::getpid());
  const Ran list = serve("list");
  CAPTURE(list.output);
  CHECK(list.code == 0);
  CHECK(contains(list.output, "state       replicas  weights  queued   ongoing  process  url\n"));
  CHECK(contains(list.output, " ready       1 of 1:4        3       7         9 "));
  CHECK(contains(list.output, "fixed                    -             - of 2        -       -         - "));
  CHECK_FALSE(contains(list.output, "\x1b"));
  const Ran json = serve("list -o json");
  CHECK(json.code == 0);
  // Programs of other tests of this user may serve meanwhile.
  const nlohmann::json told = nlohmann::json::parse(json.output);
  const auto first = std::find_if(told.begin(), told.end(),
                                  [](const nlohmann::json& one) { return one.at("pid") == ::getpid(); });
  REQUIRE(first != told.end());
  CHECK(first->at("replicas").at("wanted") == 2);
  CHECK(contains(serve("status fixed" + pid).output, "replicas    - of 2 ready, - wanted"));

  program.answers(kStatus, R"({"deployment":{"name":"fixed","replicas":{"min":2,"max":8,"ready":2}}})");
  const Ran scaled = serve("scale fixed 2:8");
  CHECK(scaled.output == "fixed: 2 of 2:8 replicas are ready\n");
  CHECK(program.last() == R"({"do":"scale","min":2,"max":8,"name":"fixed","port":8001})");
  program.answers(kStatus, R"({"version":4})");
  CHECK(serve("update fixed " TROUPE_CLI).output == "fixed: weights 4 answer\n");
  CHECK(contains(program.last(), R"({"do":"update","weights":"/)"));
  CHECK(serve("rollback fixed -o json").output == "{\n  \"version\": 4\n}\n");
  program.answers(kStatus, R"({"stopped":true})");
  CHECK(serve("stop fixed").output == "stopped fixed\n");
}

TEST_CASE("troupe serve says what is wrong with its words and with what programs answer") {
  CHECK(serve("").code == 2);
  CHECK(serve("scale digits").code == 2);
  for (const char* range : {"0", "4:2", "1:1001", "1:", ":1", "1:2:3", "x", "-1"})
    CHECK(serve(std::string("scale digits ") + range).code == 2);
  CHECK(contains(serve("scale digits 0").output,
                 "'0' is neither MIN:MAX, with MIN from 0 and MAX from 1 to 1000 and not below MIN, nor one "
                 "number of replicas, from 1 to 1000"));
  CHECK(contains(serve("status nothing").output, "there is no deployment 'nothing' here"));
  Played program;
  program.answers(kStatus, R"({"error":{"what":"cannot update 'fixed'","why":"two\nlines","todo":"wait"}})");
  const Ran failed = serve("rollback fixed");
  CHECK(failed.code == 1);
  CHECK(contains(failed.output, "cannot update 'fixed': two\nlines (wait)"));
  const Ran twice = serve("status twice");
  CHECK(twice.code == 1);
  CHECK(contains(twice.output, "there are several deployments 'twice'"));
  CHECK(serve("status twice --port 2").code == 0);
  CHECK(contains(serve("update fixed /no/such/file").output, "cannot read '/no/such/file'"));
  program.answers(kStatus, "");
  CHECK(contains(serve("stop fixed").output, "does not answer"));
  for (const char* answer : {"nonsense", "[]", R"({"error":7})", R"({"deployments":7})",
                             R"({"deployments":[7,{}]})", R"({"deployments":[{"name":[],"replicas":3}]})"}) {
    program.answers(answer, "");
    const Ran list = serve("list");
    CAPTURE(answer, list.output);
    CHECK((list.code == 0 || list.code == 1));
    CHECK(serve("status x").code == 1);
  }
}
