/// What is due at which step: evaluations, checkpoints, holds, the job's end; and how far trainers may run.
#pragma once

#include <cstdint>
#include <optional>

#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

/// What is done with a state before the next step may change it.
/// kCheckpoint is over when it is copied; kWritten, which the agenda does not name, when it is a file.
enum class BarrierTask : std::uint8_t { kNone, kEvaluate, kCheckpoint, kWritten, kHold, kFinish };

/// A value: time comes in. Not thread-safe.
///
/// Invariants: no step beyond limit() may be run, and limit() passes no step at which something is due. It
/// falls only where a barrier begins or a generation starts.
class Agenda {
 public:
  /// What the agenda does not know of the committed state.
  struct State {
    bool is_best = false;       ///< by keep_best
    bool lacks_metric = false;  ///< the job fails for want of a metric, once this state is written
  };

  /// Begins behind the newest of `config.resume`, whose history is `resumed`.
  Agenda(SharedConfig config, const History& resumed);

  /// At each epoch's end and at the job's; with something to evaluate at each multiple of evaluate_every,
  /// too.
  bool evaluation_at(std::int64_t step) const;
  /// What has to be done with the state of `at` committed steps.
  BarrierTask due(std::int64_t at, State state) const;
  /// The next number of steps, above the committed ones, at which something has to be done with the state, or
  /// at which a trainer joins.
  std::int64_t next_barrier(std::int64_t committed, std::optional<std::int64_t> join_at) const;

  // What was done.
  void evaluated(std::int64_t step) { evaluated_ = step; }
  /// The last evaluation_at (in steps) that was told.
  std::int64_t evaluated() const { return evaluated_; }
  /// A checkpoint was copied, to be written, or given up.
  void saved(std::int64_t step) { saved_ = step; }
  /// No hold at the epoch's end that was evaluated last, or before.
  void release();
  /// Steps from `step` on are void. `earlier`: what an earlier run told of them was not told in this one.
  void rewind(std::int64_t step, bool earlier);

  // Ends before the last step.
  /// Asks for an end once what may be run is committed. False where it had been asked for before.
  bool stop(std::int64_t committed, bool hold_state);
  std::optional<std::int64_t> stop_at() const { return stop_at_; }
  /// The stop wants the state: the job ends where a trainer holds it.
  bool stop_holds_state() const { return hold_state_; }
  /// StopEarly or NotFinite ends the job at these steps.
  void end_early(std::int64_t step, bool not_finite);
  std::optional<std::int64_t> early_at() const { return early_at_; }
  bool ends_not_finite() const { return not_finite_; }
  /// The job has committed all that it was to.
  bool is_whole(std::int64_t committed) const { return committed >= config_->total_steps(); }
  bool ended_early(std::int64_t committed) const { return early_at_ && committed >= *early_at_; }

  // Members that leave: at the end of a step that all may run.
  std::optional<std::int64_t> leave_at() const { return leave_at_; }
  void leave(std::int64_t committed);
  void cancel_leave() { leave_at_.reset(); }

  // How far trainers may run.
  std::int64_t limit() const { return limit_; }
  /// The end of the steps that may be under way.
  std::int64_t end_of_granted(std::int64_t committed) const;
  /// A generation begins at `step`.
  void begin_generation(std::int64_t step, Instant now);
  /// `steps` more are committed.
  void note_commits(std::int64_t steps, Instant now);
  /// A barrier begins: none is run beyond it.
  void grant_none(std::int64_t committed) { limit_ = committed; }
  /// `followed`: somebody joins at the limit, which is kept near for that. What was granted stays so.
  void grant(std::int64_t committed, bool followed, std::optional<std::int64_t> join_at);

 private:
  bool checkpoint_at(std::int64_t step, State state) const;

  SharedConfig config_;
  std::int64_t evaluated_;
  std::int64_t released_;  ///< the last epoch end (in steps) that it does not hold at
  std::int64_t saved_;
  std::optional<std::int64_t> stop_at_;
  bool hold_state_ = false;
  std::optional<std::int64_t> early_at_;
  bool not_finite_ = false;
  std::optional<std::int64_t> leave_at_;
  std::int64_t limit_ = 0;
  Instant committed_at_{};                 ///< the last step, or when the generation began
  Duration step_takes_ = Duration::max();  ///< from commit to commit, lately
};

}  // namespace troupe::train
