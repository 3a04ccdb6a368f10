/// What an actor knows about itself while its constructor or one of its methods runs.
#pragma once

#include <functional>
#include <string>

#include "runtime/core/clock.hpp"
#include "runtime/wire/address.hpp"

namespace troupe {

class ProcessGate;
class Session;
template <class T>
class ActorHandle;
namespace detail {
class TaskFrames;
}

/// Thread-safe; valid as long as the actor lives. An actor with threads of its own hands them this reference.
class ActorContext {
 public:
  virtual ~ActorContext() = default;
  ActorContext() = default;
  ActorContext(const ActorContext&) = delete;
  ActorContext& operator=(const ActorContext&) = delete;

  virtual ActorAddress address() const = 0;
  virtual ProcessGate& process() const = 0;
  /// An isolated actor has a thread of its own and may block; a light one may not.
  virtual bool may_block() const = 0;
  /// False with max_concurrency.
  virtual bool runs_one_at_a_time() const { return true; }
  /// Why it ended, while its destructor runs; otherwise null.
  virtual const std::string* ended() const = 0;
  /// Runs work in the actor's mailbox, from any thread and also when the actor has ended meanwhile (then it
  /// is dropped).
  using Executor = std::function<void(std::function<void()>)>;
  virtual Executor executor() = 0;
  /// Runs `work` in the actor's mailbox, after what is queued there. Dropped when the actor has ended.
  virtual void run(std::function<void()> work) = 0;
  /// The same, `delay` from now.
  virtual void run_after(Duration delay, std::function<void()> work) = 0;
  /// Ends the actor after the current method; its monitors are told `reason`.
  virtual void stop(std::string reason) = 0;
  /// Its calls that wait by co_await. For the runtime, in the actor's turns alone.
  virtual detail::TaskFrames& tasks() = 0;

  /// A session as the actor sees it: to spawn, monitor and so on.
  Session session() const;
  /// A handle to this actor, to give to others. REQUIRES: T is the actor's class.
  template <class T>
  ActorHandle<T> self() const;
};

/// The actor whose constructor or method runs in this thread, or null.
ActorContext* current_actor();
/// The same; throws BadConfig outside of an actor.
ActorContext& this_actor();

/// For the runtime: sets the current actor for a scope.
class CurrentActorScope {
 public:
  explicit CurrentActorScope(ActorContext* actor);
  ~CurrentActorScope();
  CurrentActorScope(const CurrentActorScope&) = delete;
  CurrentActorScope& operator=(const CurrentActorScope&) = delete;

 private:
  ActorContext* before_;
};

}  // namespace troupe
