/// The actors that the head knows: by id, by the request that they came from, by when something is due with
/// them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/wire/cluster.hpp"
#include "scheduler/cluster/time_queue.hpp"

namespace troupe::cluster {

/// As messages name it.
inline std::string name_of(ActorId actor) {
  return "actor " + to_string(actor);
}
/// "Counter 'sum'", and by its id if it has no name.
inline std::string name_of(const ActorRecord& actor) {
  return actor.spec.type +
         (actor.spec.name.empty() ? " (" + name_of(actor.actor) + ")" : " '" + actor.spec.name + "'");
}

struct Actor {
  ActorRecord record;        ///< with its payload while it starts
  bool has_payload = false;  ///< false after a head restart until its request is repeated, or a node has it
  int attempts = 0;          ///< nodes that died while they started it
  std::string reason;        ///< why it is where it is, or why it ended
  std::set<NodeId> watchers{};  ///< who is told where it is
  Instant started_at{};         ///< when its node was told to start it
  bool is_hung = false;         ///< it was ended since it did not start in time
  Instant up_at{};              ///< since when it lives
  Instant restart_at{};         ///< while it restarts: not before
  int quick_deaths = 0;         ///< in a row
  bool moves = false;           ///< its node drains, and was told to end it: it starts again elsewhere
  NodeId was_at{};              ///< of a kept one: where its last life was that was up, if that node is live
  std::string was_on{};         ///< that node's name
  NodeId keeper{};              ///< of a kept one: another node that has its arguments and executable
  int not_begun = 0;            ///< starts in a row for which a node found no executable
  SavedState state{};           ///< of a kept one, beside its payload
  bool waits = false;           ///< a worker of tasks: its task does, or it does for one (ActorWaits)
  std::optional<Instant> wanted_at{};  ///< when it was to end, or (the same) to be given back for others
  bool has_waited = false;             ///< ever, or a head before this one may have heard so
};

/// What it holds of its node, or of its bundle: all that it asked for, but for the CPUs of what waits.
inline ActorDemand held_by(const Actor& actor) {
  ActorDemand held = actor.record.spec.demand;
  if (actor.waits) held.cpu_e4 = 0;
  return held;
}

/// Everything takes O(log n). Not thread-safe.
///
/// Invariants: a request leads to one actor. What starts or ends has a deadline. The dead are in the queue of
/// those who are forgotten. A payload is there while its actor starts, of a kept one while it lives, and
/// counted; with it what that one has saved.
class ActorTable {
 public:
  /// REQUIRES: neither its id nor its request is in the table.
  Actor& add(Actor actor);
  Actor* find(ActorId id);
  Actor& at(ActorId id) { return actors_.at(id); }
  const Actor& at(ActorId id) const { return actors_.at(id); }
  Actor* of_request(const Requester& requester);
  const Actor* of_request(const Requester& requester) const;
  /// Those that a process of `node` asked for. O(what it asked for).
  std::vector<ActorId> asked_by(NodeId node) const;

  /// Brings back what is not kept here. REQUIRES: kStarting, kRestarting or a kept one, and it has none.
  void set_payload(Actor& actor, std::string payload);
  /// REQUIRES: a kept one, which is not ending.
  void set_state(Actor& actor, SavedState state);
  void alive(Actor& actor, ProcessId process);
  /// It died, and has another life: a new incarnation, on no node until it is started. Due at `at`.
  void restarting(Actor& actor, std::string reason, Instant at);
  /// That life starts. REQUIRES: kRestarting.
  void starting(Actor& actor, std::string payload, Instant deadline);
  std::string take_payload(Actor& actor);
  /// Until it is dead. Also sets its deadline anew.
  void ending(Actor& actor, std::string reason, Instant deadline);
  void dead(Actor& actor, Instant forget_at);
  /// Takes it out, as if it had never been.
  Actor take(ActorId id);

  /// The next one whose deadline has come. It has none then.
  std::optional<ActorId> pop_due(Instant now) { return due_.pop_due(now); }
  void set_deadline(Actor& actor, Instant deadline) { due_.set(actor.record.actor, deadline); }
  /// Forgets the dead whose time has come, and those beyond `most`.
  void trim(Instant now, std::size_t most);

  /// Actors that restart, and have no room or no payload so far, or wait for their time.
  const std::set<ActorId>& all_restarting() const { return restarting_; }
  /// Detached ones, by the machine whose program they are of (ActorRecord::started_by).
  const std::map<std::string, std::set<ActorId>>& detached() const { return detached_; }
  /// Whether a detached one is of that submission's program.
  bool has_detached_of(const std::string& submission) const { return detached_of_.contains(submission); }
  /// Those of them that have other lives.
  const std::set<ActorId>& all_kept() const { return all_kept_; }
  /// Of those that start, and of kept ones, with what these have saved.
  std::size_t payload_bytes() const { return payload_bytes_; }
  const std::map<ActorId, Actor>& all() const { return actors_; }
  /// Aborts if an invariant does not hold.
  void check() const;

 private:
  void drop_payload(Actor& actor);
  void forget_detached(const ActorRecord& record);

  std::map<ActorId, Actor> actors_;
  std::map<Requester, ActorId> requests_;
  TimeQueue<ActorId>
      due_;  ///< kStarting: start deadline; kEnding: when it is killed again; kRestarting: when
  std::set<ActorId> restarting_;
  std::map<std::string, std::set<ActorId>> detached_;
  std::map<std::string, std::size_t> detached_of_;  ///< how many, by submission
  std::set<ActorId> all_kept_;
  TimeQueue<ActorId> dead_;  ///< when they are forgotten
  std::size_t payload_bytes_ = 0;
};

}  // namespace troupe::cluster
