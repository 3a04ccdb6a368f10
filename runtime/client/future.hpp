/// Future<T>: the answer of a call that is under way.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/host/call_state.hpp"

namespace troupe {

namespace detail {

/// The actor whose method runs in this thread may not block in it.
void check_may_block(const char* what);
/// Wraps `callback` so that it runs in the mailbox of the actor whose method runs in this thread, if there is
/// one: an actor's state is never touched from two threads.
std::function<void()> in_this_actor(std::function<void()> callback);

template <class T>
Result<T> decode_outcome(const Outcome& outcome) {
  if (!outcome.ok()) return outcome.error();
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    return wire::decode<T>(*outcome);
  }
}

}  // namespace detail

/// Copyable: copies share one answer. Thread-safe.
template <class T>
class Future {
 public:
  using value_type = T;

  Future() = default;
  explicit Future(std::shared_ptr<CallState> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }
  bool ready() const { return state_->ready(); }

  /// The answer. Throws what the call threw (TaskFailed carries the message of a user exception), ActorDied
  /// when the actor is gone, or Timeout after `timeout` (default: one hour). In a method of a light actor it
  /// throws BadConfig and names `then`: such an actor shares its thread and may not block.
  T get(Duration timeout = std::chrono::hours(1)) const {
    detail::check_may_block("Future::get");
    if (!state_->wait(timeout)) {
      throw Timeout(ErrorInfo{ErrorCode::kTimeout, "a call gave no answer",
                              std::to_string(to_seconds(timeout)) + " s passed",
                              "raise the timeout, or look at what the actor does"});
    }
    return detail::decode_outcome<T>(state_->outcome()).value();
  }

  /// Calls `callback(Result<T>)` with the answer: in the mailbox of the calling actor when called in an
  /// actor's method, otherwise in a thread of the runtime, where it must not block.
  template <class Callback>
  void then(Callback callback) const {
    state_->on_ready(detail::in_this_actor([state = state_, callback = std::move(callback)]() mutable {
      callback(detail::decode_outcome<T>(state->outcome()));
    }));
  }

  const std::shared_ptr<CallState>& state() const { return state_; }

 private:
  std::shared_ptr<CallState> state_;
};

/// A Future that a program fills itself, for a method that answers later.
template <class T>
class Promise {
 public:
  Promise() : state_(std::make_shared<CallState>(nullptr)) {}
  Future<T> future() const { return Future<T>(state_); }
  void set(const T& value) { state_->resolve(wire::encode(value)); }
  void fail(ErrorInfo error) { state_->resolve(std::move(error)); }

 private:
  std::shared_ptr<CallState> state_;
};

/// All answers, in order; fails with the first failure it meets.
template <class T>
std::vector<T> get_all(const std::vector<Future<T>>& futures, Duration timeout = std::chrono::hours(1)) {
  const Instant deadline = MonotonicClock().now() + timeout;
  std::vector<T> values;
  values.reserve(futures.size());
  for (const auto& future : futures) values.push_back(future.get(deadline - MonotonicClock().now()));
  return values;
}

}  // namespace troupe
