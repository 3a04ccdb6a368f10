/// Everything that a step changes: parameters, buffers, optimizer, learning rates and scheduler.
///
/// A state is a flat list of named tensors in one canonical order: parameters, then buffers, both in
/// registration order under their state-dict names, then "optimizer/<parameter>/<field>",
/// "optimizer/learning_rates" (one a group) and "scheduler/steps". The same values give the same hash on
/// LibTorch 1.13 and 2.13.
///
/// Not thread-safe, and not during a step.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "actors/train/model.hpp"
#include "actors/train/state_bytes.hpp"

namespace troupe::train {

/// A look at a state without a copy: valid until the model's next step.
struct StateView {
  std::vector<StateTensor> tensors;
  std::vector<torch::Tensor> owners;  ///< keeps alive what `tensors` points into
};

class TrainState {
 public:
  /// `model` outlives this.
  explicit TrainState(TrainingModel& model) : model_(model) {}

  StateView view() const;
  /// SHA-256 over the view: 64 hexadecimal characters.
  std::string hash() const { return state_hash(view().tensors); }
  /// One contiguous buffer for a peer (see state_bytes.hpp).
  std::vector<std::byte> serialise() const { return encode_state(view().tensors); }

  /// Replaces the whole state: everything is checked first, and after an error nothing has changed. The
  /// values are copied. Errors: kBadInput with the first tensor that does not fit this model and optimizer.
  Result<void> install(std::span<const StateTensor> tensors);
  Result<void> install(std::span<const std::byte> serialised);

 private:
  TrainingModel& model_;
};

}  // namespace troupe::train
