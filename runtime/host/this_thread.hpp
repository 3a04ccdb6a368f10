/// What the runtime remembers of a thread, in one place: a simulation, which has one thread for all,
/// exchanges it when another goes on.
#pragma once

#include <functional>
#include <vector>

namespace troupe {

class ActorContext;
class ProcessGate;

struct ThisThread {
  ActorContext* turn = nullptr;  ///< the actor whose constructor or method runs
  ProcessGate* gate = nullptr;   ///< of a ProcessGateScope
  bool may_not_wait = false;     ///< see NoWaitScope
  /// Where callbacks of answers go while others run (call_state.cpp); null: none do.
  std::vector<std::function<void()>>* callbacks = nullptr;
};

inline thread_local ThisThread this_thread;

}  // namespace troupe
