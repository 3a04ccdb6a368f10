/// Trainers and loaders whose nodes drain. A trainer goes between two steps: the others have its state, or
/// another one takes it first, beside the steps. So no step is lost.
#include <algorithm>

#include "actors/train/driver/driver_machine.hpp"

namespace troupe::train {

/// That live and are to go on.
int DriverMachine::staying() const {
  return static_cast<int>(std::count_if(trainers_.begin(), trainers_.end(), [](const auto& entry) {
    return !entry.second.killed && !entry.second.leaves;
  }));
}

int DriverMachine::staying_members() const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(), [this](ActorId member) {
    const auto at = trainers_.find(member);
    return at != trainers_.end() && !at->second.leaves;
  }));
}

void DriverMachine::handle(const WorkerLeaves& e, Instant now, Actions& out) {
  if (loaders_.contains(e.actor)) {
    if (e.stays) return;
    dead_.insert(e.actor);
    out.push_back(KillActor{e.actor, "its node drains (" + e.reason + ")"});
    return lost_loader(e.actor, "its node drains", now, out, false);
  }
  const auto at = trainers_.find(e.actor);
  if (at == trainers_.end() || at->second.killed)
    return ignore("trainer " + to_string(e.actor) + " counts as dead, or is not known");
  at->second.leaves = !e.stays;
  at->second.why_it_leaves = e.reason;
  if (e.stays) agenda_.cancel_leave();
  widen(now, out);
}

/// Begins a generation without those that leave, at the end of a step that all may run, so that all hold the
/// same and none is thrown away; with shards at a checkpoint. Where too few would be left, others join first.
/// True if it did. Who has left the members is not needed any more.
bool DriverMachine::let_leave(Instant now, Actions& out) {
  for (auto& [id, trainer] : trainers_) {
    if (trainer.leaves && !trainer.killed && trainer.quiesced && !is_member(trainer))
      kill(trainer, "its node drains (" + trainer.why_it_leaves + ")", now, out);
  }
  const int stay = staying_members();
  if (stay == static_cast<int>(members_.size()) || stay < config_.min_trainers) {
    agenda_.cancel_leave();
    return false;
  }
  if (following_ && following_->join_at) return false;  // then
  agenda_.leave(committed());
  if (committed() < *agenda_.leave_at()) return false;
  if (config_.sharded && committed() != checkpoints_.newest_step()) {
    agenda_.cancel_leave();  // it could not be saved; a later one may be
    return false;
  }
  const auto leaves = std::find_if(members_.begin(), members_.end(),
                                   [this](ActorId member) { return trainers_.at(member).leaves; });
  const Trainer& one = trainers_.at(*leaves);
  open_generation(describe(one) + " leaves: its node drains (" + one.why_it_leaves + ")", false, now, out);
  return true;
}

/// Cuts `order`, which is that of the ranks, to those that become members. Who leaves is one if there are too
/// few others, or if nobody else has the state: it passes that on, and goes after the next step.
void DriverMachine::leave_out(std::vector<Trainer*>& order, bool from_members) {
  const auto holds = [&](const Trainer* t) { return !from_members || has_the_state(*t); };
  std::stable_partition(order.begin(), order.end(), [](const Trainer* t) { return !t->leaves; });
  const auto staying = std::count_if(order.begin(), order.end(), [](const Trainer* t) { return !t->leaves; });
  const bool may_go =
      staying >= config_.min_trainers &&
      std::any_of(order.begin(), order.end(), [&](const Trainer* t) { return !t->leaves && holds(t); });
  const std::vector<Trainer*> all = order;
  if (may_go) std::erase_if(order, [](const Trainer* t) { return t->leaves; });
  order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(config_.trainers)));
  if (std::any_of(order.begin(), order.end(), holds)) return;
  const auto holder = std::find_if(all.begin(), all.end(), holds);
  if (holder == all.end()) return;
  if (static_cast<int>(order.size()) >= config_.logical_ranks) order.pop_back();
  order.push_back(*holder);
}

}  // namespace troupe::train
