/// The net, batches and optimizers of golden/make_fsdp_golden.py.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/actors/ddp/golden_losses.hpp"

namespace troupe::train::testing::fsdp {

/// Blocks of the same size between an embedding and a head; the norm at the end is the root's.
struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(int blocks = 3, int width = 24) {
    inlet = register_module("inlet", torch::nn::Linear(8, width));
    for (int i = 0; i < blocks; ++i) {
      torch::nn::Sequential block(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})),
                                  torch::nn::Linear(width, width + 3), torch::nn::Tanh(),
                                  torch::nn::Linear(width + 3, width));
      layers->push_back(block);
    }
    register_module("layers", layers);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(width, 5).bias(false)));
    const torch::NoGradGuard no_grad;
    int position = 0;
    for (auto& item : named_parameters()) {
      ++position;
      if (item.value().dim() != 2) {
        item.value().fill_(item.key().find("weight") != std::string::npos ? 1 : 0);
        continue;
      }
      set_golden_values(item.value(), position, 0.25);
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = inlet(x);
    std::vector<std::size_t> of_run = order;
    for (std::size_t i = 0; order.empty() && i < layers->size(); ++i) of_run.push_back(i);
    for (const std::size_t i : of_run) h = h + layers[i]->as<torch::nn::SequentialImpl>()->forward(h);
    return head(norm(h));
  }
  torch::nn::Linear inlet{nullptr}, head{nullptr};
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm{nullptr};
  std::vector<std::size_t> order;  ///< of the layers; empty: all
};
TORCH_MODULE(Tower);

inline const std::vector<std::string> kUnits{"inlet", "layers.0", "layers.1", "layers.2"};

struct Batch {
  torch::Tensor x, y;
};
constexpr int kBatch = 12;  // of all ranks
inline Batch batch_of(int step, int rank, int ranks) {
  const int mine = kBatch / ranks;
  Batch batch{torch::empty({mine, 8}), torch::empty({mine}, torch::kInt64)};
  for (int i = 0; i < mine * 8; ++i)
    batch.x.data_ptr<float>()[i] = static_cast<float>(std::sin(0.37 * (i + rank * mine * 8) + 1.7 * step));
  for (int i = 0; i < mine; ++i) batch.y.data_ptr<std::int64_t>()[i] = ((i + rank * mine) * 3 + step) % 5;
  return batch;
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                               std::vector<torch::Tensor> parameters) {
  if (name == "sgd") {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.01));
  }
  return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                               torch::optim::AdamWOptions(0.001).weight_decay(0.05));
}

}  // namespace troupe::train::testing::fsdp
