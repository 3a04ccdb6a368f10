#include "runtime/host/leaving_actors.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMostKept = 10'000;  ///< of actors that nobody has asked for

}  // namespace

void LeavingActors::watch(const ActorAddress& actor, OnLeaving callback) {
  const std::lock_guard lock(mutex_);
  if (const auto at = leaving_.find(actor.actor); at != leaving_.end())
    run_([callback, leaving = at->second] { callback(leaving); });
  watched_.insert_or_assign(actor.actor, Watched{actor.home(), std::move(callback)});
}

void LeavingActors::told(const wire::ActorLeaves& told) {
  const Leaving leaving{told.reason, told.stays, told.for_others};
  const std::lock_guard lock(mutex_);
  if (told.stays) {
    leaving_.erase(told.actor);
  } else {
    leaving_.insert_or_assign(told.actor, leaving);
    if (leaving_.size() > kMostKept) leaving_.erase(leaving_.begin());  // the oldest
  }
  const auto at = watched_.find(told.actor);
  if (at == watched_.end()) return;
  run_([callback = at->second.callback, leaving] { callback(leaving); });
}

void LeavingActors::forget(const std::function<bool(ProcessAddress)>& gone) {
  const std::lock_guard lock(mutex_);
  for (auto at = watched_.begin(); at != watched_.end();) {
    if (!gone(at->second.at)) {
      ++at;
      continue;
    }
    leaving_.erase(at->first);
    at = watched_.erase(at);
  }
}

}  // namespace troupe
