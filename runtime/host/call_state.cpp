#include "runtime/host/call_state.hpp"

#include <climits>

#include "runtime/core/futex.hpp"

namespace troupe {

bool CallState::resolve(Outcome outcome) {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    if (ready()) return false;
    outcome_ = std::move(outcome);
    ready_.store(1, std::memory_order_seq_cst);
    callbacks.swap(callbacks_);
  }
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(ready_, INT_MAX);
  if (waiter_ != nullptr) waiter_->nudge();
  for (const auto& callback : callbacks) callback();
  return true;
}

const Outcome& CallState::outcome() const {
  TROUPE_ASSERT(ready(), "the outcome is read once it is there");
  return outcome_;
}

bool CallState::wait(Duration timeout) {
  if (ready()) return true;
  const Instant now = MonotonicClock().now();
  const Instant deadline = timeout > Duration::max() - now ? Duration::max() : now + timeout;
  if (waiter_ != nullptr) {
    waiter_->wait([this] { return ready(); }, ready_, sleepers_, deadline);
    return ready();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  for (Instant t = now; !ready() && t < deadline; t = MonotonicClock().now())
    futex_wait(ready_, 0, deadline - t);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return ready();
}

void CallState::on_ready(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!ready()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void CallState::set_on_cancel(std::function<void()> hook) {
  on_cancel_ = std::make_unique<std::function<void()>>(std::move(hook));
}

void CallState::cancel(ErrorInfo why) {
  if (resolve(std::move(why)) && on_cancel_ != nullptr) (*on_cancel_)();
}

}  // namespace troupe
