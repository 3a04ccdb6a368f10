/// How a trainer joins without a stop of the others: it takes a copy of a member's state and every step
/// since, beside the steps, and becomes a member when it is as far as they are.
#include <algorithm>

#include "actors/train/driver/driver_machine.hpp"

namespace troupe::train {
namespace {

/// So often it is tried beside the steps; then all wait until the state is copied.
constexpr int kFollowings = 2;

}  // namespace

/// The source is on a follower's node, if a member is; else it is the last, since the first has checkpoints
/// to write.
void DriverMachine::start_following(const std::vector<ActorId>& followers, Instant now, Actions& out) {
  const NodeId node = trainers_.at(followers.front()).ready.node;
  ActorId source = members_.back();
  for (const ActorId member : members_) {
    if (trainers_.at(member).ready.node == node) source = member;
  }
  following_ = Following{.source = source,
                         .shared_in = generation_,
                         .followers = {followers.begin(), followers.end()},
                         .deadline = now + config_.deadlines.hang};
  out.push_back(SendOrder{source, ShareState{generation_}});
}

void DriverMachine::report(const StateShared& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (!following_ || following_->source != from.ready.actor || following_->shared)
    return ignore("nobody follows " + describe(from));
  following_->shared = true;
  following_->deadline = now + config_.deadlines.standstill;
  for (const ActorId follower : following_->followers)
    out.push_back(SendOrder{follower, FollowState{generation_, r.address, following_->shared_in, lineage_}});
}

void DriverMachine::report(const StateFollowed& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (!following_ || !following_->followers.contains(r.actor))
    return ignore(describe(from) + " follows nobody");
  following_->caught_up.insert(r.actor);
  widen(now, out);
}

void DriverMachine::report(const FollowFailed& r, Trainer& from, Instant now, Actions& out) {
  if (!current(r.generation)) return;
  if (!following_ || (!following_->followers.contains(r.actor) && following_->source != r.actor))
    return ignore(describe(from) + " follows nobody");
  ++failed_followings_;
  stop_following(r.actor, describe(from) + " could not take the state beside the steps: " + r.reason, now,
                 out);
}

/// It is gone, or has given up. Without a source or a follower there is nothing to wait for.
void DriverMachine::stop_following(ActorId who, const std::string& why, Instant now, Actions& out) {
  if (!following_) return;
  following_->followers.erase(who);
  following_->caught_up.erase(who);
  if (following_->source == who || following_->followers.empty()) {
    following_.reset();
    if (must_wait_for_copies()) out.push_back(Notice{why + "; the others wait for it", {}});
  }
  widen(now, out);
}

bool DriverMachine::all_caught_up() const {
  return following_->shared && !following_->caught_up.empty() &&
         std::all_of(following_->followers.begin(), following_->followers.end(), [&](ActorId follower) {
           const auto at = trainers_.find(follower);
           return at == trainers_.end() || at->second.killed || following_->caught_up.contains(follower);
         });
}

bool DriverMachine::must_wait_for_copies() const {
  return failed_followings_ >= kFollowings;
}

/// Its source holds the plan's state, and has what came since.
bool DriverMachine::can_follow_up(const Trainer& trainer) const {
  if (!following_ || !following_->shared || !following_->followers.contains(trainer.ready.actor))
    return false;
  const auto source = trainers_.find(following_->source);
  return source != trainers_.end() && source->second.rank >= 0 && has_the_state(source->second) &&
         trainer.quiesced && trainer.steps != kNoState && trainer.steps < first_step_ &&
         trainer.lineage == lineage_;
}

void DriverMachine::check_following(Instant now, Actions& out) {
  if (!following_ || now < following_->deadline || all_caught_up()) return;
  following_.reset();
  failed_followings_ = kFollowings;
  expired("a trainer that was to join did not get the state beside the steps; the others wait for it", out);
  widen(now, out);
}

}  // namespace troupe::train
