#include "actors/train/trainer_machine.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::train {

TrainerMachine::TrainerMachine(ActorId self, Mutations mutations) : self_(self), mutations_(mutations) {}

TrainerOutput TrainerMachine::on(const TrainerOrder& order) {
  TrainerOutput out;
  std::visit([&](const auto& o) { handle(o, out); }, order);
  return out;
}

int TrainerMachine::rank() const {
  for (std::size_t r = 0; r < plan_.members.size(); ++r) {
    if (plan_.members[r].actor == self_) return static_cast<int>(r);
  }
  return -1;
}

LeafInterval TrainerMachine::leaves() const {
  const int r = rank();
  return r < 0 ? LeafInterval{} : plan_.members[r].leaves;
}

bool TrainerMachine::is_receiver() const {
  return std::find(plan_.receivers.begin(), plan_.receivers.end(), rank()) != plan_.receivers.end();
}

// Orders.

void TrainerMachine::handle(const Quiesce& order, TrainerOutput& out) {
  if (order.generation <= generation_) {
    out.reason =
        "ignored: generation " + to_string(order.generation) + " is not newer than " + to_string(generation_);
    return;
  }
  generation_ = order.generation;
  state_ = State::kQuiescing;
  errands_.clear();
  out.abort_group = true;
  out.reason = "leaves for generation " + to_string(generation_) + ": " + order.reason;
  if (!doing_ && steps_ == kNoState) report_quiesced({}, out);
}

void TrainerMachine::handle(const StartGeneration& order, TrainerOutput& out) {
  if (order.plan.generation != generation_ || state_ != State::kQuiesced) {
    out.reason = "ignored: a plan of generation " + to_string(order.plan.generation) + " in generation " +
                 to_string(generation_);
    return;
  }
  plan_ = order.plan;
  loaders_ = plan_.loaders;
  out.loaders_changed = true;
  limit_ = plan_.first_step;
  state_ = State::kForming;
  const bool must_hold = plan_.origin == StateOrigin::kMembers && !is_receiver();
  if (rank() < 0 || (must_hold && steps_ != plan_.first_step)) {
    leave({rank() < 0 ? "the plan has no rank for this trainer"
                      : "the plan takes this trainer to hold " + std::to_string(plan_.first_step) +
                            " steps, it holds " + std::to_string(steps_),
           {}},
          out);
  }
}

void TrainerMachine::handle(const Committed& order, TrainerOutput& out) {
  if (order.generation != generation_) {
    out.reason = "ignored: commits of generation " + to_string(order.generation);
    return;
  }
  limit_ = std::max(limit_, order.limit);
  while (!uncommitted_.empty() && uncommitted_.front().step < order.committed) uncommitted_.pop_front();
}

void TrainerMachine::handle(const SetLoaders& order, TrainerOutput& out) {
  loaders_ = order.loaders;
  out.loaders_changed = true;
}

template <class Order>
void TrainerMachine::add_errand(const Order& order, TrainerOutput& out) {
  if (order.generation != generation_ || superseded()) {
    out.reason = "ignored: an errand of generation " + to_string(order.generation);
    return;
  }
  errands_.emplace_back(order);
}

// What to do.

TrainerTask TrainerMachine::take() {
  TROUPE_ASSERT(!doing_, "a task is taken after the one before it is done");
  TrainerTask task = choose();
  if (std::holds_alternative<Wait>(task)) return task;
  doing_ = task;
  if (state_ == State::kGettingState) {
    const auto* transfer = std::get_if<TransferState>(&task);
    if (transfer == nullptr || transfer->role == TransferState::Role::kReceiver) {
      // Until the new state is in place, whole, this trainer counts as having none.
      steps_ = mutations_.install_in_place ? plan_.first_step : kNoState;
      uncommitted_.clear();
    }
  }
  return task;
}

TrainerTask TrainerMachine::choose() const {
  switch (state_) {
    case State::kIdle:
      return Wait{"no generation yet"};
    case State::kQuiescing:
      return HashState{};
    case State::kQuiesced:
      return Wait{"waits for the plan of generation " + to_string(generation_)};
    case State::kForming:
      return FormGroup{plan_};
    case State::kGettingState:
      return choose_state_task();
    case State::kRunning:
      return choose_running_task();
    case State::kApplying:
      return ApplyStep{steps_};
    case State::kLeft:
      return Wait{"left generation " + to_string(generation_)};
  }
  return Wait{};
}

TrainerTask TrainerMachine::choose_state_task() const {
  if (plan_.origin == StateOrigin::kInitial) return MakeInitialState{};
  if (plan_.origin == StateOrigin::kCheckpoint) return LoadCheckpoint{plan_.checkpoint};
  const auto role = is_receiver()            ? TransferState::Role::kReceiver
                    : rank() == plan_.source ? TransferState::Role::kSource
                                             : TransferState::Role::kBystander;
  return TransferState{generation_, role, plan_.source, plan_.receivers};
}

TrainerTask TrainerMachine::choose_running_task() const {
  if (!errands_.empty()) {
    if (const auto* evaluate = std::get_if<Evaluate>(&errands_.front())) return RunEvaluation{*evaluate};
    if (const auto* write = std::get_if<WriteCheckpoint>(&errands_.front())) return RunCheckpoint{*write};
    return HashState{};
  }
  if (steps_ < limit_) return ComputeStep{generation_, steps_, leaves()};
  return Wait{"step " + std::to_string(steps_) + " waits for the commit"};
}

// How it went.

TrainerOutput TrainerMachine::done(const TrainerResult& result) {
  TROUPE_ASSERT(doing_.has_value(), "an outcome belongs to a task that was taken");
  TrainerOutput out;
  const TrainerTask task = *std::exchange(doing_, std::nullopt);
  std::visit([&](const auto& t) { finished(t, result, out); }, task);
  if (state_ == State::kQuiescing && steps_ == kNoState) report_quiesced({}, out);
  return out;
}

void TrainerMachine::finished(const Wait&, const TrainerResult&, TrainerOutput&) {}

void TrainerMachine::finished(const FormGroup&, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  out.reports.push_back(GroupFormed{self_, generation_});
  const bool has_it = plan_.origin == StateOrigin::kMembers && plan_.receivers.empty();
  state_ = has_it ? State::kRunning : State::kGettingState;
}

void TrainerMachine::finished(const TransferState&, const TrainerResult& result, TrainerOutput& out) {
  if (const auto* ready = std::get_if<StateReady>(&result)) return installed(*ready, out);
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  state_ = State::kRunning;
}

void TrainerMachine::finished(const MakeInitialState&, const TrainerResult& result, TrainerOutput& out) {
  if (const auto* ready = std::get_if<StateReady>(&result)) return installed(*ready, out);
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) leave(*why, out);
}

void TrainerMachine::finished(const LoadCheckpoint& task, const TrainerResult& result, TrainerOutput& out) {
  if (const auto* ready = std::get_if<StateReady>(&result)) return installed(*ready, out);
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) {
    out.reports.push_back(CheckpointUnusable{self_, generation_, task.path, why->reason});
    state_ = State::kLeft;
  }
}

/// Also when a newer generation has called meanwhile: what is in place, whole, is what this trainer holds.
void TrainerMachine::installed(const StateReady& ready, TrainerOutput& out) {
  if (!plan_.state_hash.empty() && ready.hash != plan_.state_hash) {
    steps_ = kNoState;
    const std::string why = "the state that arrived hashes to " + ready.hash + ", not to " + plan_.state_hash;
    if (superseded()) return;
    if (plan_.origin == StateOrigin::kCheckpoint) {
      out.reports.push_back(CheckpointUnusable{self_, generation_, plan_.checkpoint, why});
      state_ = State::kLeft;
    } else {
      leave({why, {plan_.members[plan_.source].actor}}, out);
    }
    return;
  }
  steps_ = plan_.first_step;
  if (superseded()) return;
  out.reports.push_back(StateInstalled{self_, generation_, steps_, ready.hash});
  state_ = State::kRunning;
}

void TrainerMachine::finished(const ComputeStep&, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;  // even if it was reduced here: nothing has changed, so it never happened
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  if (const auto* reduced = std::get_if<Reduced>(&result)) {
    reduced_ = reduced->slots;
    state_ = State::kApplying;
  }
}

void TrainerMachine::finished(const ApplyStep& task, const TrainerResult&, TrainerOutput& out) {
  TROUPE_ASSERT(task.step == steps_, "steps are applied in order");
  ++steps_;
  uncommitted_.push_back({task.step, std::move(reduced_)});
  if (superseded()) return;  // TrainerQuiesced says it
  out.reports.push_back(StepApplied{self_, generation_, uncommitted_.back()});
  state_ = State::kRunning;
}

void TrainerMachine::finished(const HashState&, const TrainerResult& result, TrainerOutput& out) {
  const auto* hashed = std::get_if<Hashed>(&result);
  TROUPE_ASSERT(hashed != nullptr, "hashing a state does not fail");
  if (superseded()) return report_quiesced(hashed->hash, out);
  if (errands_.empty() || !std::holds_alternative<Finish>(errands_.front())) return;
  errands_.pop_front();
  out.reports.push_back(TrainerFinished{self_, generation_, steps_, hashed->hash});
}

void TrainerMachine::finished(const RunEvaluation& task, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  errands_.pop_front();
  if (const auto* e = std::get_if<Evaluated>(&result)) {
    out.reports.push_back(EvaluationDone{self_, generation_, task.order.epoch, e->pieces});
  }
}

void TrainerMachine::finished(const RunCheckpoint& task, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  errands_.pop_front();
  if (const auto* why = std::get_if<TaskAborted>(&result)) {
    out.reports.push_back(CheckpointFailed{self_, generation_, task.order.step, why->reason});
  } else if (const auto* stored = std::get_if<CheckpointStored>(&result)) {
    out.reports.push_back(CheckpointWritten{self_, generation_, task.order.step, stored->path, stored->hash});
  }
}

void TrainerMachine::leave(const TaskAborted& why, TrainerOutput& out) {
  state_ = State::kLeft;
  out.abort_group = true;
  out.reason = why.reason;
  out.reports.push_back(GenerationFailed{self_, generation_, why.reason, why.suspects});
}

void TrainerMachine::report_quiesced(StateHash hash, TrainerOutput& out) {
  state_ = State::kQuiesced;
  out.reports.push_back(TrainerQuiesced{
      self_, generation_, steps_, std::move(hash), {uncommitted_.begin(), uncommitted_.end()}});
}

}  // namespace troupe::train
