/// Everything that a step changes, as a registry of named parts (state_parts.hpp).
///
/// The parts in their one order: parameters, then buffers, both in registration order under their state-dict
/// names, then "optimizer/<parameter>/<field>", "optimizer_options/<option>" and "optimizer/learning_rates"
/// (a row a parameter group), "scheduler/steps", and "user/<name>" for what the job declared. Random streams
/// are functions of seed, step and leaf, and need no part; a generator of the user's own is declared. The
/// same values give the same hash on LibTorch 1.13 and 2.13.
///
/// Not thread-safe, and not during a step.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "actors/train/engine/state_parts.hpp"
#include "actors/train/job/model.hpp"

namespace troupe::train {

/// A look at a state: valid until the model's next step. Tensors on the CPU are not copied; those of a device
/// are, to the host.
struct StateView {
  std::vector<StatePart> parts;
  std::vector<torch::Tensor> owners;  ///< keeps alive what `parts` points into
};

/// What a part's bytes are as a tensor, without a copy; undefined for a type that no state has.
torch::Tensor part_as_tensor(const StatePart& part);
/// A part that is a view of `tensor`, which is on the CPU and row-major.
StatePart tensor_as_part(const std::string& name, const torch::Tensor& tensor);

/// How a trainer that keeps pieces of parameters takes a state.
class Pieces {
 public:
  virtual ~Pieces() = default;
  /// Its piece of `whole`, which has the parameter's layout, in memory of its own; undefined: it keeps none.
  virtual torch::Tensor piece(const torch::Tensor& parameter, const torch::Tensor& whole) = 0;
  /// The parameter's piece gets its values. False: it has none, and is whole.
  virtual bool set(const torch::Tensor& parameter, const torch::Tensor& value) = 0;
};

class TrainState {
 public:
  /// `model` outlives this.
  explicit TrainState(TrainingModel& model) : model_(model) {}

  StateView view() const;
  /// Parameters, buffers and averages of parameters (job/ema.hpp).
  StateView weights() const;
  /// See final_hash().
  std::string hash() const { return final_hash(view().parts); }

  /// hash_piece() of view(). Of tensors on a device only those bytes come to the host.
  PieceHashes prove(int piece) const;

  /// What optimizers keep for the parameters that are `wanted`, by their number; as view() names it.
  StateView optimizer_fields(const std::function<bool(std::size_t)>& wanted) const;
  /// Has optimizers keep that, too. Errors as install(), and then nothing has changed.
  Result<void> add_optimizer_fields(std::span<const StatePart> parts);

  /// Steps each scheduler as often as those of `like` were: then learning rates are what this model's own
  /// would be by now. REQUIRES: a fresh model.
  void step_schedulers(std::span<const StatePart> like);

  /// Replaces the whole state: everything is checked first, and after an error nothing has changed. The
  /// values are copied. Errors: kBadInput with the first part that does not fit this model and optimizer.
  /// What `bytes_of` throws, which gives the bytes of parts without, may leave some of the new state.
  Result<void> install(std::span<const StatePart> parts, Pieces* pieces = nullptr,
                       const PartBytes& bytes_of = {});

  using Part = std::function<void(const std::string& name, const torch::Tensor& tensor)>;
  /// All parts in their order; `fields` is called where what an optimizer keeps for parameters is due.
  void each_part(const Part& part, const std::function<void(const TrainedBy&)>& fields) const;
  /// What such a part is called.
  static std::string field_name(const TrainedBy& trained, const std::string& parameter,
                                const std::string& field);

 private:
  void each_field(const TrainedBy& trained, const std::function<bool(std::size_t)>& wanted,
                  const Part& part) const;
  void each_part(const Part& part) const;

  TrainingModel& model_;
};

}  // namespace troupe::train
