/// The ledger: every step that was committed, exactly once, with every leaf's slot. Of a committed step it
/// keeps the figures alone, and of no epoch that is long over: it stays small however long a job runs.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/train/plan.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/core/result.hpp"

namespace troupe::train {

/// One committed step.
struct LedgerEntry {
  std::int64_t step = 0;
  Generation generation;          ///< the one that committed it
  std::vector<SlotReport> slots;  ///< of every leaf, in leaf order
  std::vector<Figure> figures;    ///< "loss" first: of all leaves, added in leaf order
  bool operator==(const LedgerEntry&) const = default;
};

/// Not thread-safe.
class Ledger {
 public:
  /// Starts at `first_step`: what came before was committed by an earlier run of the job (its checkpoint).
  Ledger(int logical_ranks, std::int64_t steps_per_epoch, std::int64_t first_step = 0);

  /// Appends. Refuses a step that is not the next one, and slots that are not every leaf once.
  Result<void> commit(LedgerEntry entry);
  /// Voids every step from `step` on: nobody holds their state any more. Returns how many.
  std::int64_t rewind(std::int64_t step);

  /// The first step that it has, or will have.
  std::int64_t first_step() const { return first_step_; }
  /// Keeps nothing of the steps before `step`. REQUIRES: they are committed.
  void forget_before(std::int64_t step);

  /// Steps committed, and so the next step.
  std::int64_t committed() const;
  /// The steps of `epoch` that this ledger has (a resumed run has a part of its first epoch), in order,
  /// without their slots.
  std::vector<const LedgerEntry*> epoch(int epoch) const;
  const LedgerEntry* find(std::int64_t step) const;

 private:
  int logical_ranks_;
  std::int64_t steps_per_epoch_;
  std::int64_t first_step_;
  std::vector<LedgerEntry> entries_;
};

}  // namespace troupe::train
