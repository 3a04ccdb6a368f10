#include "actors/train/driver/following.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::train {

bool Following::all_caught_up(const std::function<bool(ActorId)>& counts) const {
  if (!now_ || !now_->shared || now_->caught_up.empty()) return false;
  return std::all_of(now_->followers.begin(), now_->followers.end(), [&](ActorId follower) {
    return !counts(follower) || now_->caught_up.contains(follower);
  });
}

void Following::begin(ActorId source, Generation generation, const std::vector<ActorId>& followers,
                      Instant deadline) {
  TROUPE_ASSERT(!followers.empty(), "somebody follows");
  now_ = State{.source = source,
               .shared_in = generation,
               .followers = {followers.begin(), followers.end()},
               .deadline = deadline};
}

bool Following::share(ActorId source, Instant deadline) {
  if (!now_ || now_->source != source || now_->shared) return false;
  now_->shared = true;
  now_->deadline = deadline;
  return true;
}

bool Following::catch_up(ActorId follower) {
  if (!now_ || !now_->followers.contains(follower)) return false;
  now_->caught_up.insert(follower);
  return true;
}

bool Following::fail(ActorId who) {
  if (!now_ || (!now_->followers.contains(who) && now_->source != who)) return false;
  ++failures_;
  return true;
}

bool Following::drop(ActorId who) {
  if (!now_) return false;
  now_->followers.erase(who);
  now_->caught_up.erase(who);
  if (now_->source != who && !now_->followers.empty()) return false;
  now_.reset();
  return true;
}

void Following::note_progress(ActorId follower, Instant deadline) {
  if (now_ && now_->followers.contains(follower)) now_->deadline = deadline;
}

void Following::shift(Duration gap) {
  if (now_) now_->deadline += gap;
}

void Following::give_up() {
  now_.reset();
  failures_ = kTries;
}

void Following::begin_generation() {
  now_.reset();
  failures_ = 0;
}

}  // namespace troupe::train
