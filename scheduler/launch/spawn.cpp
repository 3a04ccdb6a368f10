#include "scheduler/launch/spawn.hpp"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "runtime/core/held_port.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "runtime/node/child.hpp"
#include "runtime/node/event_loop.hpp"
#include "scheduler/init/process_roles.hpp"
#include "scheduler/launch/rank_environment.hpp"
#include "scheduler/launch/run_machine.hpp"

namespace troupe::launch {
namespace {

constexpr int kMostProcesses = 4096;

/// Carries out a RunMachine's actions with processes of this executable.
class SpawnRun {
 public:
  SpawnRun(std::string_view name, std::uint64_t function, const wire::Bytes& args)
      : name_(name), function_(function), args_(args) {}
  ~SpawnRun();

  /// Throws the first failure.
  void run(int processes);

 private:
  void on(const RunEvent& event);
  void perform(const RunAction& action);
  void start(const RankPlan& plan);
  void start_one(const RankPlan& plan, int rank);
  void on_ended(int rank);

  const std::string name_;
  const std::uint64_t function_;
  const wire::Bytes& args_;
  EventLoop loop_;
  RunMachine machine_{RunConfig{}};
  HeldPort port_;
  std::map<int, Child> children_;  ///< that run, by rank
  std::function<void()> failure_;  ///< throws it
};

SpawnRun::~SpawnRun() {
  for (const auto& [rank, child] : children_) signal_child(child, SIGKILL);
  for (const auto& [rank, child] : children_) {
    wait_ended(child, std::chrono::seconds(30));
    reap(child);
  }
}

void SpawnRun::run(int processes) {
  on(NodeCame{0, "", static_cast<std::uint32_t>(processes)});
  loop_.run();
  if (failure_) failure_();
}

void SpawnRun::on(const RunEvent& event) {
  for (const RunAction& action : machine_.step(event, MonotonicClock().now())) perform(action);
  if (const auto at = machine_.wakes_at()) loop_.after(*at - MonotonicClock().now(), [this] { on(Tick{}); });
}

void SpawnRun::perform(const RunAction& action) {
  if (const auto* take = std::get_if<TakePort>(&action)) {
    port_ = HeldPort::hold(0).value();
    loop_.post([this, attempt = take->attempt] { on(PortTaken{attempt, "127.0.0.1", port_.port()}); });
  } else if (const auto* starting = std::get_if<StartWorkers>(&action)) {
    start(starting->plan);
  } else if (const auto* signal = std::get_if<SignalWorkers>(&action)) {
    for (const auto& [rank, child] : children_) {
      ::kill(-child.pid, signal->signal);
      ::kill(-child.pid, SIGCONT);
    }
  } else if (std::holds_alternative<EndRun>(action)) {
    loop_.stop();
  }
}

void SpawnRun::start(const RankPlan& plan) {
  for (int rank = 0; rank < static_cast<int>(plan.processes); ++rank) start_one(plan, rank);
}

void SpawnRun::start_one(const RankPlan& plan, int rank) {
  auto environment =
      rank_environment({.run_id = "spawn"}, plan, static_cast<std::uint32_t>(rank), "",
                       interface_of(plan.master_addr), [](const char* n) { return std::getenv(n); });
  Child child = start_child({.role = "spawned", .environment = std::move(environment)}).value();
  // As a node starts an actor: the function in the constructor's place, the rank in the actor's. A process
  // that does not take it has ended: its pidfd says how.
  send_control(child.link, {},
               wire::StartActorHere{ActorId{static_cast<std::uint64_t>(rank)}, true, function_, args_});
  loop_.watch(child.pidfd.get(), [this, rank](bool, bool, bool) { on_ended(rank); });
  children_.emplace(rank, std::move(child));
}

void SpawnRun::on_ended(int rank) {
  Child child = std::move(children_.at(rank));
  children_.erase(rank);
  loop_.forget(child.pidfd.get());
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOWAIT);
  WorkerEnd end{.pid = child.pid};
  (info.si_code == CLD_EXITED ? end.code : end.signal) = info.si_status;
  const std::string how = reap(child);
  const auto said = receive_control(child.link, Duration(0));
  const auto* answer = said ? std::get_if<wire::Answer>(&said->message) : nullptr;
  if (answer == nullptr && end.code == 0 && end.signal == 0)
    end.code = -1;  // exit(0) in the function is no return
  if (!failure_ && (end.code != 0 || end.signal != 0)) {
    const std::string which = name_ + " in rank " + std::to_string(rank);
    if (answer != nullptr && !answer->ok) {
      ErrorInfo error = answer->error;
      error.what = "rank " + std::to_string(rank) + ": " + error.what;
      failure_ = [error] { throw_error(error); };
    } else {
      const ErrorInfo error{ErrorCode::kActorDied, which + " did not return", "its process ended: " + how,
                            ""};
      failure_ = [error, rank, code = end.code < 0 ? 0 : end.code, by = end.signal] {
        throw ProcessEnded(error, rank, code, by);
      };
    }
  }
  on(WorkerEnded{0, 0, static_cast<std::uint32_t>(rank), std::move(end)});
}

}  // namespace

void detail::spawn(std::string_view name, std::uint64_t function, int processes, const wire::Bytes& args) {
  become_role_if_asked();
  if (processes < 1 || processes > kMostProcesses) {
    throw BadConfig("cannot spawn " + std::string(name), std::to_string(processes) + " processes",
                    "ask for 1 to " + std::to_string(kMostProcesses));
  }
  SpawnRun(name, function, args).run(processes);
}

}  // namespace troupe::launch
