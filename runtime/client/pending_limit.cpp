#include "runtime/client/pending_limit.hpp"

namespace troupe {

PendingLimit::PendingLimit(std::size_t most) : most_(most) {
  if (most == 0) {
    throw BadConfig("cannot limit the pending calls of a handle", "a limit of 0 allows no call",
                    "give a limit of 1 or more");
  }
}

void PendingLimit::check() {
  const std::lock_guard lock(mutex_);
  if (calls_.size() < most_) return;
  std::erase_if(calls_, [](const std::weak_ptr<CallState>& call) {
    const auto state = call.lock();
    return state == nullptr || state->ready();
  });
  if (calls_.size() < most_) return;
  throw LimitExceeded({ErrorCode::kLimit, "too many calls of one handle are under way",
                       std::to_string(calls_.size()) + " have no answer, and its max_pending_calls is " +
                           std::to_string(most_),
                       "wait for answers before you call again, or raise the limit"});
}

void PendingLimit::add(const std::shared_ptr<CallState>& call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(call);
}

}  // namespace troupe
