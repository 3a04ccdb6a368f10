#include "actors/train/driver/state_proofs.hpp"

namespace troupe::train {

void StateProofs::begin(bool step_by_step) {
  proofs_.clear();
  whole_at_.reset();
  step_by_step_ = step_by_step;
}

std::optional<StateProofs::Proof> StateProofs::differs(std::int64_t steps, ActorId from,
                                                       const std::vector<PartHash>& parts) {
  const auto [proof, first] = proofs_.emplace(steps, Proof{from, parts});
  if (first || proof->second.parts == parts) return std::nullopt;
  return proof->second;
}

bool StateProofs::prove(std::int64_t committed) {
  proofs_.erase(proofs_.begin(), proofs_.upper_bound(committed));
  if (!step_by_step_ || !whole_at_ || committed < *whole_at_) return false;
  step_by_step_ = false;
  return true;
}

}  // namespace troupe::train
