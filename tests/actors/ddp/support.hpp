/// What the tests of DistributedDataParallel and DataParallel share.
#pragma once

#include <torch/torch.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::train::testing {

using Group = std::shared_ptr<collectives::ProcessGroup>;
using DdpBody = std::function<std::string(Group group)>;

/// Runs `body` in a process a rank of a native group; what each returned, or "threw: " and the message.
std::vector<std::string> fork_ddp(int ranks, const DdpBody& body, std::size_t data_bytes = 8 << 20);

/// What `body` throws, as "BadConfig: the message" for troupe's types and "other: the message" for others, or
/// "nothing thrown".
std::string thrown_by(const std::function<void()>& body);

/// Two layers, in either order, one of them perhaps left out, and a buffer.
struct PairImpl : torch::nn::Module {
  explicit PairImpl(int width = 8);
  torch::Tensor forward(torch::Tensor x);
  torch::nn::Linear first, second;
  torch::Tensor steps;
  bool swapped = false;
  bool with_second = true;
};
TORCH_MODULE(Pair);

/// A batch of 4 for Pair, another on each rank.
torch::Tensor input(int rank, int width = 8);

void forget_gradients(torch::nn::Module& net);
/// Gradients as text: equal where the bits are.
std::string gradients_text(torch::nn::Module& net);
/// Every rank came to the same gradients.
void check_alike(const std::vector<std::string>& said);

/// Identity whose backward throws.
struct Thrower : torch::autograd::Function<Thrower> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x);
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&);
};

}  // namespace troupe::train::testing
