#include "bench/ddp/worker.hpp"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "actors/ddp/distributed_data_parallel.hpp"
#include "actors/ddp/freed_memory.hpp"
#include "actors/ddp/fully_sharded_data_parallel.hpp"
#include "actors/ddp/torch_compat.hpp"
#include "actors/train/engine/numerics.hpp"
#include "actors/train/engine/step_engine.hpp"
#include "actors/train/job/model.hpp"
#include "examples/mnist/model.hpp"

namespace troupe::bench {
namespace {

constexpr std::size_t kTree_bytes = std::size_t{320} << 20;  // gradients of each mode

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(const std::vector<int>& widths) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.push_back(register_module(std::to_string(2 * i), torch::nn::Linear(widths[i], widths[i + 1])));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(x);
      if (i + 1 < layers.size()) x = torch::relu(x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mlp);

template <class Net>
struct Job {
  Net model() const { return make(); }
  torch::optim::SGD optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9));
  }
  torch::Tensor loss(Net& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  std::function<Net()> make;
};

/// Under AdamW, which keeps twice the parameters.
template <class Net>
struct AdamJob {
  Net model() const { return make(); }
  torch::optim::AdamW optimizer(Net& net) const {
    return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.001));
  }
  torch::Tensor loss(Net& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  std::function<Net()> make;
};

const std::vector<std::int64_t> kFlat{32, 784};
const std::vector<std::int64_t> kImages{25, 1, 28, 28};

struct Case {
  std::unique_ptr<train::TrainingModel> model;
  std::vector<std::int64_t> input_shape;
};

Job<Mlp> mlp(const std::vector<int>& widths) {
  return {[widths] { return Mlp(widths); }};
}

Case make_adam_case() {
  return {train::make_training_model(AdamJob<Mlp>{mlp({784, 2048, 2048, 10}).make}, 1), kFlat};
}

Case make_case(const std::string& name) {
  if (name == "mlp") return {train::make_training_model(mlp({784, 128, 10}), 1), kFlat};
  if (name == "wide") return {train::make_training_model(mlp({784, 2048, 2048, 10}), 1), kFlat};
  return {train::make_training_model(Job<ConvNet>{[] { return ConvNet(); }}, 1), kImages};
}

struct Memory {
  double between_steps = 0;
  double most = 0;
};

/// A case in training: something that takes a step.
class Training {
 public:
  virtual ~Training() = default;
  void run(int steps) {
    for (int i = 0; i < steps; ++i, ++at_) step(batches_[at_ % batches_.size()]);
  }
  /// Bytes that its optimizer keeps in this process.
  virtual double kept() { return 0; }
  /// Bytes that it should take.
  virtual Memory expected() const { return {}; }
  double batch_bytes() const {
    double bytes = 0;
    for (const data::Batch& batch : batches_)
      bytes += static_cast<double>(batch.input.nbytes() + batch.target.nbytes());
    return bytes;
  }

 protected:
  explicit Training(const std::vector<std::int64_t>& input_shape) {
    for (int i = 0; i < 8; ++i)
      batches_.push_back({torch::randn(input_shape), torch::randint(10, {input_shape[0]})});
  }
  virtual void step(const data::Batch& batch) = 0;
  std::uint64_t at() const { return at_; }

 private:
  std::vector<data::Batch> batches_;
  std::uint64_t at_ = 0;
};

/// Under the trainer's engine.
class UnderEngine final : public Training {
 public:
  UnderEngine(Case made, std::shared_ptr<collectives::ProcessGroup> group, const std::string& mode = {})
      : Training(made.input_shape),
        group_(std::move(group)),
        engine_(std::move(made.model), options_of(group_->size(), mode)) {
    engine_.attach(group_);
  }
  double kept() override {
    double bytes = 0;
    for (const auto& part : engine_.state().optimizer_fields([](std::size_t) { return true; }).parts)
      bytes += static_cast<double>(part.bytes.size());
    return bytes;
  }

 private:
  static train::EngineOptions options_of(int ranks, const std::string& mode) {
    train::EngineOptions options{.logical_ranks = ranks, .shard_optimizer = mode == "sharded"};
    if (mode.starts_with("job_"))
      options.shard_parameters =
          train::FsdpOptions{.min_num_params = 1000, .prefetch = mode == "job_prefetch"};
    return options;
  }
  void step(const data::Batch& batch) override {
    engine_.begin_step(at());
    engine_.run_leaf({group_->rank(), batch});
    engine_.results();
    engine_.finish_step();
    engine_.apply();
  }
  std::shared_ptr<collectives::ProcessGroup> group_;
  train::StepEngine engine_;
};

/// A net and an optimizer, by itself or wrapped in DistributedDataParallel.
template <class Net>
class ByHand final : public Training {
 public:
  ByHand(Net net, const std::vector<std::int64_t>& shape, std::shared_ptr<collectives::ProcessGroup> group)
      : Training(shape),
        net_(net),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9)) {
    if (group) ddp_.emplace(net_, std::move(group));
  }

 private:
  void step(const data::Batch& batch) override {
    for (auto& parameter : optimizer_.param_groups()[0].params()) parameter.mutable_grad() = torch::Tensor();
    const torch::Tensor output = ddp_ ? ddp_->forward(batch.input) : net_->forward(batch.input);
    torch::nn::functional::cross_entropy(output, batch.target).backward();
    optimizer_.step();
  }
  Net net_;
  torch::optim::SGD optimizer_;
  std::optional<train::DistributedDataParallel<Net>> ddp_;
};

std::vector<int> widths_of(const std::string& name) {
  if (name == "mlp") return {784, 128, 10};
  if (name == "wide") return {784, 2048, 2048, 10};
  std::vector<int> tower(9, 1024);
  tower.push_back(10);
  return tower;
}

/// An MLP under AdamW, by hand: in DistributedDataParallel, or sharded, each linear layer a unit.
class AdamByHand final : public Training {
 public:
  AdamByHand(const std::string& name, const std::string& mode,
             std::shared_ptr<collectives::ProcessGroup> group, std::int64_t samples = 32)
      : Training({samples, widths_of(name).front()}), mode_(mode), net_(widths_of(name)) {
    if (mode == "hand_adam") {
      ddp_.emplace(net_, std::move(group));
    } else {
      train::FsdpOptions options;
      for (std::size_t i = 0; i < net_->layers.size(); ++i) options.units.push_back(std::to_string(2 * i));
      if (mode == "zero2") options.sharding_strategy = train::ShardingStrategy::kShardGradOp;
      options.prefetch = mode == "prefetch";
      fsdp_.emplace(net_, std::move(group), options);
    }
    parameters_ = fsdp_ ? fsdp_->parameters() : net_->parameters();
    optimizer_.emplace(parameters_, torch::optim::AdamWOptions(0.001));
  }
  /// Parameters, gradients and what AdamW keeps: what docs/sharding.md says is there between steps and at
  /// most.
  Memory expected() const override {
    double shards = 0, largest = 0;
    for (const torch::Tensor& parameter : parameters_) shards += static_cast<double>(parameter.nbytes());
    const double ranks = fsdp_->group().size();
    for (const torch::Tensor& shard : parameters_)
      largest = std::max(largest, static_cast<double>(shard.nbytes()) * ranks);
    const double whole = mode_ == "zero2" ? shards * ranks : mode_ == "prefetch" ? 2 * largest : largest;
    // The gradients' shards come as whole parameters go.
    const double shards_then = (mode_ == "zero2" ? 3 : 4) * shards;
    return {4 * shards, shards_then + whole + kGradient_units * largest};
  }

 private:
  void step(const data::Batch& batch) override {
    for (auto& parameter : parameters_) parameter.mutable_grad() = torch::Tensor();
    const torch::Tensor output = ddp_ ? ddp_->forward(batch.input) : fsdp_->forward(batch.input);
    torch::nn::functional::cross_entropy(output, batch.target).backward();
    optimizer_->step();
  }
  static constexpr double kGradient_units = 2;  ///< as the page has it

  const std::string mode_;
  Mlp net_;
  std::optional<train::DistributedDataParallel<Mlp>> ddp_;
  std::optional<train::FullyShardedDataParallel<Mlp>> fsdp_;
  std::vector<torch::Tensor> parameters_;
  std::optional<torch::optim::AdamW> optimizer_;
};

/// Counts the tensors' bytes that are allocated while it is switched on.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& one() {
    static auto* const made = new CountingAllocator(*c10::GetCPUAllocator());  // tensors may outlive statics
    return *made;
  }
  /// A wrapper that is made installs its own.
  void count_from_here() {
    c10::SetCPUAllocator(this);
    counting_ = true;
    now_ = most_ = 0;
  }
  void stop() { counting_ = false; }
  double now() const { return now_; }
  double most() const { return most_; }
  void forget_most() { most_ = now_; }

  c10::DataPtr allocate(std::size_t bytes) TROUPE_ALLOCATE_CONST override {
    if (!counting_) return base_.allocate(bytes);
    auto* block = new Block{base_.allocate(bytes), static_cast<double>(bytes)};
    now_ = now_ + block->bytes;
    most_ = std::max(most_, now_);
    return {block->memory.get(), block, &end, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const TROUPE_COPY_DATA_OVERRIDE {
    std::memcpy(to, from, count);
  }

 private:
  explicit CountingAllocator(c10::Allocator& base) : base_(base) {}
  struct Block {
    c10::DataPtr memory;
    double bytes;
  };
  static void end(void* context) {
    auto* block = static_cast<Block*>(context);
    now_ = now_ - block->bytes;
    delete block;
  }
  c10::Allocator& base_;
  static inline bool counting_ = false;  ///< a backward on the CPU runs in the thread that calls it
  static inline double now_ = 0, most_ = 0;
};

/// Bytes of a fresh training between steps and at most, and what the page says.
std::pair<Memory, Memory> measured_memory(const std::string& name, const std::string& mode,
                                          const std::shared_ptr<collectives::ProcessGroup>& group) {
  CountingAllocator& counter = CountingAllocator::one();
  counter.count_from_here();
  AdamByHand training(name, mode, group, /*samples=*/2);
  training.run(3);  // the optimizer's state is there
  const double batches = training.batch_bytes(), between = counter.now() - batches;
  counter.forget_most();
  training.run(3);
  counter.stop();
  return {{between, counter.most() - batches}, training.expected()};
}

std::unique_ptr<Training> make_training(const std::string& name, const std::string& mode,
                                        const std::shared_ptr<collectives::ProcessGroup>& group) {
  const auto alone = mode == "alone" ? nullptr : group;
  if (mode == "adam" || mode == "sharded" || mode.starts_with("job_"))
    return std::make_unique<UnderEngine>(make_adam_case(), group, mode);
  if (mode == "hand_adam" || mode == "zero2" || mode == "zero3" || mode == "prefetch")
    return std::make_unique<AdamByHand>(name, mode, group);
  if (mode == "ours") return std::make_unique<UnderEngine>(make_case(name), group);
  if (name == "mlp") return std::make_unique<ByHand<Mlp>>(Mlp(std::vector<int>{784, 128, 10}), kFlat, alone);
  if (name == "wide")
    return std::make_unique<ByHand<Mlp>>(Mlp(std::vector<int>{784, 2048, 2048, 10}), kFlat, alone);
  return std::make_unique<ByHand<ConvNet>>(ConvNet(), kImages, alone);
}

}  // namespace

std::size_t ddp_tree_bytes() {
  return kTree_bytes;
}

std::string torch_version() {
  return TORCH_VERSION;
}

void serve_ddp_worker(collectives::NativeGroupOptions options, int commands, int answers) {
  train::keep_freed_memory();
  train::set_up_numerics();
  const std::shared_ptr<collectives::ProcessGroup> group = collectives::make_native_group(std::move(options));
  std::map<std::string, std::unique_ptr<Training>> trainings;
  FILE* lines = ::fdopen(commands, "r");
  char line[256];
  while (lines && std::fgets(line, sizeof line, lines)) {
    std::istringstream words(line);
    std::string name;
    std::string mode;
    int steps = 0;
    words >> name >> mode >> steps;
    if (steps < 0) {
      const auto [found, expected] = measured_memory(name, mode, group);
      if (group->rank() == 0) {
        ::dprintf(answers, "%.0f\n%.0f\n%.0f\n%.0f\n", found.between_steps, found.most,
                  expected.between_steps, expected.most);
      }
      continue;
    }
    if (steps == 0) {
      if (group->rank() == 0) ::dprintf(answers, "%.0f\n", trainings.at(name + mode)->kept());
      continue;
    }
    auto found = trainings.find(name + mode);
    if (found == trainings.end()) {
      found = trainings.emplace(name + mode, make_training(name, mode, group)).first;
      found->second->run(10);
    }
    group->barrier()->wait();
    const auto start = std::chrono::steady_clock::now();
    found->second->run(steps);
    const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
    group->barrier()->wait();
    if (group->rank() == 0) ::dprintf(answers, "%.6f\n", spent.count() / steps);
  }
  if (lines) std::fclose(lines);
}

}  // namespace troupe::bench
