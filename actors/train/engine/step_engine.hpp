/// One trainer's step: forward and backward of each leaf, reduction, then the local apply.
///
///     engine.attach(group);                                   // again for every generation
///     auto losses = engine.run_step(global_step, leaves);     // nothing of the TrainState changes
///     engine.apply(ends_epoch);                               // optimizer, buffers, scheduler: local only
///
/// If run_step throws (CollectiveAborted, Timeout, what the user's code threw), the TrainState is what it
/// was, and the step may run again, in this group if it is good or in another, with the same bits: what
/// loss() may change is put back (loss_state.hpp), and BadConfig is thrown where it changes anything else.
///
/// Where parameters are in shards (parameter_shards.hpp), the state changes in apply() alone, too, but no
/// trainer has all of it.
///
/// Leaves run one after another; where the model has layers over all leaves of a step (SyncBatchNorm), side
/// by side, handing over at each of these (leaf_relay.hpp).
///
/// Not thread-safe: one thread drives it, and draws no random number between leaves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/ddp/in_step.hpp"
#include "actors/train/engine/engine.hpp"
#include "actors/train/engine/leaf_results.hpp"
#include "actors/train/engine/loss_check.hpp"
#include "actors/train/engine/loss_state.hpp"
#include "actors/train/engine/optimizer_shards.hpp"
#include "actors/train/engine/parameter_shards.hpp"
#include "actors/train/engine/reducer.hpp"
#include "actors/train/engine/rehearsal.hpp"
#include "actors/train/engine/train_state.hpp"
#include "actors/train/job/model.hpp"
#include "collectives/process_group.hpp"
#include "runtime/core/fork_guard.hpp"

namespace troupe::train {

struct EngineOptions {
  int logical_ranks = 1;   ///< leaves of the job; part of its config, whatever the number of trainers
  std::uint64_t seed = 0;  ///< of the job: keys the random stream of every leaf
  ReducerOptions reducer;
  torch::Device device = torch::kCPU;  ///< where the model is, and computes
  bool shard_optimizer = false;        ///< over the leaves (optimizer_shards.hpp)
  /// Gradients and parameters, too (parameter_shards.hpp).
  std::optional<FsdpOptions> shard_parameters{};
};

/// One leaf's batch, on the model's device.
struct LeafBatch {
  int leaf = 0;
  data::Batch batch;
};

/// Throws BadConfig for more than one leaf on a GPU, where the model has layers over all leaves of a step:
/// there leaves do not run side by side.
void check_leaves_in_step(torch::Device device, int leaves);

class StepEngine {
 public:
  StepEngine(std::unique_ptr<TrainingModel> model, EngineOptions options);
  ~StepEngine();

  /// Swaps the group, between steps. Collective. Throws BadConfig where the group gives this rank no leaf.
  /// `gradients`: see Reducer::attach.
  void attach(std::shared_ptr<collectives::ProcessGroup> group,
              std::shared_ptr<collectives::ProcessGroup> gradients = nullptr);
  /// TrainEngine::on_exchange.
  void on_exchange(std::function<void(bool)> told) { told_ = std::move(told); }
  /// Lets go of the group and of the gradients in its memory.
  void detach();

  /// Runs the leaves of this rank, which are the group's leaves() in order, and reduces. Returns each leaf's
  /// loss. On any exception but the group's own the group is aborted, so that no peer waits for this rank.
  std::vector<double> run_step(std::uint64_t global_step, std::span<const LeafBatch> leaves);

  /// The same in pieces, for a caller that fetches each batch when its leaf starts: begin_step, run_leaf for
  /// each leaf, finish_step.
  void begin_step(std::uint64_t global_step, int epoch = 0);
  /// Returns when the leaf is under way; on the CPU it is done then. Leaves that wait for each other run with
  /// the last of them.
  void run_leaf(const LeafBatch& leaf);
  /// What the leaves of this step came to so far, in their order. On a device: waits for their forwards.
  std::vector<LeafResult> results();
  void finish_step();

  /// The step that begins next is computed by a copy, too, made of `fresh`, a model of the same job: run_leaf
  /// and apply throw BadConfig where the copy differs. REQUIRES: this rank has leaf 0.
  void rehearse(std::unique_ptr<TrainingModel> fresh);

  /// TrainEngine::observe.
  void observe(const StepValues& evaluated);

  /// Applies the step that was run last: what leaf 0's loss changed, the job's apply on the mean gradients,
  /// and the schedulers. `total_weight`: the sum over all leaves, where leaves have weights. Local, but for
  /// shards. An exception here leaves the state half-changed: it must be installed anew, or the trainer die.
  /// Returns what the job counted, and the learning rates.
  StepValues apply(bool ends_epoch = false, double total_weight = 0);

  /// TrainEngine::skip: in place of apply().
  StepValues skip(bool ends_epoch = false);

  /// TrainEngine::step_record and take_record.
  std::vector<std::byte> record() const;
  void take(std::uint64_t global_step, int epoch, std::span<const std::byte> record);

  /// Gives up a step that is under way or was not applied. The TrainState is what it was.
  void abandon_step();

  /// A piece of the test set in evaluation mode: what it counts to, a function of the state, the piece and
  /// the epoch. Between steps.
  std::vector<Figure> evaluate(int piece, int epoch, const data::Batch& batch);
  /// TrainEngine's.
  void begin_evaluation(std::int64_t pieces);
  void end_evaluation();

  /// TrainEngine::gather_state.
  void gather_state(int root);
  /// OptimizerShards::walk; null without.
  std::unique_ptr<StateWalk> walk_optimizer() { return shards_ ? shards_->walk() : nullptr; }

  /// TrainEngine::install.
  void install(std::span<const StatePart> parts, const PartBytes& bytes_of = {});
  /// Of parameters that are in pieces, here too; null: they are whole.
  ParameterShards* pieces() { return is_in_pieces() ? &*pieces_ : nullptr; }
  /// Whether this trainer keeps, or will once it steps, pieces of the parameters.
  bool shards_parameters() const { return pieces_.has_value(); }
  bool is_cut() const { return pieces_ && pieces_->is_cut(); }

  TrainState& state() { return state_; }
  TrainingModel& model() { return *model_; }
  const char* part() const { return model_->part(); }

  /// What attach() allocates of the group's segment: see native_tree_bytes.
  std::vector<Reducer::Allocation> allocations(bool gradients, bool alone = true) const {
    if (pieces_ && !alone) return {};
    return reducer_.allocations(gradients);
  }

 private:
  enum class Phase { kIdle, kLeaves, kReduced };
  struct Turn;
  void compute_leaf(const LeafBatch& leaf);
  void compute_pieces(const LeafBatch& leaf);
  void compute_together();
  void rehearse_leaf(const LeafBatch& leaf, double loss);
  Leaf leaf_at(int leaf) const;
  template <class Between>
  void forward_backward(const LeafBatch& leaf, Leaf& at, Between&& between);
  torch::Tensor exchange(const std::vector<torch::Tensor>& rows);
  std::shared_ptr<InStep> in_step_of(int leaf, std::function<torch::Tensor(const torch::Tensor&)> gather);
  bool rehearses(int leaf) const { return rehearsal_ && leaf == group_->leaves().begin; }
  StepValues apply_sharded(const ApplyInfo& info);
  StepValues apply_pieces(const ApplyInfo& info, double total_weight);
  bool is_in_pieces() const { return pieces_ && pieces_->is_used(); }
  void share_loss_state();
  void divide_by(double total_weight);
  void end_forked_child() const;
  template <class Body>
  auto guarded(Body&& body);

  std::unique_ptr<TrainingModel> model_;
  std::vector<torch::Tensor> parameters_;
  EngineOptions options_;
  TrainState state_;
  ForkGuard fork_guard_;
  LossCheck loss_check_;
  LossState loss_state_;
  Reducer reducer_;
  std::optional<OptimizerShards> shards_;
  std::optional<ParameterShards> pieces_;
  std::shared_ptr<collectives::ProcessGroup> group_;

  Phase phase_ = Phase::kIdle;
  std::uint64_t global_step_ = 0;
  int epoch_ = 0;
  int next_leaf_ = 0;
  const bool in_step_;   ///< the model has layers over all leaves
  const bool together_;  ///< so leaves run side by side
  std::function<void(bool)> told_ = [](bool) {};
  std::vector<LeafBatch> waiting_;       ///< leaves for the last one
  std::optional<Rehearsal> rehearsal_;   ///< of the step that is under way
  std::vector<torch::Tensor> gathered_;  ///< by the forward of the leaf that is rehearsed
  LeafResults results_;
  torch::Tensor committed_;  ///< what of loss_state_ every leaf starts from
  torch::Tensor next_;       ///< what leaf 0 left, installed by apply
};

}  // namespace troupe::train
