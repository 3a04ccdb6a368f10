/// The actors of a process: who lives here, who has ended and why, and who wants to hear of an end.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/host/bounded_memory.hpp"
#include "runtime/host/hosted_actor.hpp"

namespace troupe {

/// Thread-safe. Invariant: an actor is living or remembered as ended, never both; a monitor is answered once.
class ActorTable {
 public:
  /// Without `threads` no actor gets one of its own.
  ActorTable(caf::actor_system& system, ActorHome& home, bool threads)
      : system_(system), home_(home), threads_(threads) {}

  /// As host_actor. An id that lives here or ended here is refused by `on_ready`.
  void start(ActorStart start, OnActorReady on_ready, OnActorEnd on_end, caf::execution_unit* unit);
  /// Puts a call into the actor's mailbox; fails it when the actor is not here.
  void deliver(ActorId actor, std::shared_ptr<IncomingCall> call, caf::execution_unit* unit);
  /// Ends the actor after its current turn. False when it is not here.
  bool stop(ActorId actor, std::string reason, bool at_once = false);
  /// Why it ended; nothing: it lives.
  std::optional<std::string> why_ended(ActorId actor) const;
  /// Answers (with the reason, a string) when the actor has ended: at once if it is not here. Actor 0 is the
  /// process itself.
  void monitor(ActorId actor, Responder responder);
  /// Ends all after their current turns. What starts from now on is not constructed: Unavailable.
  void stop_all(const std::string& reason) { stop_all(reason, false); }
  /// The same at once: answers that wait until a state is kept are dropped.
  void close(const std::string& reason) { stop_all(reason, true); }
  /// Waits until all have ended, `timeout` at most.
  void wait_until_empty(Duration timeout) const;
  std::size_t size() const;

 private:
  void stop_all(const std::string& reason, bool at_once);
  void ended(const ActorAddress& actor, const std::string& reason);
  std::string why_not_here(ActorId actor) const;
  void look_again();
  void look();

  caf::actor_system& system_;
  ActorHome& home_;
  const bool threads_;
  mutable std::mutex mutex_;  ///< guards all below
  std::unordered_map<ActorId, caf::strong_actor_ptr> living_;
  std::unordered_map<ActorId, std::vector<Responder>> monitors_;
  BoundedMemory<ActorId, std::string> ended_;
  struct Constructing {
    std::string class_name;
    int looks = 0;
  };
  std::map<ActorId, Constructing> constructing_;
  bool looks_ = false;                 ///< look() will be called
  std::optional<std::string> closed_;  ///< why
};

}  // namespace troupe
