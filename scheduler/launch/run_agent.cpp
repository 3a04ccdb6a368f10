#include "scheduler/launch/run_agent.hpp"

#include <csignal>

#include "runtime/core/quiet_thread.hpp"
#include "runtime/host/actor_context.hpp"
#include "runtime/host/process_gate.hpp"
#include "scheduler/launch/rank_environment.hpp"

namespace troupe::launch {

RunAgent::RunAgent(const RunSpec& spec, std::uint32_t node) : number_(node) {
  const std::string host = this_actor().process().config().host;
  Promise<bool> up;
  const auto is_up = up.future();
  thread_ = start_quiet_thread([this, spec, host, up] { run(spec, host, up); });
  try {
    is_up.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

RunAgent::~RunAgent() {
  loop_.post([this] { loop_.stop(); });
  thread_.join();
}

void RunAgent::run(const RunSpec& spec, const std::string& host, Promise<bool> up) {
  const auto on_event = [this](RunEvent event) { happened(std::move(event)); };
  auto group = WorkerGroup::make(loop_, spec, number_, interface_of(host), on_event);
  if (!group) return up.fail(group.error());
  log_folder_ = (*group)->log_folder();
  node_ = std::make_unique<LocalNode>(number_, MasterChoice{.address = host}, *std::move(group), on_event);
  up.set(true);
  loop_.run();
  node_.reset();
}

void RunAgent::take_port(std::uint32_t attempt) {
  loop_.post([this, attempt] {
    if (port_attempt_ && attempt <= *port_attempt_) return;
    port_attempt_ = attempt;
    node_->take_port(attempt);
  });
}

void RunAgent::start(const RankPlan& plan) {
  loop_.post([this, plan] {
    if (start_attempt_ && plan.attempt <= *start_attempt_) return;
    start_attempt_ = plan.attempt;
    if (signalled_attempt_ != plan.attempt) return node_->start(plan);
    for (std::uint32_t i = 0; i < plan.processes; ++i)
      happened(WorkerEnded{plan.attempt, number_, i, {.signal = SIGTERM}});
  });
}

void RunAgent::signal(std::uint32_t attempt, std::int32_t signal) {
  loop_.post([this, attempt, signal] {
    signalled_attempt_ = attempt;
    node_->signal(attempt, signal);
  });
}

void RunAgent::happened(RunEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  answer();
}

Future<std::vector<RunEvent>> RunAgent::events(std::uint64_t first) {
  const std::lock_guard lock(mutex_);
  asked_ = first;
  asking_.emplace();
  auto future = asking_->future();
  answer();
  return future;
}

/// REQUIRES: mutex_ is held.
void RunAgent::answer() {
  if (!asking_ || asked_ >= events_.size()) return;
  asking_->set(std::vector<RunEvent>(events_.begin() + static_cast<std::ptrdiff_t>(asked_), events_.end()));
  asking_.reset();
}

Future<bool> RunAgent::close() {
  Promise<bool> done;
  loop_.post([this, done] { node_->close([done]() mutable { done.set(true); }); });
  return done.future();
}

}  // namespace troupe::launch
