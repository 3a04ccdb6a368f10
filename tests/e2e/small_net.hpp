/// A net for rendered digits with BatchNorm and dropout, so that what a trainer does too often, or not at
/// all, changes its bits; a run of it takes seconds.
#pragma once

#include <torch/torch.h>

namespace troupe::e2e {

struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(std::int64_t classes = 10) : out(24, classes) {
    register_module("hidden", hidden);
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(dropout(torch::relu(norm(hidden(x.flatten(1))))));
  }
  torch::nn::Linear hidden{28 * 28, 24};
  torch::nn::BatchNorm1d norm{24};
  torch::nn::Dropout dropout{0.2};
  torch::nn::Linear out;
};
TORCH_MODULE(SmallNet);

}  // namespace troupe::e2e
