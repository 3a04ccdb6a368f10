#include "actors/train/driver/ledger.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::train {

Ledger::Ledger(int logical_ranks, std::int64_t steps_per_epoch, std::int64_t first_step)
    : logical_ranks_(logical_ranks), steps_per_epoch_(steps_per_epoch), first_step_(first_step) {
  TROUPE_ASSERT(logical_ranks >= 1 && steps_per_epoch >= 1 && first_step >= 0, "a ledger has slots");
}

Result<void> Ledger::commit(LedgerEntry entry) {
  const std::string what = "step " + std::to_string(entry.step) + " cannot be committed";
  if (entry.step != committed()) {
    return ErrorInfo{ErrorCode::kInternal, what, "the next one is step " + std::to_string(committed()), {}};
  }
  bool whole = static_cast<int>(entry.slots.size()) == logical_ranks_;
  for (int leaf = 0; whole && leaf < logical_ranks_; ++leaf) whole = entry.slots[leaf].leaf == leaf;
  if (!whole) {
    return ErrorInfo{
        ErrorCode::kInternal,
        what,
        "its slots are not each of the " + std::to_string(logical_ranks_) + " logical ranks once",
        {}};
  }
  entry.slots = {};
  entries_.push_back(std::move(entry));
  return {};
}

std::int64_t Ledger::rewind(std::int64_t step) {
  const std::int64_t voided = std::max<std::int64_t>(committed() - step, 0);
  if (step < first_step_) {
    first_step_ = step;
    entries_.clear();
  } else if (voided > 0) {
    entries_.resize(step - first_step_);
  }
  return voided;
}

void Ledger::forget_before(std::int64_t step) {
  TROUPE_ASSERT(step <= committed(), "only what is committed is forgotten");
  if (step <= first_step_) return;
  entries_.erase(entries_.begin(), entries_.begin() + (step - first_step_));
  first_step_ = step;
}

std::int64_t Ledger::committed() const {
  return first_step_ + static_cast<std::int64_t>(entries_.size());
}

std::vector<const LedgerEntry*> Ledger::epoch(int epoch) const {
  std::vector<const LedgerEntry*> found;
  const std::int64_t begin = std::max(epoch * steps_per_epoch_, first_step_);
  const std::int64_t end = std::min((epoch + 1) * steps_per_epoch_, committed());
  for (std::int64_t step = begin; step < end; ++step) found.push_back(find(step));
  return found;
}

const LedgerEntry* Ledger::find(std::int64_t step) const {
  return step < first_step_ || step >= committed() ? nullptr : &entries_[step - first_step_];
}

}  // namespace troupe::train
