// Trains a ConvNet on CIFAR-10 with random crops and flips, which the loaders make.
#include <cstdio>
#include <filesystem>
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
  troupe::data::Mapped dataset(troupe::data::Split split) const {
    using namespace troupe::data;
    const auto scale = normalize({0.4914F, 0.4822F, 0.4465F}, {0.2470F, 0.2435F, 0.2616F});
    const auto augment = compose(random_crop(32, {.padding = 4}), random_horizontal_flip(), scale);
    return map(Cifar10(folder, split), split == Split::kTrain ? augment : scale);
  }
};

int main(int argc, char** argv) try {
  if (argc > 1 && std::string(argv[1]) == "--help")
    return std::puts("usage: cifar10 [FOLDER of the CIFAR-10 files]") < 0 ? 1 : 0;
  auto session = troupe::init(argc, argv);
  const auto found = troupe::data::find_cifar10(troupe::data::default_mnist_search(argc > 1 ? argv[1] : ""));
  if (found.folder.empty()) throw std::runtime_error(found.reason + ": name its folder");
  const auto result =
      troupe::train::run(session, Pictures{found.folder},
                         {.logical_ranks = 2, .micro_batch = 50, .epochs = 3, .trainers = 2, .seed = 7});
  return result.exit_code();
} catch (const std::exception& error) {
  std::fprintf(stderr, "cifar10: %s\n", error.what());
  return 1;
}
