/// The threads in which actors take their turns: CAF's.
#pragma once

#include <caf/all.hpp>
#include <memory>

#include "runtime/core/thread_limit.hpp"

namespace troupe {

/// Of one Process, or of all lives of a driver: a life that is over costs no thread, and whoever still holds
/// on to it may call it back.
class ActorThreads {
 public:
  /// Without `threads` actors take their turns when Process::turns() says so. Throws as
  /// check_thread_limit() does, since CAF ends the process where it gets no thread.
  explicit ActorThreads(bool threads) {
    if (threads) check_thread_limit(kThreadsOfProcess).value();
    // Few threads that sleep when idle: light actors usually take their turn in the thread that received the
    // message.
    config_.set("scheduler.policy", caf::atom(threads ? "sharing" : "testing"));
    config_.set("scheduler.max-threads", std::size_t{2});
    system_ = std::make_unique<caf::actor_system>(config_);
  }
  /// REQUIRES: end() was not called.
  caf::actor_system& system() { return *system_; }
  /// Waits until all actors have ended, and the threads. REQUIRES: their processes have.
  void end() { system_.reset(); }

 private:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
};

}  // namespace troupe
