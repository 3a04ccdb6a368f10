#include "actors/train/trainer/trainer_machine.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::train {
namespace {

/// Steps and epochs are counted from 1 where people see them.
std::string nth(std::int64_t from_zero) {
  return std::to_string(from_zero + 1);
}
std::string name_of(const Wait&) {
  return "nothing";
}
std::string name_of(const FormGroup&) {
  return "the forming of the group";
}
std::string name_of(const TransferState&) {
  return "the transfer of the state";
}
std::string name_of(const FollowSource&) {
  return "the transfer of the state beside the steps";
}
std::string name_of(const ShareOut&) {
  return "a copy of the state for others";
}
std::string name_of(const MakeInitialState&) {
  return "the initial state";
}
std::string name_of(const LoadCheckpoint& task) {
  return "the reading of " + task.path;
}
std::string name_of(const ComputeStep& task) {
  return "step " + nth(task.step);
}
std::string name_of(const ApplyStep& task) {
  return "the apply of step " + nth(task.step);
}
std::string name_of(const HashState&) {
  return "the hash of the final state";
}
std::string name_of(const HashParts& task) {
  return "the hash of the state of step " + std::to_string(task.order.step);
}
std::string name_of(const RunEvaluation& task) {
  return "the evaluation of epoch " + nth(task.order.epoch);
}
std::string name_of(const RunCheckpoint& task) {
  return "the checkpoint of step " + std::to_string(task.order.step);
}
std::string name_of(const RunPrune&) {
  return "the deletion of old checkpoints";
}
std::string name_of(const TrainerTask& task) {
  return std::visit([](const auto& one) { return name_of(one); }, task);
}

/// A task that begins with a wait for other ranks or for batches.
bool begins_with_a_wait(const TrainerTask& task) {
  return std::holds_alternative<FormGroup>(task) || std::holds_alternative<TransferState>(task) ||
         std::holds_alternative<FollowSource>(task) || std::holds_alternative<ComputeStep>(task) ||
         std::holds_alternative<RunEvaluation>(task);
}

}  // namespace

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

bool TrainerMachine::is_follower() const {
  return std::find(plan_.followers.begin(), plan_.followers.end(), rank()) != plan_.followers.end();
}

bool TrainerMachine::may_be_followed(Generation shared_in) const {
  if (generation_ == shared_in) return true;
  const bool runs = state_ == State::kRunning || state_ == State::kApplying;
  return !runs || (!plan_.followers.empty() && steps_ == plan_.first_step);
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
  barrier_tasks_.clear();
  out.abort_group = doing_.has_value();  // between two tasks nothing is in flight
  out.reason = "leaves for generation " + to_string(generation_) + ": " + order.reason;
  if (!doing_) report_quiesced(out);
}

void TrainerMachine::handle(const StartGeneration& order, TrainerOutput& out) {
  if (order.plan.generation != generation_ || state_ != State::kQuiesced) {
    out.reason = "ignored: a plan of generation " + to_string(order.plan.generation) + " in generation " +
                 to_string(generation_);
    return;
  }
  plan_ = order.plan;
  loaders_ = plan_.loaders;
  evaluated_ = plan_.evaluated;
  out.loaders_changed = true;
  limit_ = plan_.first_step;
  state_ = State::kForming;
  proves_ = plan_.prove;
  halts_ = false;
  const bool must_hold = plan_.origin == StateOrigin::kMembers && !is_receiver();
  const bool holds =
      lineage_ == plan_.lineage &&
      (is_follower() ? steps_ != kNoState && steps_ < plan_.first_step : steps_ == plan_.first_step);
  if (rank() < 0 || (must_hold && !holds)) {
    leave({rank() < 0 ? "the plan has no rank for this trainer"
                      : "the plan takes this trainer to hold " + std::to_string(plan_.first_step) +
                            " steps of lineage " + to_string(plan_.lineage) + ", it holds " +
                            std::to_string(steps_) + " of " + to_string(lineage_),
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
  if (!order.evaluated.empty()) evaluated_[order.committed] = order.evaluated;
  while (!uncommitted_.empty() && uncommitted_.front().step < order.committed) uncommitted_.pop_front();
}

void TrainerMachine::handle(const SetLoaders& order, TrainerOutput& out) {
  loaders_ = order.loaders;
  out.loaders_changed = true;
}

void TrainerMachine::handle(const FollowState& order, TrainerOutput& out) {
  const bool free = state_ == State::kIdle || state_ == State::kQuiesced || state_ == State::kLeft;
  if (order.generation < generation_ || !free) {
    out.reason = "ignored: nothing to follow in generation " + to_string(generation_);
    return;
  }
  generation_ = order.generation;
  follows_ = order;
  caught_up_ = false;
  state_ = State::kFollowing;
}

template <class Order>
void TrainerMachine::add_barrier_task(const Order& order, TrainerOutput& out) {
  if (order.generation != generation_ || superseded()) {
    out.reason = "ignored: a barrier task of generation " + to_string(order.generation);
    return;
  }
  barrier_tasks_.emplace_back(order);
}

// What to do.

TrainerTask TrainerMachine::take() {
  TROUPE_ASSERT(!doing_, "a task is taken after the one before it is done");
  TrainerTask task = choose();
  if (std::holds_alternative<Wait>(task)) return task;
  doing_ = task;
  progress_ = {progress_.count + 1, !begins_with_a_wait(task), name_of(task)};
  if (state_ == State::kGettingState) {
    const auto* transfer = std::get_if<TransferState>(&task);
    if (transfer == nullptr || transfer->role == TransferState::Role::kReceiver) {
      // Until the new state is in place, whole, this trainer counts as having none.
      steps_ = mutations_.install_in_place ? plan_.first_step : kNoState;
      uncommitted_.clear();
    }
  } else if (state_ == State::kFollowing) {
    steps_ = kNoState;
    uncommitted_.clear();
  }
  return task;
}

void TrainerMachine::computes(const std::string& part) {
  TROUPE_ASSERT(doing_.has_value(), "who computes has a task");
  progress_ = {progress_.count + 1, true, name_of(*doing_) + ", " + part};
}

void TrainerMachine::waits() {
  TROUPE_ASSERT(doing_.has_value(), "who waits in the middle of a task has one");
  progress_ = {progress_.count + 1, false, name_of(*doing_)};
}

TrainerTask TrainerMachine::choose() const {
  switch (state_) {
    case State::kIdle:
      return Wait{"no generation yet"};
    case State::kQuiescing:
      return Wait{"ends its task"};
    case State::kQuiesced:
      return Wait{"waits for the plan of generation " + to_string(generation_)};
    case State::kFollowing:
      return FollowSource{.order = follows_, .goes_on = caught_up_};
    case State::kForming:
      return FormGroup{plan_};
    case State::kGettingState:
      return choose_state_task();
    case State::kRunning:
      return choose_running_task();
    case State::kApplying:
      return apply_task();
    case State::kLeft:
      return Wait{"left generation " + to_string(generation_)};
  }
  return Wait{};
}

TrainerTask TrainerMachine::apply_task() const {
  ApplyStep task{steps_, proves_ ? static_cast<int>(steps_ - plan_.first_step) : -1};
  if (const auto at = evaluated_.find(steps_); at != evaluated_.end()) task.evaluated = at->second;
  return task;
}

TrainerTask TrainerMachine::choose_state_task() const {
  if (plan_.origin == StateOrigin::kInitial) return MakeInitialState{};
  if (plan_.origin == StateOrigin::kCheckpoint)
    return LoadCheckpoint{plan_.checkpoint, plan_.state_hash, plan_.source, plan_.receivers};
  if (is_follower()) return FollowSource{follows_, plan_.first_step, true};
  const auto role = is_receiver() ? TransferState::Role::kReceiver : TransferState::Role::kSource;
  return TransferState{generation_, role, plan_.source, plan_.receivers};
}

TrainerTask TrainerMachine::choose_running_task() const {
  if (!barrier_tasks_.empty()) {
    if (const auto* evaluate = std::get_if<Evaluate>(&barrier_tasks_.front()))
      return RunEvaluation{*evaluate};
    if (const auto* write = std::get_if<WriteCheckpoint>(&barrier_tasks_.front()))
      return RunCheckpoint{*write};
    if (const auto* prove = std::get_if<ProveState>(&barrier_tasks_.front())) return HashParts{*prove};
    if (const auto* share = std::get_if<ShareState>(&barrier_tasks_.front())) return ShareOut{*share};
    if (const auto* prune = std::get_if<PruneCheckpoints>(&barrier_tasks_.front())) return RunPrune{*prune};
    return HashState{};
  }
  if (steps_ < limit_ && !halts_) {
    return ComputeStep{generation_, steps_, leaves(),
                       plan_.exact && is_rehearsed(steps_, plan_.begun_at, plan_.total_steps)};
  }
  return Wait{"step " + std::to_string(steps_) + " waits for the commit"};
}

// How it went.

TrainerOutput TrainerMachine::done(const TrainerResult& result) {
  TROUPE_ASSERT(doing_.has_value(), "an outcome belongs to a task that was taken");
  TrainerOutput out;
  const TrainerTask task = *std::exchange(doing_, std::nullopt);
  progress_ = {progress_.count + 1, false, {}};
  std::visit([&](const auto& t) { finished(t, result, out); }, task);
  if (state_ == State::kQuiescing) report_quiesced(out);
  return out;
}

void TrainerMachine::finished(const Wait&, const TrainerResult&, TrainerOutput&) {}

void TrainerMachine::finished(const FormGroup&, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  out.reports.push_back(GroupFormed{self_, generation_});
  if (is_follower() && mutations_.join_behind) return installed(out);
  // Whoever has the state and does not send it takes no part in the transfer.
  const bool sends = !plan_.receivers.empty() && rank() == plan_.source;
  const bool has_it = plan_.origin == StateOrigin::kMembers && !is_receiver() && !is_follower() && !sends;
  state_ = has_it ? State::kRunning : State::kGettingState;
}

void TrainerMachine::finished(const TransferState&, const TrainerResult& result, TrainerOutput& out) {
  if (std::holds_alternative<StateReady>(result)) return installed(out);
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  state_ = State::kRunning;
}

void TrainerMachine::finished(const FollowSource& task, const TrainerResult& result, TrainerOutput& out) {
  // Also when a newer generation has called meanwhile: what is in place, whole, is what this trainer holds.
  if (const auto* followed = std::get_if<Followed>(&result)) {
    steps_ = followed->steps;
    lineage_ = task.order.lineage;
    uncommitted_.assign(followed->uncommitted.begin(), followed->uncommitted.end());
  }
  if (superseded()) return;
  if (task.until != kNoState) {
    if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
    out.reports.push_back(StateInstalled{self_, generation_, steps_});
    state_ = State::kRunning;
    return;
  }
  if (const auto* why = std::get_if<TaskAborted>(&result)) {
    state_ = State::kLeft;
    out.reports.push_back(FollowFailed{self_, generation_, why->reason});
  } else if (!std::exchange(caught_up_, true)) {
    out.reports.push_back(StateFollowed{self_, generation_, steps_});
  }
}

void TrainerMachine::finished(const ShareOut&, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  barrier_tasks_.pop_front();
  if (const auto* why = std::get_if<TaskAborted>(&result)) {
    out.reports.push_back(FollowFailed{self_, generation_, why->reason});
  } else if (const auto* shared = std::get_if<Shared>(&result)) {
    out.reports.push_back(StateShared{self_, generation_, shared->address});
  }
}

void TrainerMachine::finished(const MakeInitialState&, const TrainerResult& result, TrainerOutput& out) {
  if (std::holds_alternative<StateReady>(result)) return installed(out);
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) leave(*why, out);
}

void TrainerMachine::finished(const LoadCheckpoint& task, const TrainerResult& result, TrainerOutput& out) {
  if (std::holds_alternative<StateReady>(result)) return installed(out);
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) {
    if (why->is_of_others) return leave(*why, out);
    out.reports.push_back(CheckpointUnreadable{self_, generation_, task.path, why->reason});
    state_ = State::kLeft;
  }
}

/// Also when a newer generation has called meanwhile: what is in place, whole, is what this trainer holds.
void TrainerMachine::installed(TrainerOutput& out) {
  steps_ = plan_.first_step;
  lineage_ = plan_.lineage;
  whole_ = true;
  if (superseded()) return;
  out.reports.push_back(StateInstalled{self_, generation_, steps_});
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

void TrainerMachine::finished(const ApplyStep& task, const TrainerResult& result, TrainerOutput& out) {
  TROUPE_ASSERT(task.step == steps_, "steps are applied in order");
  if (const auto* why = std::get_if<TaskAborted>(&result)) {  // others were needed, with shards
    whole_ = false;
    steps_ = kNoState;  // its weights may be those of two steps
    uncommitted_.clear();
    if (!superseded()) leave(*why, out);
    return;
  }
  ++steps_;
  evaluated_.erase(evaluated_.begin(), evaluated_.lower_bound(steps_));
  whole_ = whole_ && (!plan_.sharded || plan_.members.size() == 1);
  const auto* applied = std::get_if<Applied>(&result);
  halts_ = applied != nullptr && applied->halts;
  uncommitted_.push_back(
      {task.step, std::move(reduced_), applied == nullptr ? StepValues{} : applied->values});
  if (superseded()) return;  // TrainerQuiesced says it
  StepApplied report{self_, generation_, uncommitted_.back(), {}};
  if (applied != nullptr) {
    report.parts = applied->parts;
    report.proven = applied->proven;
    if (applied->proven) proves_ = false;
  }
  out.reports.push_back(std::move(report));
  state_ = State::kRunning;
}

void TrainerMachine::finished(const HashState&, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  barrier_tasks_.pop_front();
  if (const auto* hashed = std::get_if<Hashed>(&result))
    out.reports.push_back(TrainerFinished{self_, generation_, steps_, hashed->hash, hashed->parts});
}

void TrainerMachine::finished(const HashParts& task, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  barrier_tasks_.pop_front();
  if (const auto* hashed = std::get_if<PartsHashed>(&result))
    out.reports.push_back(StateProved{self_, generation_, task.order.step, hashed->parts});
}

void TrainerMachine::finished(const RunPrune&, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  barrier_tasks_.pop_front();
  if (const auto* why = std::get_if<TaskAborted>(&result))
    out.reports.push_back(PruneFailed{self_, generation_, why->reason});
}

void TrainerMachine::finished(const RunEvaluation& task, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  if (const auto* why = std::get_if<TaskAborted>(&result)) return leave(*why, out);
  barrier_tasks_.pop_front();
  if (const auto* e = std::get_if<Evaluated>(&result)) {
    out.reports.push_back(EvaluationDone{self_, generation_, task.order.epoch, e->pieces});
  }
}

void TrainerMachine::finished(const RunCheckpoint& task, const TrainerResult& result, TrainerOutput& out) {
  if (superseded()) return;
  barrier_tasks_.pop_front();
  const bool copied = !std::holds_alternative<TaskAborted>(result);
  if (copied) out.reports.push_back(CheckpointCopied{self_, generation_, task.order.step});
  if (!std::holds_alternative<StateCopied>(result)) tell_written(task.order, result, out);
}

void TrainerMachine::tell_written(const WriteCheckpoint& order, const TrainerResult& result,
                                  TrainerOutput& out) const {
  if (const auto* why = std::get_if<TaskAborted>(&result)) {
    out.reports.push_back(CheckpointFailed{self_, order.generation, order.step, why->reason});
  } else if (const auto* stored = std::get_if<CheckpointStored>(&result)) {
    out.reports.push_back(
        CheckpointWritten{self_, order.generation, order.step, stored->path, stored->hash, stored->parts});
  }
}

TrainerOutput TrainerMachine::wrote(const WriteCheckpoint& order, const TrainerResult& result) {
  TrainerOutput out;
  writes_.reset();
  tell_written(order, result, out);
  return out;
}

/// Who waits for orders and writes is at that.
TrainerReport TrainerMachine::heartbeat() const {
  if (doing_ || !writes_) return TrainerHeartbeat{self_, progress_};
  return TrainerHeartbeat{
      self_, {progress_.count, true, "the writing of the checkpoint of step " + std::to_string(*writes_)}};
}

void TrainerMachine::leave(const TaskAborted& why, TrainerOutput& out) {
  state_ = State::kLeft;
  out.abort_group = true;
  out.reason = why.reason;
  out.reports.push_back(GenerationFailed{self_, generation_, why.reason, why.suspects});
}

void TrainerMachine::report_quiesced(TrainerOutput& out) {
  state_ = State::kQuiesced;
  if (!whole_ || !has_whole_) {
    steps_ = kNoState;
    uncommitted_.clear();
  }
  out.reports.push_back(TrainerQuiesced{
      self_, generation_, steps_, lineage_, {uncommitted_.begin(), uncommitted_.end()}, writes_.has_value()});
}

}  // namespace troupe::train
