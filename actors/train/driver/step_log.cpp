#include "actors/train/driver/step_log.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"

namespace troupe::train {

StepLog::StepLog(const DriverConfig& config)
    : steps_per_epoch_(config.steps_per_epoch),
      not_finite_(config.not_finite),
      expected_indices_(config.expected_indices),
      ledger_(config.logical_ranks, config.steps_per_epoch,
              config.resume.empty() ? 0 : config.resume.back().step),
      begun_at_(ledger_.committed()),
      furthest_(ledger_.committed()) {
  if (!config.resume.empty())
    before_ = decode_history(config.resume.back().history).value_or(History{}).epoch_figures;
}

std::optional<JobFailed> StepLog::merge(const StepReport& step) {
  if (step.step < committed()) return std::nullopt;
  values_.emplace(step.step, step.values);
  for (const SlotReport& slot : step.slots) {
    const auto [at, added] = pending_[step.step].emplace(slot.leaf, slot);
    if (added || at->second.indices_hash == slot.indices_hash) continue;
    return JobFailed{"trainers disagree on the samples that logical rank " + std::to_string(slot.leaf) +
                         " used in step " + std::to_string(step.step),
                     {}};
  }
  return std::nullopt;
}

std::variant<StepLog::Committed, JobFailed> StepLog::commit(Generation generation) {
  LedgerEntry entry{committed(), generation, {}};
  for (auto& [leaf, slot] : pending_[entry.step]) {
    add_figures(entry.figures, {{"loss", slot.loss * slot.weight, slot.weight}});
    add_figures(entry.figures, std::exchange(slot.figures, {}));
    entry.slots.push_back(std::move(slot));
  }
  pending_.erase(entry.step);
  StepValues values = std::exchange(values_[entry.step], {});
  values_.erase(entry.step);
  const double loss = entry.figures.empty() ? 0 : entry.figures.front().value();
  const bool left_out = not_finite_ != NotFinite::kGoOn && !is_finite(entry.slots);
  if (left_out) entry.figures = {{"loss", 0, 0}};  // an epoch's means are of the others
  if (const Result<void> written = ledger_.commit(entry); !written.ok())
    return JobFailed{written.error().message(), {}};
  const bool furthest = committed() > furthest_;
  furthest_ = std::max(furthest_, committed());
  if (auto failed = check_samples(entry)) return *std::move(failed);
  return Committed{{std::move(entry), loss, std::move(values)}, furthest};
}

/// The proof that a step used what the sampler dealt.
std::optional<JobFailed> StepLog::check_samples(const LedgerEntry& entry) const {
  if (!expected_indices_) return std::nullopt;
  const auto epoch = static_cast<int>(entry.step / steps_per_epoch_);
  const std::int64_t step = entry.step % steps_per_epoch_;
  for (const SlotReport& slot : entry.slots) {
    if (expected_indices_(epoch, step, slot.leaf) == slot.indices_hash) continue;
    return JobFailed{"epoch " + std::to_string(epoch) + ", step " + std::to_string(step) + ", logical rank " +
                         std::to_string(slot.leaf) + " used other samples than the sampler gave it",
                     {}};
  }
  return std::nullopt;
}

RewindLedger StepLog::rewind(std::int64_t step) {
  const std::int64_t from = committed();
  const std::int64_t voided = ledger_.rewind(step);
  const std::string again =
      count_of(voided, "step runs", "steps run") + " again from step " + std::to_string(step);
  const bool began = furthest_ > begun_at_;
  if (step < begun_at_) {
    begun_at_ = step;
    if (!began) furthest_ = step;
  }
  TROUPE_ASSERT(begun_at_ <= furthest_ && committed() <= furthest_, "no step is ahead of the furthest");
  return {from, step, began ? "nobody is left who holds step " + std::to_string(from) + ": " + again : again};
}

void StepLog::drop_pending(std::int64_t step) {
  pending_.erase(pending_.lower_bound(step), pending_.end());
  values_.erase(values_.lower_bound(step), values_.end());
}

std::vector<Figure> StepLog::epoch_figures(int epoch) const {
  std::vector<Figure> figures;
  const std::int64_t begin = epoch * steps_per_epoch_;
  if (begin < ledger_.first_step() && ledger_.first_step() < begin + steps_per_epoch_) figures = before_;
  for (const LedgerEntry* entry : ledger_.epoch(epoch)) add_figures(figures, entry->figures);
  return figures;
}

std::vector<Figure> StepLog::figures_under_way() const {
  if (committed() % steps_per_epoch_ == 0) return {};
  return epoch_figures(static_cast<int>(committed() / steps_per_epoch_));
}

}  // namespace troupe::train
