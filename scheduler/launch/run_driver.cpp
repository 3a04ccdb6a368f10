#include "scheduler/launch/run_driver.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/core/escape.hpp"
#include "scheduler/launch/rank_environment.hpp"

namespace troupe::launch {

RunDriver::RunDriver(RunConfig config) : machine_(config) {
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) ::sigaddset(&handled, signal);
  ::pthread_sigmask(SIG_BLOCK, &handled, nullptr);
  signals_ = UniqueFd(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw_error(io_error("cannot wait for signals", errno, "raise ulimit -n"));
  loop_.watch(signals_.get(), [this](bool, bool, bool) {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (code_) loop_.stop();  // what the last output waits for may never come
      on(SignalCame{static_cast<std::int32_t>(info.ssi_signo)});
    }
  });
}

void RunDriver::on(RunEvent event) {
  events_.push_back(std::move(event));
  if (is_stepping_) return;  // an action's own event: its turn comes
  is_stepping_ = true;
  while (!events_.empty()) {
    const RunEvent next = std::move(events_.front());
    events_.pop_front();
    for (const RunAction& action : machine_.step(next, MonotonicClock().now())) perform(action);
  }
  is_stepping_ = false;
  const auto wakes_at = machine_.wakes_at();
  if (!wakes_at || wakes_at == wakes_at_) return;
  wakes_at_ = wakes_at;
  loop_.after(*wakes_at - MonotonicClock().now(), [this] {
    wakes_at_.reset();
    on(Tick{});
  });
}

void RunDriver::perform(const RunAction& action) {
  const auto node = [this](std::uint32_t id) -> RunNode* {
    const auto at = nodes_.find(id);
    return at == nodes_.end() ? nullptr : at->second.get();  // it went meanwhile: its event comes
  };
  if (const auto* say = std::get_if<Say>(&action)) {
    std::fprintf(stderr, "troupe run: %s\n", escape_text(say->text).c_str());
  } else if (const auto* take = std::get_if<TakePort>(&action)) {
    if (auto* on_it = node(take->node)) on_it->take_port(take->attempt);
  } else if (const auto* start = std::get_if<StartWorkers>(&action)) {
    if (auto* on_it = node(start->node)) on_it->start(start->plan);
  } else if (const auto* signal = std::get_if<SignalWorkers>(&action)) {
    if (auto* on_it = node(signal->node)) on_it->signal(signal->attempt, signal->signal);
  } else if (const auto* end = std::get_if<EndRun>(&action)) {
    if (!std::exchange(code_, end->code)) close_nodes();
  }
}

void RunDriver::close_nodes() {
  closing_ = nodes_.size();
  if (closing_ == 0) return loop_.stop();
  for (const auto& [id, node] : nodes_) {
    node->close([this] {
      if (--closing_ == 0) loop_.stop();
    });
  }
}

int RunDriver::run() {
  if (!code_ || closing_ != 0) loop_.run();
  return code_.value_or(1);
}

void LocalNode::take_port(std::uint32_t attempt) {
  if (master_.node_rank != 0) return on_event_(PortTaken{attempt, master_.address, master_.port});
  port_ = HeldPort();
  auto held = HeldPort::hold(master_.port);
  if (!held) return on_event_(PortRefused{attempt, held.error()});
  port_ = *std::move(held);
  on_event_(PortTaken{attempt, master_.address, port_.port()});
}

void LocalNode::start(const RankPlan& plan) {
  attempt_ = plan.attempt;
  RankPlan own = plan;
  if (master_.nodes > 1) {
    own.group_rank = master_.node_rank;
    own.group_world = master_.nodes;
    own.first_rank = master_.node_rank * plan.processes;
    own.world = master_.nodes * plan.processes;
  }
  const auto inherited = [](const char* name) { return std::getenv(name); };
  if (own.group_rank == 0 && sets_one_thread(own, inherited) && !std::exchange(told_one_thread_, true))
    std::fprintf(
        stderr,
        "troupe run: each rank has OMP_NUM_THREADS=1, so that ranks on one node and on several give the "
        "same bits; set it where speed counts more, in a cluster in its nodes' environment\n");
  if (auto started = group_->start(own); !started)
    on_event_(NotStarted{plan.attempt, node_, started.error()});
}

void LocalNode::signal(std::uint32_t attempt, int signal) {
  if (attempt == attempt_) group_->signal(signal);
}

}  // namespace troupe::launch
