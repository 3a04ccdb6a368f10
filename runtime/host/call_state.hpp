/// The untyped half of a Future: a slot that is filled once, from any thread, with bytes or an error.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/result.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe {

class ActorContext;
using Outcome = Result<wire::Bytes>;

/// Lets a waiting thread do the process's receiving itself instead of being woken by another thread.
class Waiter {
 public:
  virtual ~Waiter() = default;
  /// Returns when `done()` is true or `deadline` has passed. Counts itself in `sleepers` while it sleeps on
  /// `word`: only then does whoever resolves the call pay for a wake-up.
  virtual void wait(const std::function<bool()>& done, std::atomic<std::uint32_t>& word,
                    std::atomic<std::uint32_t>& sleepers, Instant deadline) = 0;
  /// Something was resolved: the thread that receives may be waiting for it.
  virtual void nudge() = 0;
};

/// Thread-safe.
class CallState {
 public:
  explicit CallState(Waiter* waiter) : waiter_(waiter) {}

  /// Has a stored answer: calls `then` with it, once, in this thread or in one of the runtime. Dropped
  /// unused, it lets go of the answer.
  using Load = std::function<void(std::function<void(Outcome)> then)>;

  /// Fills the slot; only the first time counts, and returns true. Runs the callbacks in this thread: before
  /// it returns, or if this is a callback's doing, after that one. `refers_to`: objects of this process's
  /// whose names are in the answer; they are held as long as it is.
  bool resolve(Outcome outcome, wire::Kept refers_to = {});
  /// The same with an answer that lies in the node's store, and stays there until somebody reads it: this
  /// process's memory does not grow by what nobody reads.
  bool resolve_stored(Load load, wire::Kept refers_to = {});
  /// With the answer of another call, which moves. REQUIRES: that one is ready, and nobody else reads it.
  bool resolve_as(CallState& other);
  bool ready() const { return ready_.load(std::memory_order_acquire) != kPending; }
  /// Whether outcome() has it: ready, and loaded if it was stored.
  bool is_here() const;
  /// Loads a stored answer. False when `timeout` is over first. REQUIRES: ready().
  bool load(Duration timeout);
  /// REQUIRES: is_here().
  const Outcome& outcome() const;
  /// Null: there is an answer, here or stored. REQUIRES: ready().
  const ErrorInfo* failure() const;
  /// REQUIRES: ready().
  wire::Kept refers_to() const;
  /// Waits until ready. False when `timeout` is over first.
  bool wait(Duration timeout);
  /// Calls `callback` once outcome() has it, in the thread that brings that about (in this one if it is there
  /// already). Loads a stored answer.
  void on_ready(std::function<void()> callback);
  /// Somebody is about to read the answer: a callback of on_ready() or a thread waits for it, here or where
  /// this one's answer goes.
  bool is_awaited() const;
  /// `next` is resolved as this one is.
  void passes_on_to(const std::shared_ptr<CallState>& next);
  /// That one; null: none is.
  std::shared_ptr<CallState> passes_to() const;
  /// Calls `callback` once ready, without loading anything, for somebody who may lose interest: unwatch()
  /// drops it. One callback an owner.
  void watch(const void* owner, std::function<void()> callback);
  void unwatch(const void* owner);

  /// Keeps these alive until it is answered: what the message refers to that it waits for an answer of.
  void keep(wire::Kept kept);
  /// These. Empty once it is answered.
  wire::Kept kept() const;

  /// Why the request behind this call waits, as far as it was told; empty: nothing was.
  std::string waits_for() const;
  void set_waits_for(std::string why);

  /// `by` calls itself, and answers one call at a time: where it waits for this one, wait() throws BadConfig.
  void set_own_call(const ActorContext* by);
  /// It is ready once `count` of these are. wait() throws as above where too many are the waiting actor's own
  /// calls. Of an own call: it has run, and its answer comes when these do; unless it `goes_on`
  /// then, in another turn.
  void set_parts(const std::vector<std::shared_ptr<CallState>>& parts, std::size_t count,
                 bool goes_on = false);
  /// It is not ready before `call` is, so far as this process knows: where that waits for this one, neither
  /// ever is. Looks at no more than some thousand others.
  bool needs(const CallState& call) const;

  /// The method whose answer it is, of a name that lasts.
  void set_method(std::string_view name);
  /// Whose answer it waits for: its own method, or that of a call of this process that it stands on. Empty:
  /// nobody knows.
  std::string_view awaited_method() const;

  /// What cancel() does about the request behind this call. REQUIRES: set before the state is handed out.
  /// It is given `grace`.
  void set_on_cancel(std::function<void(Duration)> hook);
  /// Nobody wants the answer any more: resolves with `why` and runs the hook, unless the answer is there.
  /// Without a hook the call goes on, and what it refers to is kept until resolve() brings its answer.
  void cancel(ErrorInfo why, Duration grace = Duration::zero());

  /// The call asks that member of a group for a fold: its name is put in front of an error that has no
  /// origin, which is its own end, and stands in timeouts. REQUIRES: nobody has been given the state.
  void set_fold_at(std::string member);
  /// Empty: it is no fold.
  std::string fold_at() const;

 private:
  enum : std::uint32_t { kPending, kHere, kStored };
  struct Stored {
    Load load;                        ///< null: somebody has begun to read it
    std::shared_ptr<CallState> here;  ///< of that; it stays
  };
  bool fill(Outcome outcome, Load load, wire::Kept refers_to, bool goes_on = false);
  /// REQUIRES: mutex_ is held.
  void name_in_failure();
  std::shared_ptr<CallState> loaded() const;
  std::shared_ptr<CallState> begin_load();
  struct Parts {
    std::vector<std::weak_ptr<CallState>> of;
    std::size_t count = 0;  ///< of these it is ready with
  };
  /// What an answer may stand on: a turn of that actor, or that call.
  struct Cause {
    const ActorContext* turn = nullptr;
    const CallState* call = nullptr;
  };
  std::optional<bool> is_brought_by(const Cause& cause, Parts& parts) const;
  bool needs_cause(const Cause& cause, std::size_t most) const;

  Waiter* waiter_;
  std::atomic<std::uint32_t> ready_{kPending};
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::uint32_t> waiting_{0};  ///< threads in wait()
  mutable std::mutex mutex_;
  Outcome outcome_{wire::Bytes{}};
  std::vector<std::function<void()>> callbacks_;  // under mutex_
  std::unique_ptr<std::unordered_map<const void*, std::function<void()>>>
      watchers_;                                              // the same; few have any
  std::unique_ptr<std::function<void(Duration)>> on_cancel_;  // few calls have one
  std::unique_ptr<std::string> waits_for_;                    // the same; under mutex_
  std::unique_ptr<wire::Kept> kept_;                          // the same
  std::unique_ptr<std::string> fold_at_;                      // the same
  std::unique_ptr<wire::Kept> refers_to_;                     // written before ready_
  std::unique_ptr<Stored> stored_;                            // the same; what it has is under mutex_
  std::weak_ptr<CallState> next_;                             // under mutex_
  const ActorContext* own_call_of_ = nullptr;                 // the same
  std::unique_ptr<Parts> parts_;                              // the same
  std::string_view method_;                                   // the same
};

}  // namespace troupe
