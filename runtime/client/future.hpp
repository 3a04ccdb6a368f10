/// Future<T>: the answer of a call that is under way. Promise<T>: a Future that a program fills itself.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/host/call_state.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe {

namespace detail {

/// The actor whose method runs in this thread may not block in it. `instead`: what it may do.
void check_may_block(const char* what, const char* instead);
/// Wraps `callback` so that it runs in the mailbox of the actor whose method runs in this thread, if there is
/// one: an actor's state is never touched from two threads.
std::function<void()> in_this_actor(std::function<void()> callback);
[[noreturn]] void throw_empty_future();
[[noreturn]] void throw_moved_promise();
[[noreturn]] void throw_call_timeout(Duration timeout);
/// What a Promise resolves with when its last copy is gone.
ErrorInfo dropped_promise();
/// Resolved with the encoded vector of all answers once all are there, or with the first failure.
std::shared_ptr<CallState> all_of(std::vector<std::shared_ptr<CallState>> states, bool values);

/// Handles in the answer become handles of `gate`'s process; null: of the current one.
template <class T>
Result<T> decode_outcome(const Outcome& outcome, ProcessGate* gate) {
  if (!outcome.ok()) return outcome.error();
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    const ProcessGateScope scope(gate);
    return wire::decode<T>(*outcome);
  }
}

}  // namespace detail

/// Copyable: copies share one answer. Thread-safe. A default-constructed one throws BadConfig when used.
template <class T>
class Future {
 public:
  using value_type = T;

  Future() = default;
  explicit Future(std::shared_ptr<CallState> state, ProcessGate* gate = nullptr)
      : state_(std::move(state)), gate_(gate) {}

  bool valid() const { return state_ != nullptr; }
  bool ready() const { return checked().ready(); }
  /// Waits until the answer, or a failure, is there; false when `timeout` is over first. Throws as get() in a
  /// method of a light actor.
  bool wait(Duration timeout) const {
    detail::check_may_block(
        "Future::wait", "use then(callback), return the Future, or spawn the actor with .isolated = true");
    return checked().wait(timeout);
  }

  /// The answer. Throws what the call threw (TaskFailed carries type, message and origin of a user
  /// exception), ActorDied when the actor is gone, or Timeout after `timeout` (default: one hour). In a
  /// method of a light actor it throws BadConfig and names `then`: such an actor shares its thread and may
  /// not block.
  T get(Duration timeout = std::chrono::hours(1)) const {
    detail::check_may_block(
        "Future::get", "use then(callback), return the Future, or spawn the actor with .isolated = true");
    if (!checked().wait(timeout)) detail::throw_call_timeout(timeout);
    return detail::decode_outcome<T>(state_->outcome(), gate_).value();
  }

  /// Calls `callback(Result<T>)` with the answer: in the mailbox of the calling actor when called in an
  /// actor's method, otherwise in a thread of the runtime, where it must not block.
  template <class Callback>
  void then(Callback callback) const {
    checked().on_ready(
        detail::in_this_actor([state = state_, gate = gate_, callback = std::move(callback)]() mutable {
          callback(detail::decode_outcome<T>(state->outcome(), gate));
        }));
  }

  /// Of a spawn that asks for GPUs and has no answer yet: why it waits ("no node has 1 GPU free: ..."). Empty:
  /// nothing was told.
  std::string waits_for() const { return checked().waits_for(); }

  /// For the runtime. Null if default-constructed.
  const std::shared_ptr<CallState>& state() const { return state_; }

 private:
  CallState& checked() const {
    if (state_ == nullptr) detail::throw_empty_future();
    return *state_;
  }

  std::shared_ptr<CallState> state_;
  ProcessGate* gate_ = nullptr;
};

/// A Future that a program fills itself, for a method that answers later. Copies fill the same one; when the
/// last copy is gone without an answer, the Future fails with TaskFailed. Thread-safe. A moved-from one
/// throws BadConfig when used.
template <class T>
class Promise {
 public:
  Promise() : owner_(std::make_shared<Owner>()) {}
  Future<T> future() const { return Future<T>(state()); }
  /// Only the first answer counts.
  template <class Value>
  requires(!std::is_void_v<T> && std::is_convertible_v<Value, T>) void set(const Value& value) {
    if constexpr (std::is_same_v<Value, T>) {
      state()->resolve(wire::encode<T>(value));
    } else {
      state()->resolve(wire::encode<T>(T(value)));
    }
  }
  void set() requires std::is_void_v<T> { state()->resolve(wire::Bytes{}); }
  void fail(ErrorInfo error) { state()->resolve(std::move(error)); }

 private:
  struct Owner {
    Owner() = default;
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    ~Owner() {
      if (!state->ready()) state->resolve(detail::dropped_promise());
    }
    std::shared_ptr<CallState> state = std::make_shared<CallState>(nullptr);
  };
  const std::shared_ptr<CallState>& state() const {
    if (owner_ == nullptr) detail::throw_moved_promise();
    return owner_->state;
  }
  std::shared_ptr<Owner> owner_;
};

/// All answers, in order; fails with the first failure it meets.
template <class T>
requires(!std::is_void_v<T>) std::vector<T> get_all(const std::vector<Future<T>>& futures,
                                                    Duration timeout = std::chrono::hours(1)) {
  const Instant deadline = MonotonicClock().now() + timeout;
  std::vector<T> values;
  values.reserve(futures.size());
  for (const auto& future : futures) values.push_back(future.get(deadline - MonotonicClock().now()));
  return values;
}

/// Waits for all; fails with the first failure it meets.
inline void get_all(const std::vector<Future<void>>& futures, Duration timeout = std::chrono::hours(1)) {
  const Instant deadline = MonotonicClock().now() + timeout;
  for (const auto& future : futures) future.get(deadline - MonotonicClock().now());
}

/// A Future of all answers, in order, for code that may not wait; fails with the first failure that arrives.
template <class T>
auto when_all(const std::vector<Future<T>>& futures) {
  std::vector<std::shared_ptr<CallState>> states;
  states.reserve(futures.size());
  for (const auto& future : futures) {
    if (!future.valid()) detail::throw_empty_future();
    states.push_back(future.state());
  }
  if constexpr (std::is_void_v<T>) {
    return Future<void>(detail::all_of(std::move(states), false));
  } else {
    return Future<std::vector<T>>(detail::all_of(std::move(states), true));
  }
}

}  // namespace troupe
