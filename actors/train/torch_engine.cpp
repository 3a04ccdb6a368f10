#include "actors/train/torch_engine.hpp"

#include <ATen/Parallel.h>

#include "actors/data/torch.hpp"
#include "actors/train/forked_copy.hpp"
#include "actors/train/job_registry.hpp"
#include "actors/train/numerics.hpp"
#include "actors/train/step_engine.hpp"
#include "actors/train/user_code.hpp"
#include "collectives/native/native_group.hpp"

namespace troupe::train {
namespace {

/// No copy: the tensors are the batch's memory.
data::Batch as_batch(const data::BatchView& view) {
  data::Batch batch;
  batch.samples = view.header.count;
  for (const auto& field : view.fields) {
    const auto tensor = torch::from_blob(field.bytes.data(), field.shape, data::torch_dtype(field.dtype));
    if (field.name == "input") {
      batch.input = tensor;
    } else if (field.name == "target") {
      batch.target = tensor;
    } else {
      batch.others.emplace_back(field.name, tensor);
    }
  }
  return batch;
}

std::unique_ptr<TrainingModel> make_model(const RunSettings& settings) {
  const auto& type = JobRegistry::instance().find(settings.job_type);
  return run_user_code(type.name + "::model (or setup, optimizer)",
                       [&] { return type.make_model(settings.job, settings.seed); });
}

EngineOptions options_of(const RunSettings& settings) {
  EngineOptions options;
  options.logical_ranks = settings.logical_ranks;
  options.seed = settings.seed;
  options.reducer.allow_unused = settings.find_unused_parameters;
  return options;
}

class TorchEngine final : public TrainEngine {
 public:
  explicit TorchEngine(const RunSettings& settings)
      : settings_(settings), engine_(make_model(settings), options_of(settings)) {}

  void enter_thread() override { at::init_num_threads(); }  // it, too, computes as set_up_numerics chose
  std::string numerics() const override { return numerics_fingerprint(); }

  State state() override {
    auto view = std::make_shared<StateView>(engine_.state().view());
    auto parts = view->parts;
    return {std::move(parts), std::move(view)};
  }
  std::unique_ptr<StateCopy> copy_state() override {
    const auto view = engine_.state().view();
    return std::make_unique<ForkedCopy>(checkpoint::lay_out_safetensors(view.parts).value());
  }
  std::size_t weight_parts() override {
    return engine_.model().parameters().size() + engine_.model().buffers().size();
  }
  void install(std::span<const StatePart> parts) override {
    pristine_ = false;
    engine_.state().install(parts).value();
  }
  void install_with_own_options(std::vector<StatePart> parts) override {
    const auto model = make_model(settings_);
    TrainState own(*model);
    own.step_schedulers(parts);
    const StateView fresh = own.view();
    take_options(parts, fresh.parts);
    install(parts);
  }
  void install_initial() override {
    if (!std::exchange(pristine_, false))
      engine_.state().install(TrainState(*make_model(settings_)).view().parts).value();
  }

  std::size_t group_bytes(const std::vector<collectives::LeafInterval>& leaves) const override {
    std::size_t bytes = 0;
    for (const auto& allocation : engine_.allocations())
      bytes += collectives::native_tree_bytes(leaves, allocation.count, allocation.dtype);
    return bytes;
  }
  void attach(std::shared_ptr<collectives::ProcessGroup> group) override { engine_.attach(std::move(group)); }
  void detach() override { engine_.detach(); }
  void rehearse() override { engine_.rehearse(make_model(settings_)); }
  void begin_step(std::int64_t step, int epoch) override {
    engine_.begin_step(static_cast<std::uint64_t>(step), epoch);
  }
  LeafResult run_leaf(int leaf, const data::BatchView& batch) override {
    return engine_.run_leaf({leaf, as_batch(batch)});
  }
  void finish_step() override { engine_.finish_step(); }
  void abandon_step() override { engine_.abandon_step(); }
  void apply(bool ends_epoch, double total_weight) override { engine_.apply(ends_epoch, total_weight); }
  std::vector<std::byte> step_record() override { return engine_.record(); }
  void take_record(std::int64_t step, int epoch, std::span<const std::byte> record) override {
    engine_.take(static_cast<std::uint64_t>(step), epoch, record);
  }
  std::vector<Figure> evaluate(std::int64_t piece, int epoch, const data::BatchView& batch) override {
    Leaf at({0, epoch, static_cast<int>(piece)}, mix(settings_.seed, static_cast<std::uint64_t>(piece)));
    engine_.evaluate(as_batch(batch), at);
    return std::move(at.figures());
  }

 private:
  const RunSettings settings_;
  StepEngine engine_;
  bool pristine_ = true;  ///< the model is as the seed made it
};

}  // namespace

std::unique_ptr<TrainEngine> make_torch_engine(const RunSettings& settings) {
  return std::make_unique<TorchEngine>(settings);
}

}  // namespace troupe::train
