/// A ConvNet on CIFAR-10, and how it is trained: with random crops and flips, which the loaders make.
#pragma once

#include <string>
#include <troupe/train.hpp>

struct NetImpl : torch::nn::Module {
  static torch::nn::Sequential block(int in, int out) {
    return torch::nn::Sequential(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)),
        torch::nn::BatchNorm2d(out), torch::nn::ReLU(), torch::nn::MaxPool2d(2));
  }
  /// [N, 3, 32, 32] to logits [N, 10].
  torch::Tensor forward(const torch::Tensor& images) {
    return output(third->forward(second->forward(first->forward(images))).flatten(1));
  }
  torch::nn::Sequential first = register_module("first", block(3, 32));
  torch::nn::Sequential second = register_module("second", block(32, 64));
  torch::nn::Sequential third = register_module("third", block(64, 128));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(128 * 4 * 4, 10));
};
TORCH_MODULE(Net);

struct Pictures {
  std::string folder;
  double lr = 0.005;

  Net model() const { return Net(); }
  auto optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(),
                             torch::optim::SGDOptions(lr).momentum(0.9).weight_decay(5e-4));
  }
  torch::Tensor criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  // 100 steps up to `lr`, then half a cosine down to the run's last step.
  auto scheduler(torch::optim::SGD& optimizer) const {
    return troupe::train::cosine(optimizer, {.warmup_steps = 100});
  }
  troupe::train::Ema ema() const { return {.decay = 0.99}; }  // evaluations use the average
  torch::Tensor evaluate(Net& net, const troupe::data::Batch& batch, troupe::train::Leaf& at) const {
    const auto output = net->forward(batch.input);
    at.count("accuracy", output.argmax(1).eq(batch.target).sum(), static_cast<double>(batch.size()));
    troupe::train::count_top_k(at, output, batch.target, 3);
    troupe::train::count_confusion(at, output, batch.target, 10);
    return criterion(output, batch);
  }
  static constexpr bool kHasValidation = true;  // a tenth of the training set is held back
  troupe::data::Mapped dataset(troupe::data::Split split) const {
    using namespace troupe::data;
    const auto scale = normalize({0.4914F, 0.4822F, 0.4465F}, {0.2470F, 0.2435F, 0.2616F});
    const auto augment = compose(random_crop(32, {.padding = 4}), random_horizontal_flip(), scale);
    if (split == Split::kTest) return map(Cifar10(folder, split), scale);
    const auto parts = random_split(Cifar10(folder, Split::kTrain), {0.9, 0.1}, /*seed=*/1);
    return split == Split::kTrain ? map(parts[0], augment) : map(parts[1], scale);
  }
};
