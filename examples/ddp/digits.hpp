/// Digits for an example that runs anywhere: MNIST's files where a folder is named, otherwise patterns by a
/// formula.
#pragma once

#include <string>
#include <troupe/ddp.hpp>

struct Digits : torch::data::datasets::Dataset<Digits> {
  torch::Tensor images;  ///< [N, 1, 28, 28]
  torch::Tensor labels;  ///< [N]

  torch::data::Example<> get(std::size_t index) override {
    const auto at = static_cast<std::int64_t>(index);
    return {images[at], labels[at]};
  }
  // An optional of LibTorch's, which is another in 1.13 than in 2.x.
  troupe::train::DistributedSampler::OptionalSize size() const override {
    return static_cast<std::size_t>(labels.size(0));
  }
};

/// `folder` has train-images-idx3-ubyte and the like; empty: `count` images that no file is needed for.
inline Digits digits(const std::string& folder, bool train, std::int64_t count) {
  Digits made;
  if (!folder.empty()) {
    using torch::data::datasets::MNIST;
    const MNIST mnist(folder, train ? MNIST::Mode::kTrain : MNIST::Mode::kTest);
    made.images = (mnist.images() - 0.1307) / 0.3081;
    made.labels = mnist.targets();
    return made;
  }
  // A wave a class, with noise of its own; a test set of other images.
  auto generator = at::detail::createCPUGenerator(train ? 1 : 2);
  made.labels = torch::arange(count) % 10;
  const torch::Tensor at = torch::arange(28, torch::kFloat32);
  const torch::Tensor angle = made.labels.to(torch::kFloat32).view({-1, 1, 1}) * 0.6;
  const torch::Tensor waves =
      torch::sin(0.5 * (torch::cos(angle) * at.view({1, 28, 1}) + torch::sin(angle) * at.view({1, 1, 28})));
  made.images = (waves + torch::randn({count, 28, 28}, generator)).unsqueeze(1);
  return made;
}
