/// The job of a trial: a ConvNet on 500 rendered digits.
#pragma once

#include "examples/mnist/model.hpp"
#include "troupe/train.hpp"

struct Digits {
  double lr = 0.01;

  ConvNet model() const { return ConvNet(); }
  auto optimizer(ConvNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  troupe::data::Digits dataset(troupe::data::Split split) const {
    return troupe::data::Digits(split, {.size = 500, .mean = 0.145F, .std = 0.251F});
  }
};
