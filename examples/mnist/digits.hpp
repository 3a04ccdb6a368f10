/// The user's part of a training job: model, optimizer, loss and data. Everything else is troupe's.
#pragma once

#include <memory>
#include <string>
#include <troupe/train.hpp>

#include "model.hpp"

/// A plain struct: its fields travel to every trainer and loader.
struct Digits {
  std::string folder;  ///< of the MNIST files; empty: rendered digits
  double lr = 0.02;
  std::int64_t samples = 0;  ///< train on the first so many; 0: on all

  ConvNet model() const { return ConvNet(); }

  auto optimizer(ConvNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }

  torch::Tensor criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }

  std::shared_ptr<troupe::data::Dataset> dataset(troupe::data::Split split) const {
    using namespace troupe::data;
    std::shared_ptr<Dataset> whole;
    if (folder.empty()) {
      whole = std::make_shared<troupe::data::Digits>(split, DigitsOptions{.mean = 0.145F, .std = 0.251F});
    } else {
      whole = std::make_shared<Idx>(folder, split, IdxOptions{.mean = 0.1307F, .std = 0.3081F});
    }
    return samples > 0 && split == Split::kTrain ? share(first_samples(whole, samples)) : whole;
  }
};
