/// Which threads may wait. A thread that receives or that gives actors their turn must not: what it waits for
/// may be queued behind it. Such a thread is marked; sends in it never wait, and Future::get throws in it.
#pragma once

#include <utility>

#include "runtime/host/this_thread.hpp"

namespace troupe {

/// Marks the calling thread for a scope (or, made once, for its life).
class NoWaitScope {
 public:
  NoWaitScope() : before_(std::exchange(this_thread.may_not_wait, true)) {}
  ~NoWaitScope() { this_thread.may_not_wait = before_; }
  NoWaitScope(const NoWaitScope&) = delete;
  NoWaitScope& operator=(const NoWaitScope&) = delete;

  static bool marked() { return this_thread.may_not_wait; }

 private:
  bool before_;
};

/// Whether the calling thread may wait: it is neither marked nor in the turn of a light actor.
bool thread_may_wait();

}  // namespace troupe
