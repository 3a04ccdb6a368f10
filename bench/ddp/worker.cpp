#include "bench/ddp/worker.hpp"

#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "actors/train/model.hpp"
#include "actors/train/numerics.hpp"
#include "actors/train/step_engine.hpp"
#include "examples/mnist/model.hpp"

namespace troupe::bench {
namespace {

constexpr std::size_t kTree_bytes = std::size_t{32} << 20;

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

struct Case {
  std::unique_ptr<train::TrainingModel> model;
  std::vector<std::int64_t> input_shape;
};

Job<Mlp> mlp(const std::vector<int>& widths) {
  return {[widths] { return Mlp(widths); }};
}

Case make_case(const std::string& name) {
  if (name == "mlp") return {train::make_training_model(mlp({784, 128, 10}), 1), {32, 784}};
  if (name == "wide") return {train::make_training_model(mlp({784, 2048, 2048, 10}), 1), {32, 784}};
  return {train::make_training_model(Job<ConvNet>{[] { return ConvNet(); }}, 1), {25, 1, 28, 28}};
}

/// A case in training: under the engine, or by itself.
class Training {
 public:
  Training(const std::string& name, std::shared_ptr<collectives::ProcessGroup> group)
      : group_(std::move(group)) {
    Case made = make_case(name);
    for (int i = 0; i < 8; ++i) {
      batches_.push_back({torch::randn(made.input_shape), torch::randint(10, {made.input_shape[0]})});
    }
    if (group_) {
      engine_ = std::make_unique<train::StepEngine>(std::move(made.model),
                                                    train::EngineOptions{.logical_ranks = group_->size()});
      engine_->attach(group_);
    } else {
      model_ = std::move(made.model);
    }
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i, ++step_) {
      const data::Batch& batch = batches_[step_ % batches_.size()];
      if (engine_) {
        engine_->begin_step(step_);
        engine_->run_leaf({group_->rank(), batch});
        engine_->finish_step();
        engine_->apply();
      } else {
        torch::optim::Optimizer& optimizer = *model_->optimizers().front().optimizer;
        optimizer.zero_grad();
        train::Leaf at({}, 0);
        model_->loss(batch, at).backward();
        optimizer.step();
      }
    }
  }

 private:
  std::shared_ptr<collectives::ProcessGroup> group_;
  std::unique_ptr<train::StepEngine> engine_;
  std::unique_ptr<train::TrainingModel> model_;
  std::vector<data::Batch> batches_;
  std::uint64_t step_ = 0;
};

}  // namespace

std::size_t ddp_tree_bytes() {
  return kTree_bytes;
}

std::string torch_version() {
  return TORCH_VERSION;
}

void serve_ddp_worker(collectives::NativeGroupOptions options, int commands, int answers) {
  train::set_up_numerics();
  const std::shared_ptr<collectives::ProcessGroup> group = collectives::make_native_group(std::move(options));
  std::map<std::string, Training> trainings;
  FILE* lines = ::fdopen(commands, "r");
  char line[256];
  while (lines && std::fgets(line, sizeof line, lines)) {
    std::istringstream words(line);
    std::string name;
    std::string mode;
    int steps = 0;
    words >> name >> mode >> steps;
    auto found = trainings.find(name + mode);
    if (found == trainings.end()) {
      found = trainings.try_emplace(name + mode, name, mode == "ours" ? group : nullptr).first;
      found->second.run(10);
    }
    group->barrier()->wait();
    const auto start = std::chrono::steady_clock::now();
    found->second.run(steps);
    const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
    group->barrier()->wait();
    if (group->rank() == 0) ::dprintf(answers, "%.6f\n", spent.count() / steps);
  }
  if (lines) std::fclose(lines);
}

}  // namespace troupe::bench
