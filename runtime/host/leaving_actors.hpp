/// Actors that this process spawned, and that are to leave: their nodes drain, or others wait for their room.
/// Who wanted to know is told.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "runtime/host/process_gate.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// Thread-safe. What is told before somebody asks is kept until the actor's process is gone.
class LeavingActors {
 public:
  using Run = std::function<void(std::function<void()>)>;
  /// `run` runs callbacks in a thread where they may take their time.
  explicit LeavingActors(Run run) : run_(std::move(run)) {}

  void watch(const ActorAddress& actor, OnLeaving callback);
  void told(const wire::ActorLeaves& told);
  /// What lived there is gone.
  void forget(const std::function<bool(ProcessAddress)>& gone);

 private:
  struct Watched {
    ProcessAddress at;
    OnLeaving callback;
  };
  const Run run_;
  std::mutex mutex_;  ///< guards the two below
  std::map<ActorId, Watched> watched_;
  std::map<ActorId, Leaving> leaving_;
};

}  // namespace troupe
