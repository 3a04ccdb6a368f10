/// ZeRO-1: what optimizers keep is sharded. A job has as many shards as leaves, and a trainer hosts those of
/// its leaves: it keeps and steps their parameters alone, and gets the others' from who stepped them.
///
/// The bits are those of an unsharded step where an optimizer computes each parameter from its own gradient
/// and state alone, as LibTorch's SGD, Adam, AdamW, RMSprop and Adagrad do; others are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "actors/train/engine/state_walk.hpp"
#include "actors/train/engine/train_state.hpp"
#include "actors/train/job/model.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// The shard of each parameter, group by group: sorted by size, the largest first, each goes to the shard
/// with the fewest elements so far, the first of these. Pure. Source:
/// ZeroRedundancyOptimizer._partition_parameters, torch/distributed/optim.
std::vector<std::vector<int>> deal_shards(const std::vector<std::vector<std::int64_t>>& elements, int shards);

/// Not thread-safe: the thread that computes drives it.
class OptimizerShards {
 public:
  /// `told`: see TrainEngine::on_exchange. Throws BadConfig for an optimizer of another class.
  OptimizerShards(TrainingModel& model, TrainState& state, int shards, std::function<void(bool)> told);

  /// Takes part in `group` from now on.
  void attach(std::shared_ptr<collectives::ProcessGroup> group);
  void detach() { group_.reset(); }

  /// Steps this trainer's parameters, and gets the others'. Collective.
  void step(torch::optim::Optimizer& optimizer);
  /// Gets the others' parameters as they are. Collective.
  void gather(const torch::optim::Optimizer& optimizer);
  /// The same on `copy`, a model of the same job whose step this trainer has done already: the others'
  /// parameters come from there. Local.
  void step_copy(torch::optim::Optimizer& optimizer, TrainingModel& copy);
  /// The same after gather().
  void gather_copy(const torch::optim::Optimizer& optimizer, TrainingModel& copy);
  /// Lets go of what optimizers keep for parameters of others; of the model, or of a copy.
  void shed() { shed(model_); }
  void shed(TrainingModel& of);
  /// The same of what gather_state() got; a state that was installed stays whole until it is stepped.
  void shed_gathered();
  /// Gets that from who keeps it, on the rank `root` or, with -1, on all. Collective.
  void gather_state(int root);
  /// All of the state on all ranks, where others keep a part of it; else null. Collective.
  std::unique_ptr<StateWalk> walk();

 private:
  class Walk;
  /// Parameters that go together, through memory on the host: in rank order, each at a boundary of 64 bytes.
  struct Bundle {
    std::vector<std::size_t> members;  ///< parameters of the model
    std::vector<std::size_t> offsets;  ///< of each, in bytes
    std::vector<std::size_t> counts;   ///< bytes a rank
  };

  std::size_t number_of(const torch::optim::Optimizer& optimizer, TrainingModel& model) const;
  void bundle(std::size_t optimizer);
  torch::Tensor place_of(const Bundle& bundle, std::size_t member);
  void gather(const Bundle& bundle);
  bool goes_directly(std::size_t parameter) const;
  bool is_mine(std::size_t parameter) const;
  void step_mine(torch::optim::Optimizer& optimizer, const std::vector<NamedTensor>& parameters) const;
  std::vector<std::byte> state_of_mine() const;
  void take_state(std::span<const std::byte> bytes);

  TrainingModel& model_;
  TrainState& state_;
  const std::function<void(bool)> told_;
  const std::vector<NamedTensor> parameters_;
  std::vector<std::vector<std::size_t>> trained_;  ///< by optimizer: its parameters, each once
  std::vector<int> shards_;                        ///< by parameter; -1: no optimizer has it
  bool gathered_ = false;
  std::shared_ptr<collectives::ProcessGroup> group_;
  std::vector<int> ranks_;                        ///< by parameter: who keeps it
  std::vector<std::vector<Bundle>> bundles_;      ///< by optimizer
  std::vector<std::vector<std::size_t>> direct_;  ///< by optimizer: parameters that go from where they lie
  torch::Tensor memory_;                          ///< of a bundle on its way
};

}  // namespace troupe::train
