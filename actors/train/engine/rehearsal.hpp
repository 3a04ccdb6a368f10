/// One step, computed a second time by a fresh copy of the TrainState: finds what a step depends on and no
/// part has, such as a counter in a member of the net. A replacement and a resumed run start from such a
/// copy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "actors/train/engine/apply_step.hpp"
#include "actors/train/engine/loss_state.hpp"
#include "actors/train/engine/train_state.hpp"

namespace troupe::train {

/// Not thread-safe. Draws from the default generator: seed it before each call.
class Rehearsal {
 public:
  /// `fresh` is a model of the same job on `device`, and gets `state`.
  Rehearsal(std::unique_ptr<TrainingModel> fresh, const TrainState& state, torch::Device device);

  /// A leaf of the step, whose loss was `loss`. Throws BadConfig if the copy has another one.
  void leaf(const data::Batch& batch, Leaf& at, double loss);
  /// Before the step is applied: its reduced gradients.
  void take_gradients(TrainingModel& model);
  /// The apply, on the copy. `how` and `after`: see Apply and GradientsOfAll::complete, for the copy's model
  /// and its optimizers.
  using StepOfCopy = std::function<void(torch::optim::Optimizer&, TrainingModel&)>;
  void apply(const ApplyInfo& info, const StepOfCopy& how, const StepOfCopy& after);
  TrainingModel& model() { return *fresh_; }
  /// Where the leaf was not 0, which left the step's `flat` (loss_state.hpp). Before the apply.
  void take_loss_state(const torch::Tensor& flat) { loss_state_.restore(flat); }
  /// After both: throws BadConfig if the copy has become another state.
  void compare(const TrainState& state);

 private:
  std::unique_ptr<TrainingModel> fresh_;
  TrainState copy_;
  LossState loss_state_;
};

}  // namespace troupe::train
