// The supervisor with real processes: this executable again, in roles of the test.
#include "scheduler/init/supervisor.hpp"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>

#include "runtime/link/socket/first_exchange.hpp"
#include "runtime/node/fork_server.hpp"
#include "scheduler/init/temporary_folder.hpp"
#include "scheduler/store/sqlite_storage.hpp"
#include "tests/run_catch.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

/// What a child of these tests does.
[[noreturn]] void act(const std::string& role) {
  SocketLink link{UniqueFd(kLinkFd)};
  if (role == "dies") ::_exit(3);
  if (role == "takes off its mark") take_off_mark_of_cluster();
  if (role == "refuses") send_control(link, {}, wire::NotReady{{ErrorCode::kRefused, "no", "bad key", ""}});
  if (role == "full") send_control(link, {}, wire::NotReady{{ErrorCode::kIo, "no", "the disk is full", ""}});
  if (role == "busy")
    send_control(link, {}, wire::NotReady{{ErrorCode::kTimeout, "no", "nobody answers", ""}});
  std::unique_ptr<Storage> store;
  if (role.starts_with("serves ")) store = open_sqlite_storage(role.substr(7)).value();
  if (store != nullptr || role == "stays" || role == "ignores" || role == "takes off its mark")
    send_control(link, {}, wire::Ready{"here"});
  if (role == "falls silent" || role == "pulses") {
    send_control(link, {}, wire::Ready{"here"});
    while (role == "pulses" && send_control(link, {}, wire::Pulse{})) std::this_thread::sleep_for(100ms);
    for (;;) ::pause();
  }
  if (role == "ignores") link.socket().release();  // and does not mind that it ends
  if (role == "hangs" || role == "ignores") {
    for (;;) ::pause();
  }
  while (auto message = receive_control(link, 60s)) {
    const auto* ask = std::get_if<wire::AdmitAsk>(&message->message);
    if (ask != nullptr) send_control(link, {}, wire::Answer{.request = ask->request, .ok = true});
  }
  ::_exit(0);  // the launcher closed the link
}

/// A role that plays `plays[i]` in its i-th life, and the last one from then on.
struct Played {
  explicit Played(std::vector<std::string> p) : plays(std::move(p)) {}
  Supervisor::Role role(const std::string& name) {
    Supervisor::Role made;
    made.name = name;
    made.start = [this] {
      const std::string& play = plays[std::min(starts++, plays.size() - 1)];
      return start_child({.role = play}).value();
    };
    made.on_ready = [this](Child&, const std::string& address) { readies += address == "here"; };
    made.on_death = [this](const std::string& how) { deaths.push_back(how); };
    made.on_message = [this](const wire::Control& message) {
      if (const auto* answer = std::get_if<wire::Answer>(&message)) answered = answer->request;
    };
    return made;
  }
  std::vector<std::string> plays;
  std::size_t starts = 0;
  int readies = 0;
  std::vector<std::string> deaths;
  std::uint64_t answered = 0;
};

struct Never {
  UniqueFd fd{::eventfd(0, EFD_CLOEXEC)};
};

/// Runs until `done`; the test fails if that takes half a minute.
void run(Supervisor& supervisor, const std::function<bool()>& done) {
  static const Never never;
  const Instant deadline = MonotonicClock().now() + 30s;
  supervisor.run(never.fd.get(), [&] { return done() || MonotonicClock().now() > deadline; });
  CHECK((done() || supervisor.failure()));
}

}  // namespace

TEST_CASE("a process that is killed is started again", "[supervisor]") {
  Played head({"stays"});
  Supervisor supervisor;
  supervisor.add(head.role("the head"));
  run(supervisor, [&] { return supervisor.all_up(); });
  for (int life = 1; life <= 3; ++life) {
    const pid_t pid = supervisor.pid(0);
    ::kill(pid, SIGKILL);
    run(supervisor, [&] { return supervisor.all_up() && supervisor.pid(0) != pid; });
    CHECK(head.readies == life + 1);
    CHECK(head.deaths.back().find("SIGKILL") != std::string::npos);
  }
}

TEST_CASE("a process that falls silent is killed and started again, one that is not watched is not",
          "[supervisor]") {
  // Was: a head that was stopped stayed so, and everybody waited for it.
  Played head({"falls silent", "pulses"}), other({"falls silent"});
  Supervisor supervisor;
  supervisor.add(other.role("another"));
  auto role = head.role("the head");
  role.silence = 2s;
  supervisor.add(std::move(role));
  run(supervisor, [&] { return supervisor.all_up() && head.starts == 2; });
  CHECK(head.deaths.at(0).find("SIGKILL") != std::string::npos);
  const Instant until = MonotonicClock().now() + 5s;
  run(supervisor, [&] { return MonotonicClock().now() > until; });
  CHECK(head.starts == 2);
  CHECK(other.starts == 1);
}

TEST_CASE("a start that fails is tried again", "[supervisor]") {
  Played head({"dies", "busy", "dies", "stays"});
  Supervisor supervisor;
  supervisor.add(head.role("the head"));
  run(supervisor, [&] { return supervisor.all_up(); });
  CHECK(head.starts == 4);
  CHECK(head.deaths.size() == 3);
  CHECK_FALSE(supervisor.failure());
}

TEST_CASE("a start that would fail again fails at once, with its own reason", "[supervisor]") {
  Played head({"refuses"});
  Supervisor supervisor;
  supervisor.add(head.role("the head"));
  run(supervisor, [&] { return false; });
  REQUIRE(supervisor.failure());
  CHECK(supervisor.failure()->code == ErrorCode::kRefused);
  CHECK(supervisor.failure()->why == "bad key");
  CHECK(head.starts == 1);
}

TEST_CASE("a full disk ends nobody: who came up once is started until it comes up again", "[supervisor]") {
  // Was: a head that was restarted on a full disk could not note its address; the supervisor left at once,
  // and ended its healthy node.
  Played head({"stays", "stays", "stays", "stays", "full", "stays"}), node({"stays"});
  bool disk_full = false;
  Supervisor supervisor;
  auto role = head.role("the head");
  role.policy = {.first = 1ms, .longest_blocked = 1ms, .most_starts = 2};
  role.on_ready = [&, count = role.on_ready](Child& child, const std::string& address) {
    count(child, address);
    if (disk_full && head.starts < 5) throw_error(io_error("cannot write the key", ENOSPC, "make room"));
  };
  supervisor.add(std::move(role));
  supervisor.add(node.role("the node"));
  run(supervisor, [&] { return supervisor.all_up(); });
  disk_full = true;
  ::kill(supervisor.pid(0), SIGKILL);
  run(supervisor, [&] { return head.starts == 6 && supervisor.all_up(); });
  CHECK_FALSE(supervisor.failure());
  CHECK(node.starts == 1);
}

TEST_CASE("a process that never comes up ends it, and one that nobody needs does not", "[supervisor]") {
  Played head({"dies"}), extra({"dies"}), other({"stays"});
  Supervisor supervisor;
  auto role = extra.role("an extra");
  role.vital = false;
  role.policy = {.first = 1ms, .most_starts = 2};
  supervisor.add(std::move(role));
  supervisor.add(other.role("another"));
  run(supervisor, [&] { return extra.starts == 2 && extra.deaths.size() == 2 && other.readies == 1; });
  CHECK_FALSE(supervisor.failure());
  auto vital = head.role("the head");
  vital.policy = {.first = 1ms};
  supervisor.add(std::move(vital));
  run(supervisor, [&] { return false; });
  REQUIRE(supervisor.failure());
  CHECK(supervisor.failure()->what == "the head does not come up");
  CHECK(supervisor.failure()->why.find("exit code 3") != std::string::npos);
}

TEST_CASE("one process that hangs while it starts keeps nobody else waiting", "[supervisor]") {
  // Was: the supervisor waited for a head's first word; a head that was killed 20 ms after its start, or a
  // node that died meanwhile, was not looked at.
  Played slow({"hangs"}), head({"stays"});
  Supervisor supervisor;
  supervisor.add(slow.role("slow"));
  supervisor.add(head.role("the head"));
  run(supervisor, [&] { return head.readies == 1; });
  for (int life = 2; life <= 4; ++life) {
    ::kill(supervisor.pid(1), SIGKILL);
    run(supervisor, [&] { return head.readies == life; });
  }
  CHECK(slow.starts == 1);
  ::kill(supervisor.pid(0), SIGKILL);
  run(supervisor, [&] { return slow.starts == 2; });
}

TEST_CASE("a role starts when it may, and hears what its process says", "[supervisor]") {
  Played head({"stays"}), node({"stays"});
  Supervisor supervisor;
  supervisor.add(head.role("the head"));
  auto role = node.role("a node");
  role.may_start = [&] { return head.answered == 7; };
  supervisor.add(std::move(role));
  CHECK_FALSE(supervisor.tell(0, wire::Leave{"too early"}));
  run(supervisor, [&] { return head.readies == 1; });
  CHECK(node.starts == 0);
  CHECK(supervisor.tell(0, wire::AdmitAsk{7, NodeId{1}, "key"}));
  run(supervisor, [&] { return supervisor.all_up(); });
  CHECK(node.starts == 1);
}

TEST_CASE("the end: who does not leave is killed, and nobody is left", "[supervisor]") {
  Played polite({"stays"}), deaf({"ignores"});
  Supervisor supervisor;
  supervisor.add(polite.role("polite"));
  supervisor.add(deaf.role("deaf"));
  run(supervisor, [&] { return supervisor.all_up(); });
  const pid_t pids[] = {supervisor.pid(0), supervisor.pid(1)};
  supervisor.end({0, 1}, 500ms);
  for (const pid_t pid : pids) CHECK(::kill(pid, 0) != 0);
}

int main(int argc, char** argv) {
  if (const char* variable = std::getenv(kRoleVariable)) {
    if (std::getenv("TROUPE_TEST_THREAD") != nullptr) std::thread([] { ::pause(); }).detach();
    if (std::string(variable) != kForkServerRole) act(variable);
    SocketLink link = serve_forks();
    ::dup2(link.fd(), kLinkFd);
    act(std::getenv(kRoleVariable));
  }
  return troupe::test::run_catch(argc, argv);
}
