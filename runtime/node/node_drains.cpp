// A node that drains: it takes nothing new, and leaves when nothing runs here, or when its time is over.
#include <algorithm>

#include "runtime/node/node_machine.hpp"

namespace troupe::node {

void NodeMachine::said(const cluster::DrainNode& e) {
  if (e.grace_ms >= 0) return drain(std::chrono::milliseconds(e.grace_ms), e.reason, false);
  if (drain_ && drain_->by_machine) return tell_drain();
  if (leaving_) return;
  drain_.reset();
  leases_.hold(std::nullopt);
  out_.push_back(Log{LogLevel::kInfo, "does not drain any more"});
  head_.tell(cluster::NodeDrains{self_.info.id, -1, "it was cancelled"}, out_);
}

void NodeMachine::said(const cluster::ActorLeaves& e) {
  out_.push_back(SendLocal{e.to.from.process, wire::ActorLeaves{e.actor, e.reason, e.stays, e.for_others}, {}});
}

void NodeMachine::handle(const DrainAsked& e) {
  drain(e.grace, e.reason, true);
}

/// Told again it has the shorter time of both.
void NodeMachine::drain(Duration grace, const std::string& reason, bool by_machine) {
  if (leaving_) return;
  const Instant until = now_ + grace;
  if (!drain_) {
    drain_ = Drain{until, reason, by_machine};
    out_.push_back(Log{LogLevel::kInfo, "drains: " + reason});
    leases_.hold(ErrorInfo{ErrorCode::kUnavailable, "no process for light actors",
                           "the node drains: " + reason, "spawn them on another node"});
  }
  drain_->until = std::min(drain_->until, until);
  drain_->by_machine = drain_->by_machine || by_machine;
  tell_drain();
}

void NodeMachine::tell_drain() {
  const std::int64_t left_ms = (drain_->until - now_) / std::chrono::milliseconds(1);
  head_.tell(cluster::NodeDrains{self_.info.id, std::max<std::int64_t>(0, left_ms), drain_->reason}, out_);
}

/// Not before a second look: what was decided before the head heard of it may still come.
void NodeMachine::watch_drain(Duration slip) {
  if (!drain_ || leaving_) return;
  drain_->until += slip;
  const bool is_idle = !submissions_.any_runs() && actors_.live().empty() &&
                       std::all_of(locals_.all().begin(), locals_.all().end(),
                                   [](const auto& entry) { return entry.second.is_parent; });
  const bool was_idle = std::exchange(drain_->is_idle, is_idle);
  if (is_idle && was_idle) return leave("it has drained (" + drain_->reason + ")");
  if (now_ >= drain_->until) leave("it drained, and its time is over (" + drain_->reason + ")");
}

}  // namespace troupe::node
