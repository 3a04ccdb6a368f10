#include "actors/train/engine/torch_engine.hpp"

#include <ATen/Parallel.h>

#include <algorithm>

#include "actors/ddp/freed_memory.hpp"
#include "actors/train/engine/device_batches.hpp"
#include "actors/train/engine/forked_copy.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/engine/pinned_memory.hpp"
#include "actors/train/engine/step_engine.hpp"
#include "actors/train/job/job_registry.hpp"
#include "actors/train/job/user_code.hpp"
#include "actors/train/job/view_batch.hpp"
#include "collectives/native/native_group.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/process_title.hpp"

namespace troupe::train {
namespace {

/// Freed memory is given back at the end of an epoch, and no more often.
constexpr Duration kGivesBackAfter = std::chrono::minutes(1);

std::unique_ptr<TrainingModel> make_model(const RunSettings& settings, torch::Device device) {
  const auto& type = JobRegistry::instance().find(settings.job_type);
  return run_user_code(type.name + "::model (or setup, optimizer, precision)",
                       [&] { return type.make_model(settings.job, settings.seed, device); });
}

EngineOptions options_of(const RunSettings& settings, torch::Device device) {
  EngineOptions options;
  options.device = device;
  options.logical_ranks = settings.logical_ranks;
  options.seed = settings.seed;
  options.reducer.allow_unused = settings.find_unused_parameters;
  options.shard_optimizer = settings.sharding.what == Shard::kOptimizer;
  if (has_units(settings.sharding.what)) {
    options.shard_parameters = FsdpOptions{
        .units = settings.sharding.units,
        .min_num_params = static_cast<std::size_t>(settings.sharding.min_num_params),
        .sharding_strategy = settings.sharding.what == Shard::kGradients ? ShardingStrategy::kShardGradOp
                                                                         : ShardingStrategy::kFullShard,
        .prefetch = settings.sharding.prefetch};
  }
  return options;
}

/// Copies a part that is host memory already, such as a tensor of the job's own: the job goes on to change
/// it.
StateView of_its_own(StateView view) {
  for (std::size_t i = 0; i < view.owners.size(); ++i) {
    if (view.owners[i].storage().use_count() == 1) continue;
    view.owners[i] = view.owners[i].clone();
    view.parts[i] = tensor_as_part(view.parts[i].name, view.owners[i]);
  }
  return view;
}

/// A copy that is there already: the state's bytes that came from the device.
class HostCopy final : public StateCopy {
 public:
  explicit HostCopy(StateView view)
      : StateCopy(view.parts),
        view_(std::move(view)),
        layout_(checkpoint::lay_out_safetensors(view_.parts).value()) {}
  std::uint64_t size() const override { return layout_.total_bytes; }
  void read(std::uint64_t offset, std::span<std::byte> into) override {
    checkpoint::read_layout(layout_, offset, into);
  }

 private:
  const StateView view_;
  const checkpoint::SafetensorsLayout layout_;
};

class TorchEngine final : public TrainEngine {
 public:
  explicit TorchEngine(const RunSettings& settings)
      : settings_(settings),
        device_(computing_device(settings.trainer_gpus > 0)),
        engine_(make_model(settings, device_), options_of(settings, device_)),
        batches_(device_) {}

  void enter_thread() override { at::init_num_threads(); }  // it, too, computes as set_up_numerics chose
  std::string numerics() const override { return numerics_fingerprint(device_); }

  State state() override {
    check_whole();
    return as_state(engine_.state().view());
  }
  PieceHashes prove(int piece) override { return engine_.state().prove(piece); }
  std::unique_ptr<StateCopy> copy_state() override {
    check_whole();
    return copy_of(engine_.state().view());
  }
  std::unique_ptr<StateCopy> copy_weights() override {
    check_whole();
    return copy_of(engine_.state().weights());
  }
  std::size_t weight_parts() override {
    return engine_.model().parameters().size() + engine_.model().buffers().size();
  }
  using TrainEngine::install;
  void install(std::span<const StatePart> parts, const PartBytes& bytes_of) override {
    pristine_ = false;
    engine_.install(parts, bytes_of);
  }
  void install_with_own_options(std::vector<StatePart> parts) override {
    // The engine's own model will do where nothing has changed it so far: a large one takes a while to make.
    const bool pristine = std::exchange(pristine_, false);
    const auto other = pristine ? nullptr : make();
    TrainState own(pristine ? engine_.model() : *other);
    own.step_schedulers(parts);
    const StateView fresh = own.view();
    take_options(parts, fresh.parts);
    install(parts);
  }
  void install_initial() override {
    if (!std::exchange(pristine_, false)) engine_.install(TrainState(*make()).view().parts);
  }
  void know_run(std::int64_t steps, std::int64_t steps_per_epoch) override {
    run_ = {steps, steps_per_epoch};
    engine_.model().setup().know(run_);
  }

  void gather_state(int root) override { engine_.gather_state(root); }
  bool holds_whole_state() const override { return !engine_.is_cut(); }
  std::unique_ptr<StateWalk> walk(int root) override {
    if (auto* pieces = engine_.pieces()) return pieces->walk(root);
    if (auto shards = root < 0 ? engine_.walk_optimizer() : nullptr) return shards;
    return TrainEngine::walk(root);
  }
  std::optional<ShardedState> shards() override {
    auto* pieces = engine_.pieces();
    if (pieces == nullptr) return std::nullopt;
    return pieces->shards([this](StateView mine) { return copy_of(std::move(mine)); });
  }
  std::vector<HeldPart> held() override {
    auto* pieces = engine_.pieces();
    return pieces != nullptr ? pieces->held() : TrainEngine::held();
  }
  State common() override {
    auto* pieces = engine_.pieces();
    return pieces != nullptr ? as_state(pieces->common()) : TrainEngine::common();
  }

  std::shared_ptr<const void> pin(std::span<std::byte> memory) override {
    return pin_memory(memory, device_);
  }
  std::size_t group_bytes(const std::vector<collectives::LeafInterval>& leaves,
                          bool gradients) const override {
    std::size_t bytes = 0;
    for (const auto& allocation : engine_.allocations(gradients, leaves.size() == 1))
      bytes += collectives::native_tree_bytes(leaves, allocation.count, allocation.dtype);
    return bytes;
  }
  void attach(std::shared_ptr<collectives::ProcessGroup> group,
              std::shared_ptr<collectives::ProcessGroup> gradients) override {
    engine_.attach(std::move(group), std::move(gradients));
  }
  void detach() override { engine_.detach(); }
  void on_exchange(std::function<void(bool)> told) override { engine_.on_exchange(std::move(told)); }
  void rehearse() override {
    if (!engine_.shards_parameters()) engine_.rehearse(make());  // a copy is whole
  }
  void begin_step(std::int64_t step, int epoch) override {
    note_process("step", std::to_string(step));
    batches_.begin();
    engine_.begin_step(static_cast<std::uint64_t>(step), epoch);
  }
  void run_leaf(int leaf, const data::BatchView& batch) override {
    engine_.run_leaf({leaf, batches_.take(as_batch(batch))});
  }
  std::size_t batches_done() override { return batches_.done(); }
  std::vector<LeafResult> results() override { return engine_.results(); }
  void finish_step() override { engine_.finish_step(); }
  void abandon_step() override {
    batches_.wait();  // their memory is given back
    engine_.abandon_step();
  }
  void observe(const StepValues& evaluated) override { engine_.observe(evaluated); }
  StepValues apply(bool ends_epoch, double total_weight) override {
    return engine_.apply(ends_epoch, total_weight);
  }
  StepValues skip(bool ends_epoch) override { return engine_.skip(ends_epoch); }
  std::vector<std::byte> step_record() override { return engine_.record(); }
  void take_record(std::int64_t step, int epoch, std::span<const std::byte> record) override {
    engine_.take(static_cast<std::uint64_t>(step), epoch, record);
  }
  std::string part() const override { return engine_.part(); }
  void begin_evaluation(std::int64_t pieces) override { engine_.begin_evaluation(pieces); }
  std::vector<Figure> evaluate(std::int64_t piece, int epoch, const data::BatchView& batch) override {
    batches_.begin();
    auto figures = engine_.evaluate(static_cast<int>(piece), epoch, batches_.take(as_batch(batch)));
    batches_.wait();
    return figures;
  }
  void end_evaluation() override {
    engine_.end_evaluation();
    const Instant now = MonotonicClock().now();
    if (now - gave_back_ < kGivesBackAfter) return;  // taking it again costs a page fault a page
    gave_back_ = now;
    give_back_freed_memory();
  }

 private:
  std::unique_ptr<StateCopy> copy_of(StateView view) const {
    if (!device_.is_cpu()) return std::make_unique<HostCopy>(of_its_own(std::move(view)));
    return std::make_unique<ForkedCopy>(view.parts);
  }
  static State as_state(StateView view) {
    auto owner = std::make_shared<StateView>(std::move(view));
    auto parts = owner->parts;
    return {std::move(parts), std::move(owner)};
  }
  void check_whole() const {
    if (holds_whole_state()) return;
    throw_error({ErrorCode::kUnavailable, "this trainer has no whole state",
                 "the job's parameters are sharded over its trainers",
                 "take it from a checkpoint: set checkpoint_folder"});
  }

  /// A model as the seed makes it.
  std::unique_ptr<TrainingModel> make() const {
    auto model = make_model(settings_, device_);
    model->setup().know(run_);
    return model;
  }

  const RunSettings settings_;
  const torch::Device device_;
  RunLength run_;
  StepEngine engine_;
  DeviceBatches batches_;
  bool pristine_ = true;  ///< the model is as the seed made it
  Instant gave_back_ = MonotonicClock().now();
};

}  // namespace

std::unique_ptr<TrainEngine> make_torch_engine(const RunSettings& settings) {
  return std::make_unique<TorchEngine>(settings);
}

}  // namespace troupe::train
