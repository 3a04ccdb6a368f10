/// The steps of a job: what leaves used in those that are not committed, and the ledger of those that are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/train/driver/driver_types.hpp"
#include "actors/train/driver/ledger.hpp"

namespace troupe::train {

/// A value: no time, no I/O. Not thread-safe.
///
/// Invariants: a step is committed once, in order, with every leaf's slot and the sampler's samples;
/// begun_at() <= furthest() and committed() <= furthest().
class StepLog {
 public:
  struct Committed {
    CommitStep step;
    bool furthest = false;  ///< the job has never got so far
  };

  /// Begins behind the newest of `config.resume`.
  explicit StepLog(const DriverConfig& config);

  const Ledger& ledger() const { return ledger_; }
  /// Steps committed.
  std::int64_t committed() const { return ledger_.committed(); }
  /// Most steps ever committed.
  std::int64_t furthest() const { return furthest_; }
  /// Steps of earlier runs in the state that this one took up.
  std::int64_t begun_at() const { return begun_at_; }

  /// Takes in what leaves used in a step that is not committed. The job fails if two trainers say different
  /// things.
  std::optional<JobFailed> merge(const StepReport& step);
  /// Commits the next step. The job fails if a slot is missing, or has other samples than the sampler's.
  std::variant<Committed, JobFailed> commit(Generation generation);

  /// Voids committed steps from `step` on: nobody holds their state. An earlier run's may be among them.
  RewindLedger rewind(std::int64_t step);
  /// Drops the slots of steps from `step` on: no survivor applied these.
  void drop_pending(std::int64_t step);

  /// What the steps that an earlier run committed in the epoch under way came to.
  void set_figures_before(std::vector<Figure> figures) { before_ = std::move(figures); }
  /// Sums over the steps of the epoch that are committed, in their order, also those of an earlier run.
  std::vector<Figure> epoch_figures(int epoch) const;
  /// The same of the epoch under way; nothing at its begin.
  std::vector<Figure> figures_under_way() const;
  /// Keeps nothing of the epochs before `epoch`: of those only their sums count.
  void forget_epochs_before(int epoch) { ledger_.forget_before(epoch * steps_per_epoch_); }

 private:
  std::optional<JobFailed> check_samples(const LedgerEntry& entry) const;

  std::int64_t steps_per_epoch_;
  NotFinite not_finite_;
  std::function<std::uint64_t(int epoch, std::int64_t step_in_epoch, int leaf)> expected_indices_;
  Ledger ledger_;
  std::int64_t begun_at_;
  std::int64_t furthest_;
  std::map<std::int64_t, std::map<int, SlotReport>> pending_;  ///< slots by step and leaf
  std::map<std::int64_t, StepValues> values_;                  ///< of the same steps
  std::vector<Figure> before_;                                 ///< of the steps before the ledger begins
};

}  // namespace troupe::train
