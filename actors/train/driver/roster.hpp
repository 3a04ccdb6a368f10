/// Who there is: trainers, loaders and those that start. Signs of life, deadlines, and how often what fails
/// is started again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

/// What a process said of its progress, and since when it is held to it.
struct SignsOfLife {
  Instant last_heard{};
  Progress progress;
  Instant since{};  ///< it came further then, or waited for others

  /// True if it has come further.
  bool note(const Progress& news, Instant now);
  bool hangs(Instant now, Duration allowed) const { return progress.computes && now - since >= allowed; }
  void shift(Duration gap) { last_heard += gap, since += gap; }
};

/// A trainer that is not known to be dead.
struct TrainerSeat {
  TrainerReady ready;
  SignsOfLife life;
  std::uint64_t arrival = 0;
  bool killed = false;  ///< we asked for its death; `deadline` is when it counts as dead anyway
  bool leaves = false;  ///< its node drains: another one is to take its place
  std::string why_it_leaves;
  Instant deadline{};  ///< for its quiesce, or its death

  int rank = -1;          ///< in the current generation, or the last it was in; -1: never
  bool quiesced = false;  ///< it has left its collective, and said what it holds
  std::int64_t steps = kNoState;
  Generation lineage;          ///< of the state it holds
  bool made_progress = false;  ///< was a member when the job got further than ever
  bool proven = false;         ///< computed a step, and had the same bits after it as the others
  std::int64_t applied = 0;    ///< steps, in its generation
  std::string unreadable;      ///< a checkpoint's path: to this one

  bool reads(const std::string& checkpoint) const { return ready.has_folder && unreadable != checkpoint; }
};

/// "trainer 3 (rank 0)".
std::string describe(const TrainerSeat& trainer);
/// "a loader could not be started: no CPU".
std::string could_not_start(SpawnKind kind, const std::string& why);

/// A value: time and events come in, and what is to be told or started is appended to `out`. Not thread-safe.
///
/// Invariants: an actor that counts as dead never comes back; of each kind no more are started than are
/// wanted and not there; nothing of a kind is started before its pause is over, or once it is given up.
class Roster {
 public:
  /// A wait for somebody is over.
  struct Overdue {
    ActorId actor{};
    std::string why;     ///< it is killed
    std::string what;    ///< the same as a sentence, with who it is
    bool hangs = false;  ///< the job's code is blamed
  };

  explicit Roster(SharedConfig config) : config_(std::move(config)) {}
  /// Nobody is there.
  void start(Instant now) { loaderless_since_ = now; }

  // Trainers.
  using Trainers = std::map<ActorId, TrainerSeat>;
  Trainers& trainers() { return trainers_; }
  const Trainers& trainers() const { return trainers_; }
  /// REQUIRES: it is not known to be dead.
  TrainerSeat& at(ActorId trainer) { return trainers_.at(trainer); }
  const TrainerSeat& at(ActorId trainer) const { return trainers_.at(trainer); }
  /// Null if it is not there.
  TrainerSeat* find(ActorId trainer);
  /// Null if it is there already, or dead.
  TrainerSeat* add(const TrainerReady& ready, Instant now);
  /// It is dead. Nothing if it was not there.
  std::optional<TrainerSeat> remove(ActorId trainer);
  /// Trainers that live and are to go on.
  int staying() const;
  /// The next, in the order of their ids, that gives no sign of life, hangs, or has not left its collective.
  std::optional<Overdue> next_overdue(std::optional<ActorId> after, Instant now) const;
  /// Those that were killed, and whose death nobody has confirmed in time.
  std::vector<ActorId> unconfirmed(Instant now) const;
  /// All trainers, each with what it computes or waits in.
  std::string who_waits() const;

  // Loaders.
  std::vector<LoaderInfo> loader_list() const;
  bool has_loaders() const { return !loaders_.empty(); }
  bool uses_loader(ActorId loader) const { return loaders_.contains(loader); }
  /// False if it is dead. One that is not needed is killed.
  bool add(const LoaderReady& ready, Instant now, DriverActions& out);
  /// Its death is ordered, or known. REQUIRES: uses_loader(). The job fails if there were too many failures;
  /// `fault`: it is one.
  std::optional<JobFailed> lose_loader(ActorId loader, const std::string& why, bool fault, Instant now,
                                       DriverActions& out);
  /// True if it has come further.
  bool note(const LoaderHeartbeat& news, Instant now);
  /// Those that give no sign of life; then those that hang.
  std::vector<Overdue> overdue_loaders(Instant now) const;
  /// The job fails where there has been no loader for too long.
  std::optional<JobFailed> check_loaderless(Instant now) const;

  bool somebody_computes(const std::vector<ActorId>& members) const;
  /// It is never to come back, whatever it was.
  void mark_dead(ActorId actor) { dead_.insert(actor); }
  bool counts_as_dead(ActorId actor) const { return dead_.contains(actor); }

  // Starting.
  /// Asks for what is wanted and not there. `trainers`: also for those.
  void spawn_missing(bool trainers, Instant now, DriverActions& out);
  /// The spawn is answered: what it was of, if anybody waited for it.
  std::optional<SpawnKind> take_spawn(std::uint64_t token);
  /// Nobody waits for it: false. It is told once what it waits for, and has its time from now on.
  bool spawn_waits(const SpawnWaits& spawn, Instant now, DriverActions& out);
  /// One could not be started. The job fails if there were too many failures.
  std::optional<JobFailed> spawn_failed(SpawnKind kind, const std::string& why, Instant now,
                                        DriverActions& out);
  /// Those that have not started in time.
  std::optional<JobFailed> check_spawns(Instant now, DriverActions& out);
  /// Counts a failure of this kind: the job fails if it was one too many, and too few are left.
  std::optional<JobFailed> count_failure(SpawnKind kind, const std::string& why, Instant now,
                                         DriverActions& out);
  /// The job got further than ever: a newcomer that helped shows that starting again works.
  void made_progress(const std::vector<ActorId>& members);
  /// Why no trainers are started any more; nothing where they are.
  std::optional<std::string> given_up_trainers() const;
  /// In time came too few trainers.
  JobFailed too_few_came() const;

  /// The driver stood still for `gap`: it cannot have heard anybody.
  void shift(Duration gap);

 private:
  struct LoaderSeat {
    LoaderInfo info;
    SignsOfLife life;
    bool made_progress = false;
  };
  struct Spawn {
    SpawnKind kind = SpawnKind::kTrainer;
    Instant deadline{};
    std::string waits_for{};  ///< as it was told last
  };
  /// Of one kind of actor.
  struct Restarts {
    int failures = 0;  ///< since one of its actors last helped the job get further than ever
    Instant not_before{};
    bool given_up = false;
    std::string last_failure;
    std::string waits_for;  ///< what the last one that had to wait was told
  };
  Restarts& restarts(SpawnKind kind) {
    return kind == SpawnKind::kTrainer ? trainer_restarts_ : loader_restarts_;
  }
  void spawn_missing(SpawnKind kind, int wanted, int have, Instant now, DriverActions& out);
  void announce_loaders(DriverActions& out) const;
  std::optional<Overdue> overdue(const SignsOfLife& life, ActorId actor, const std::string& who,
                                 Instant now) const;

  SharedConfig config_;
  Trainers trainers_;
  std::map<ActorId, LoaderSeat> loaders_;
  std::map<std::uint64_t, Spawn> spawns_;  ///< by token
  std::set<ActorId> dead_;                 ///< trainers and loaders that must not come back
  Restarts trainer_restarts_;
  Restarts loader_restarts_;
  std::uint64_t last_token_ = 0;
  std::uint64_t arrivals_ = 0;
  Instant loaderless_since_{};  ///< when the last loader went; meaningful while there is none
};

}  // namespace troupe::train
