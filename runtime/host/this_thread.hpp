/// What the runtime remembers of a thread, in one place: a simulation, which has one thread for all,
/// exchanges it when another goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/core/clock.hpp"

namespace troupe {

class ActorContext;
class CallState;
class ProcessGate;

namespace objects {
class References;
}

/// What a thread does instead of waiting: a task's frame (runtime/tasks).
class Helper {
 public:
  virtual ~Helper() = default;
  virtual std::uint64_t number() const = 0;
  /// Works until `until` is ready, there is nothing left to do, or it is too late to wait for more of that.
  /// Called again and again while the thread waits, and goes_on() at the end of that.
  virtual void help(const CallState& until, Instant deadline) = 0;
  virtual void goes_on() = 0;
};

struct ThisThread {
  ActorContext* turn = nullptr;  ///< the actor whose constructor or method runs
  ProcessGate* gate = nullptr;   ///< of a ProcessGateScope
  bool may_not_wait = false;     ///< see NoWaitScope
  /// Where callbacks of answers go while others run (call_state.cpp); null: none do.
  std::vector<std::function<void()>>* callbacks = nullptr;
  Helper* helper = nullptr;  ///< of the task that runs
  /// The call that the method or task that runs answers, if its caller is in this process (AnsweringScope);
  /// null, or of null: there is none.
  const std::shared_ptr<CallState>* answers = nullptr;
  // While the arguments of a call are decoded:
  const objects::References* given = nullptr;  ///< those that came by reference
  /// Where references among them leave what their owners have to acknowledge.
  std::vector<std::shared_ptr<CallState>>* borrows = nullptr;
};

inline thread_local ThisThread this_thread;

}  // namespace troupe
