/// What evaluations come to: the one under way, the job's history of metrics, and what follows from them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

/// A value. Not thread-safe.
///
/// Invariants: of a state that was evaluated the metrics are those of its pieces, each once, in the order of
/// their sets. What was seen up to a state is the same however often the job has come to that state.
class Evaluations {
 public:
  /// Begins with the history of the newest of `config.resume`.
  explicit Evaluations(SharedConfig config);

  /// Of the state after `step` steps, empty.
  void begin(std::int64_t step);
  const EpochDone& under_way() const { return done_; }
  void add(const std::vector<PieceReport>& pieces);
  /// Adds the pieces in their order. The job fails if one was not evaluated, or with other samples.
  std::optional<JobFailed> sum_pieces();
  /// With the figures of training the metrics are known: they are the last in the history.
  const EpochDone& finish(std::vector<Figure> train);
  /// Why the job stops early, if the metrics say so. Finds out, too, whether a metric is missing, and whether
  /// this state is the best. `stops`: the job stops early already.
  std::optional<std::string> watch(bool stops);

  /// What was seen up to the state of `step` steps, though the job may have been further.
  const History& seen(std::int64_t step) const;
  /// As it must be in that state's manifest; `figures`: of the epoch under way.
  std::string history_with(std::int64_t step, std::vector<Figure> figures) const;
  /// The state of `step` steps is taken up, which was written down with `history`.
  void take_up(const std::string& history, std::int64_t step);
  /// An older state is taken up than the one that the run began with: what comes behind it is evaluated
  /// again.
  void fall_back(std::int64_t step);
  /// The state came to the best value of the metric whose best checkpoint is kept.
  bool is_best(std::int64_t step) const;
  /// That, while its checkpoint is no file yet; the best of the files else.
  const Best& to_keep() const { return to_keep_; }
  /// Its checkpoint is a file.
  void best_is_file(const Best& best) { best_file_ = best; }
  /// The best one cannot be read: the best of the files is among these, oldest first.
  void find_best_file(const std::vector<CheckpointInfo>& files);
  const Best& best_file() const { return best_file_; }
  /// Nothing is being written, and the state is that after `step` steps. A better one before it that came to
  /// no file is lost: the best to keep is that of the files.
  void forget_lost_best(std::int64_t step);

  /// stop_early or keep_best names a metric that the job does not have.
  bool lacks_metric() const { return !missing_metric_.empty(); }
  /// `saved_at`: what a resume would go on from, if that is this state.
  JobFailed why_it_lacks(std::optional<std::int64_t> saved_at) const;

  /// What trainers are to hear of the state after `step` steps, where schedules look at metrics; or nothing.
  StepValues told(std::int64_t step) const;
  /// GenerationPlan::evaluated.
  std::map<std::int64_t, StepValues> told_from(std::int64_t step) const;
  /// No generation begins before `step` any more.
  void forget_before(std::int64_t step);

 private:
  Best better(const Best& best, std::int64_t step, double value) const;
  const double* find_metric(const std::string& name);

  SharedConfig config_;
  /// By the steps of the state that was evaluated, from the last before the oldest checkpoint on. The
  /// epoch_figures are StepLog's, and empty here.
  std::map<std::int64_t, History> history_;
  Best best_file_;  ///< the best of keep_best whose checkpoint is a file; History::kept may have come to none
  Best to_keep_;    ///< the best of those and of what is, or is to be, written
  std::optional<double> kept_value_;  ///< of that metric in the last evaluation
  EpochDone done_;                    ///< under way, or the last
  std::map<std::int64_t, PieceReport> pieces_;
  std::string missing_metric_;
};

}  // namespace troupe::train
