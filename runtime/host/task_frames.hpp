/// The coroutine frames of an actor: of every call of a method that returns a Task and has not ended yet.
///
/// Frames are resumed from one loop, never one inside another: a Task that awaits a Task that awaits a Task,
/// a hundred thousand deep, takes no more stack than the first, whatever the compiler optimises.
#pragma once

#if defined(__clang__) && !defined(__cpp_impl_coroutine)
#define __cpp_impl_coroutine 201902L  // Clang 14 has coroutines, and does not say so to GCC's library
#endif
#include <coroutine>
#include <list>
#include <memory>

#include "runtime/host/call_state.hpp"

namespace troupe::detail {

class TaskCall;

/// What the promise of every frame has.
struct TaskPromise {
  TaskCall* call = nullptr;                  ///< once it runs
  TaskPromise* parent = nullptr;             ///< the frame that awaits it; the method's own has none
  std::coroutine_handle<> frame;             ///< its own
  std::coroutine_handle<>* owner = nullptr;  ///< who destroys it
};

/// One call: a frame for each Task that is awaited, the innermost of which runs or waits.
class TaskCall {
 public:
  /// `answers`: the call that it answers, or none.
  TaskCall(TaskPromise& outermost, std::weak_ptr<CallState> answers)
      : innermost_(&outermost), answers_(std::move(answers)) {
    outermost.call = this;
  }
  /// Destroys the frames, the innermost first: a deep chain takes no stack here either.
  ~TaskCall();
  TaskCall(const TaskCall&) = delete;
  TaskCall& operator=(const TaskCall&) = delete;

  /// Runs until it waits or has ended. True: it has ended.
  bool run();

  // For frames of this call, while run() is under way.
  /// `child` runs next, and then the innermost one again.
  void enter(TaskPromise& child);
  /// The innermost frame has come to its end.
  void leave();
  /// The innermost frame goes on once `state` is ready, in the mailbox of the actor whose turn it is. False:
  /// that waits for the answer of this call; the frame goes on at once.
  bool wait_for(const std::shared_ptr<CallState>& state);

 private:
  friend class TaskFrames;
  TaskPromise* innermost_;
  const std::weak_ptr<CallState> answers_;
  bool waits_ = false;
  bool ended_ = false;
  std::list<TaskCall>::iterator self_;  ///< in TaskFrames
};

/// Of one actor. Not thread-safe: used in its turns alone.
class TaskFrames {
 public:
  /// Runs the call that this thread answers from its outermost frame, and owns its frames until it has ended.
  void start(TaskPromise& outermost);
  void go_on(TaskCall& call);
  /// Destroys all frames that wait.
  void clear() { calls_.clear(); }
  std::size_t size() const { return calls_.size(); }

 private:
  std::list<TaskCall> calls_;
};

}  // namespace troupe::detail
