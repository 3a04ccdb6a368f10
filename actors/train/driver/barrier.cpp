#include "actors/train/driver/barrier.hpp"

#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::train {

void Barrier::begin(BarrierTask task, std::vector<ActorId> members) {
  TROUPE_ASSERT(task != BarrierTask::kNone && !members.empty(), "a barrier has a task and members");
  task_ = task;
  members_ = std::move(members);
  waited_for_ = {members_.begin(), members_.end()};
  first_hash_.reset();
}

bool Barrier::waits_for(BarrierTask task, ActorId member) const {
  return task_ == task && waited_for_.contains(member);
}

bool Barrier::done(ActorId member) {
  return waited_for_.erase(member) > 0 && waited_for_.empty();
}

bool Barrier::finish(ActorId member, const StateHash& hash, const std::vector<PartHash>& parts) {
  if (member == members_.front()) hash_ = hash, parts_ = parts;
  if (!first_hash_) first_hash_ = hash;
  return *first_hash_ == hash;
}

}  // namespace troupe::train
