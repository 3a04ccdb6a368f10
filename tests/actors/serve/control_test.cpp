// Questions of `troupe serve` to a program, without deployments behind them: tests/e2e/serving_test.cpp has
// real ones.
#include "actors/serve/control.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <future>
#include <nlohmann/json.hpp>

#include "runtime/core/error.hpp"
#include "runtime/link/socket/named_socket.hpp"

using namespace troupe;
using namespace troupe::serve;
using namespace std::chrono_literals;

namespace {

struct Fake final : Controlled {
  DeploymentStatus of{.name = "digits", .url = "http://127.0.0.1:8000/v1/digits", .port = 8000};
  std::promise<void> asked, may_answer;
  Fake() {
    of.view.range = {1, 4};
    of.view.ready = 1;
    of.view.version = 3;
  }
  DeploymentStatus status() override { return of; }
  void scale(Replicas replicas) override {
    if (replicas.max > 10) throw BadConfig("cannot serve 'digits'", "replicas = {1, 11}", "use fewer");
    of.view.range = replicas;
  }
  VersionId update_from(const std::string& path) override {
    if (path != "/weights") throw std::runtime_error("no such file");
    asked.set_value();
    may_answer.get_future().wait();
    return 4;
  }
  VersionId roll_back() override { return 2; }
  void stop_serving() override { of.stopped = true; }
  std::vector<UniqueFd> listening() override {
    std::vector<UniqueFd> sockets;
    sockets.emplace_back(::dup(STDERR_FILENO));
    return sockets;
  }
  void leave() override { of.stopped = true; }
  std::string metrics() override { return "page of " + std::to_string(of.port); }
};

nlohmann::json ask(Control& control, const std::string& question) {
  return nlohmann::json::parse(control.answer(question));
}
std::string why(Control& control, const std::string& question) {
  return ask(control, question)["error"].value("why", "it was answered");
}

}  // namespace

// The 17th was closed without a word: a program that was to replace this one took it for one that had ended.
TEST_CASE("who asks while sixteen others do waits for its turn") {
  const std::string name = "troupe-serve-test-" + std::to_string(::getpid());
  Control control(listen_by_name(name).value());
  Fake digits;
  control.add(digits);
  std::vector<SocketLink> silent;
  for (int i = 0; i < 16; ++i) silent.push_back(connect_by_name(name).value());
  auto last = connect_by_name(name).value();
  const std::string question = R"({"do":"status"})";
  REQUIRE(::send(last.fd(), question.data(), question.size(), MSG_NOSIGNAL) > 0);
  pollfd wait{last.fd(), POLLIN, 0};
  CHECK(::poll(&wait, 1, 500) == 0);  // neither an answer nor an end
  silent.pop_back();
  REQUIRE(::poll(&wait, 1, 60'000) == 1);
  char answer[4096];
  const ssize_t got = ::recv(last.fd(), answer, sizeof answer, 0);
  REQUIRE(got > 0);
  CHECK(nlohmann::json::parse(std::string(answer, static_cast<std::size_t>(got)))["deployments"].size() == 1);
  silent.clear();
  control.remove(digits);
}

// Two programs that were started at once to take the place of a third both got its sockets, both served, and
// the kernel dealt the requests out among them.
TEST_CASE("one program at a time takes the place of this one") {
  Control control(listen_by_name("troupe-serve-place-" + std::to_string(::getpid())).value());
  Fake digits;
  control.add(digits);
  const pid_t other = ::fork();
  if (other == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  const auto hands_over = [&](int asker) {
    std::vector<UniqueFd> fds;
    const auto said = nlohmann::json::parse(control.answer(R"({"do":"hand_over","port":8000})", &fds, asker));
    CHECK(fds.empty() == said.contains("error"));
    return said.contains("error") ? said["error"].value("why", "") : "";
  };
  CHECK(hands_over(other) == "");
  CHECK(hands_over(other) == "");  // not all of them came
  CHECK(hands_over(::getpid()) == "process " + std::to_string(other) + " takes it already");
  // It could not listen, and lives. Was: nobody had the place while it did.
  const auto not_taken = [&](int asker) {
    control.answer(R"({"do":"not_taken","port":8000})", nullptr, asker);
  };
  not_taken(::getppid());
  CHECK(hands_over(::getpid()) == "process " + std::to_string(other) + " takes it already");
  not_taken(other);
  CHECK(hands_over(::getpid()) == "");
  not_taken(::getpid());
  CHECK(hands_over(other) == "");
  ::kill(other, SIGKILL);  // before it listened
  ::waitpid(other, nullptr, 0);
  CHECK(hands_over(::getpid()) == "");
  CHECK(ask(control, R"({"do":"taken","port":8000})")["leaves"] == true);
  CHECK(hands_over(::getppid()) == "process " + std::to_string(::getpid()) + " has taken it");
  control.remove(digits);
}

TEST_CASE("what is asked of a program that serves, and what it answers") {
  const auto control = Control::of_this_program();
  REQUIRE(control);
  CHECK(control == Control::of_this_program());
  Fake digits;
  control->add(digits);
  digits.of.stopped = true;  // not yet
  digits.of.refused = "it is held";
  const auto waits = ask(*control, R"({"do":"status"})");
  CHECK(waits["deployments"].empty());
  CHECK(waits["refused"].value("digits", "") == "it is held");
  digits.of.stopped = false;
  digits.of.refused.clear();
  const auto status = ask(*control, R"({"do":"status"})");
  CHECK(status["refused"].empty());
  CHECK(status["pid"] == ::getpid());
  const auto one = status["deployments"].at(0);
  CHECK(one["state"] == "ready");
  CHECK(one["weights"] == 3);
  CHECK(one["replicas"]["max"] == 4);
  CHECK(one["rolls_out"].is_null());
  CHECK(ask(*control, R"({"do":"scale","name":"digits","min":2,"max":8})")["deployment"]["replicas"]["min"] ==
        2);
  CHECK(ask(*control, R"({"do":"rollback","name":"digits","port":8000})")["version"] == 2);
  const auto refused = ask(*control, R"({"do":"scale","name":"digits","min":1,"max":11})")["error"];
  CHECK(refused["what"] == "cannot serve 'digits'");
  CHECK(refused["todo"] == "use fewer");

  CHECK(why(*control, "") == "it is no object");
  CHECK(why(*control, "[1]") == "it is no object");
  CHECK(why(*control, "{}") == "it has no text 'do'");
  CHECK(why(*control, R"({"do":"stop"})") == "it has no text 'name'");
  CHECK(why(*control, R"({"do":"stop","name":"digits","port":-1})") == "it has no number 'port'");
  CHECK(why(*control, R"({"do":"stop","name":"digits","port":1})") ==
        "no deployment of this program has that name");
  CHECK(why(*control, R"({"do":"dance","name":"digits"})") == "it asks to 'dance'");
  CHECK(why(*control, R"({"do":"scale","name":"digits","min":1e300,"max":2})") == "it has no number 'min'");
  CHECK(why(*control, R"({"do":"update","name":"digits","weights":"/nothing"})") == "no such file");

  Fake other;
  other.of.port = 9000;
  control->add(other);
  CHECK(why(*control, R"({"do":"rollback","name":"digits"})") ==
        "several deployments of this program have that name");
  CHECK(ask(*control, R"({"do":"stop","name":"digits","port":9000})")["stopped"] == true);
  CHECK(ask(*control, R"({"do":"status"})")["deployments"].size() == 1);
  control->remove(other);

  const auto pages = ask(*control, R"({"do":"metrics"})")["pages"];
  REQUIRE(pages.size() == 1);
  CHECK(pages[0]["port"] == 8000);
  CHECK(pages[0]["text"] == "page of 8000");

  // A program that takes its place gets what it listens on, and is believed when it says that it does.
  std::vector<UniqueFd> fds;
  CHECK(control->answer(R"({"do":"hand_over","port":8000})", &fds) == R"({"sockets":1})");
  CHECK(fds.size() == 1);
  CHECK(why(*control, R"({"do":"hand_over","port":1})") == "nothing is served at port 1");
  CHECK(why(*control, R"({"do":"taken","port":1})") == "nothing is served at port 1");
  Fake left;
  left.of.port = 7000;
  control->add(left);
  CHECK(ask(*control, R"({"do":"taken","port":7000})")["leaves"] == true);
  CHECK(ask(*control, R"({"do":"status"})")["deployments"].size() == 1);
  control->remove(left);

  // By the socket; who is removed is waited for while somebody asks it.
  auto link =
      connect_by_name("troupe-serve-" + std::to_string(::geteuid()) + "-" + std::to_string(::getpid()))
          .value();
  const std::string question = R"({"do":"update","name":"digits","weights":"/weights"})";
  REQUIRE(::send(link.fd(), question.data(), question.size(), MSG_NOSIGNAL) > 0);
  REQUIRE(digits.asked.get_future().wait_for(20s) == std::future_status::ready);
  auto removed = std::async(std::launch::async, [&] { control->remove(digits); });
  CHECK(ask(*control, R"({"do":"status"})")["deployments"].size() == 1);
  digits.may_answer.set_value();
  char answer[1024];
  const ssize_t got = ::recv(link.fd(), answer, sizeof answer, 0);
  REQUIRE(got > 0);
  CHECK(std::string(answer, static_cast<std::size_t>(got)) == R"({"version":4})");
  removed.get();
  CHECK(ask(*control, R"({"do":"status"})")["deployments"].empty());
}
