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
inline constexpr const char* kInsteadOfWaiting =
    "co_await it in a method that returns troupe::Task<T>, use then(callback), or spawn the actor with "
    ".isolated = true";
/// Wraps `callback` so that it runs in the mailbox of the actor whose method runs in this thread, if there is
/// one: an actor's state is never touched from two threads.
std::function<void()> in_this_actor(std::function<void()> callback);
[[noreturn]] void throw_empty_future();
[[noreturn]] void throw_moved_promise();
[[noreturn]] void throw_call_timeout(const CallState& call, Duration timeout);
/// What a Promise resolves with when its last copy is gone.
ErrorInfo dropped_promise();
/// What a Future is resolved with that is cancelled.
ErrorInfo not_wanted();
/// Resolved with the encoded vector of all answers once all are there, or with the first failure.
std::shared_ptr<CallState> all_of(std::vector<std::shared_ptr<CallState>> states, bool values);
/// Resolved with the encoded index of the first that is. Throws BadConfig if there is none.
std::shared_ptr<CallState> first_of(std::vector<std::shared_ptr<CallState>> states);
/// Resolved with an encoded Waited. Throws BadConfig if `count` is not 1 to as many as there are.
std::shared_ptr<CallState> some_of(std::vector<std::shared_ptr<CallState>> states, std::size_t count,
                                   Duration timeout);

/// The answer is this value.
template <class T>
void resolve_with(CallState& state, const T& value) {
  wire::Writer to;
  wire::write(to, value);
  wire::Kept refers_to = to.kept();
  state.resolve(to.take(type_name<T>()), std::move(refers_to));
}

/// The answer of a call that is ready; loads it if it is stored. Throws Timeout when that takes longer, and
/// BadConfig where this thread must not wait for it.
const Outcome& outcome_of(CallState& call, Duration timeout);
inline constexpr Duration kAnswerLoads = std::chrono::minutes(10);

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
  /// method of a light actor, and BadConfig for the answer of the very method or task that waits.
  bool wait(Duration timeout) const {
    detail::check_may_block("Future::wait", detail::kInsteadOfWaiting);
    return checked().wait(timeout);
  }

  /// The answer. Throws what the call threw (TaskFailed carries type, message and origin of a user
  /// exception), ActorDied when the actor is gone, or Timeout after `timeout` (default: one hour). In a
  /// method of a light actor it throws BadConfig and names co_await: such an actor shares its thread and may
  /// not block.
  T get(Duration timeout = std::chrono::hours(1)) const {
    detail::check_may_block("Future::get", detail::kInsteadOfWaiting);
    if (!checked().wait(timeout)) detail::throw_call_timeout(checked(), timeout);
    return answer();
  }
  /// The same of one that is ready. An answer above 256 KiB that nobody waited for as it came lies in the
  /// node's store until it is read, maybe on disk: then in a light actor this throws BadConfig and names
  /// co_await. REQUIRES: ready().
  T answer() const {
    return detail::decode_outcome<T>(detail::outcome_of(checked(), detail::kAnswerLoads), gate_).value();
  }

  /// Calls `callback(Result<T>)` with the answer: in the mailbox of the calling actor when called in an
  /// actor's method, otherwise in a thread of the runtime, where it must not block. What it refers to must
  /// live as long as the session, at whose end a call without an answer fails (Unavailable).
  template <class Callback>
  void then(Callback callback) const {
    checked().on_ready(
        detail::in_this_actor([state = state_, gate = gate_, callback = std::move(callback)]() mutable {
          callback(detail::decode_outcome<T>(state->outcome(), gate));
        }));
  }

  /// Nobody wants the answer any more: it is Cancelled at once, unless it is there. A task that has not begun
  /// is never run. One that runs is asked to return (is_cancelled()); when it has not after `grace` its
  /// worker is killed (Duration::max(): never). A spawn is withdrawn, and the actor ended if it has started.
  /// A call of an actor goes on.
  void cancel(Duration grace = std::chrono::seconds(5)) const {
    checked().cancel(detail::not_wanted(), grace);
  }

  /// Of a spawn that asks for GPUs and has no answer yet: why it waits ("no node has 1 GPU free: ...").
  /// Empty: nothing was told.
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
      detail::resolve_with<T>(*state(), value);
    } else {
      detail::resolve_with<T>(*state(), T(value));
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

namespace detail {

template <class T>
std::vector<std::shared_ptr<CallState>> states_of(const std::vector<Future<T>>& futures) {
  std::vector<std::shared_ptr<CallState>> states;
  states.reserve(futures.size());
  for (const auto& future : futures) {
    if (!future.valid()) throw_empty_future();
    states.push_back(future.state());
  }
  return states;
}

}  // namespace detail

/// A Future of all answers, in order, for code that may not wait; fails with the first failure that arrives.
template <class T>
auto when_all(const std::vector<Future<T>>& futures) {
  if constexpr (std::is_void_v<T>) {
    return Future<void>(detail::all_of(detail::states_of(futures), false));
  } else {
    return Future<std::vector<T>>(detail::all_of(detail::states_of(futures), true));
  }
}

/// A Future of the index of the first that is ready, with an answer or a failure: `futures[i]` says which.
/// The others go on. Throws BadConfig for no futures.
template <class T>
Future<std::size_t> when_any(const std::vector<Future<T>>& futures) {
  return Future<std::size_t>(detail::first_of(detail::states_of(futures)));
}

/// Which of the futures that wait() was given are ready, with an answer or a failure: their places, in order.
struct Waited {
  std::vector<std::size_t> ready;
  std::vector<std::size_t> pending;
};

/// A Future of `count` of these that are ready, or of fewer once `timeout` has passed: never more than
/// `count`, the first in their order. A main program and an isolated actor take `.get()` of it, a Task
/// co_awaits it. Nothing of it is left in the others afterwards: it may be called again and again with what
/// is pending. Throws BadConfig for a count of 0 or of more than there are, and where there is a timeout and
/// no session.
template <class T>
Future<Waited> wait(const std::vector<Future<T>>& futures, std::size_t count = 1,
                    Duration timeout = Duration::max()) {
  return Future<Waited>(detail::some_of(detail::states_of(futures), count, timeout));
}

}  // namespace troupe
