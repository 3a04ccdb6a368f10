/// The net and batches of golden/make_sync_batch_norm_golden.py, and how parts share a batch out.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/actors/ddp/golden_losses.hpp"

namespace troupe::train::testing::normed {

constexpr std::int64_t kBatch = 10;  // of all parts
constexpr std::int64_t kChannels = 4;
constexpr std::int64_t kClasses = 3;

/// Of a kind of BatchNorm: what follows [samples, channels].
inline std::vector<std::int64_t> space_of(const std::string& kind) {
  if (kind == "1d") return {5};
  if (kind == "2d") return {4, 3};
  if (kind == "3d") return {3, 2, 2};
  return {};  // "flat"
}

/// One inlet and one norm are there, by the kind.
struct NormedNetImpl : torch::nn::Module {
  explicit NormedNetImpl(const std::string& kind) {
    const auto inlet = [&](auto layer) { return register_module("inlet", layer); };
    const auto norm = [&](auto layer) { return register_module("norm", layer); };
    if (kind == "flat") flat = inlet(torch::nn::Linear(2, kChannels));
    if (kind == "1d") conv1 = inlet(torch::nn::Conv1d(torch::nn::Conv1dOptions(2, kChannels, 3).padding(1)));
    if (kind == "2d") conv2 = inlet(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, kChannels, 3).padding(1)));
    if (kind == "3d") conv3 = inlet(torch::nn::Conv3d(torch::nn::Conv3dOptions(2, kChannels, 3).padding(1)));
    if (kind == "2d") {
      norm2 = norm(torch::nn::BatchNorm2d(kChannels));
    } else if (kind == "3d") {
      norm3 = norm(torch::nn::BatchNorm3d(kChannels));
    } else {
      norm1 = norm(torch::nn::BatchNorm1d(kChannels));
    }
    head = register_module("head", torch::nn::Linear(kChannels, kClasses));
    const torch::NoGradGuard no_grad;
    int position = 0;
    for (auto& item : named_parameters()) {
      ++position;
      if (item.key().rfind("norm", 0) == 0) continue;  // stays 1 and 0
      set_golden_values(item.value(), position, 0.5);
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor into = flat ? flat(x) : conv1 ? conv1(x) : conv2 ? conv2(x) : conv3(x);
    const torch::Tensor hidden = torch::tanh(norm1 ? norm1(into) : norm2 ? norm2(into) : norm3(into));
    return head(hidden.reshape({x.size(0), kChannels, -1}).mean(2));
  }
  torch::nn::Linear flat{nullptr}, head{nullptr};
  torch::nn::Conv1d conv1{nullptr};
  torch::nn::Conv2d conv2{nullptr};
  torch::nn::Conv3d conv3{nullptr};
  torch::nn::BatchNorm1d norm1{nullptr};
  torch::nn::BatchNorm2d norm2{nullptr};
  torch::nn::BatchNorm3d norm3{nullptr};
};
TORCH_MODULE(NormedNet);

inline torch::optim::SGD optimizer_of(NormedNet& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

struct Batch {
  torch::Tensor x, y;
};
inline Batch whole_batch(const std::string& kind, int step) {
  std::vector<std::int64_t> shape{kBatch, 2};
  for (const std::int64_t extent : space_of(kind)) shape.push_back(extent);
  Batch batch{torch::empty(shape), torch::empty({kBatch}, torch::kInt64)};
  const std::int64_t each = batch.x.numel() / kBatch;
  for (std::int64_t i = 0; i < batch.x.numel(); ++i) {
    const auto sample = static_cast<double>(i / each);
    batch.x.data_ptr<float>()[i] = static_cast<float>(
        std::sin(0.37 * static_cast<double>(i) + 1.7 * step) * (1 + sample / 3) + sample / 2);
  }
  for (std::int64_t i = 0; i < kBatch; ++i)
    batch.y.data_ptr<std::int64_t>()[i] = (i / 2 + step % 2) % kClasses;
  return batch;
}

/// Each part has two samples, and one of them, another in each step, all that are left.
inline Batch part_of_batch(const std::string& kind, int step, int part, int parts) {
  const int favoured = step % parts;
  const std::int64_t more = kBatch - 2 * parts;
  const std::int64_t begin = 2 * part + (part > favoured ? more : 0);
  const std::int64_t end = begin + 2 + (part == favoured ? more : 0);
  const Batch whole = whole_batch(kind, step);
  return {whole.x.slice(0, begin, end), whole.y.slice(0, begin, end)};
}

}  // namespace troupe::train::testing::normed
