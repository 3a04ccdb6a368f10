// A training job: a struct of yours, and one call. examples/mnist is the same with a command line.
#include <iostream>
#include <troupe/train.hpp>

namespace nn = torch::nn;

struct Digits {
  double lr = 0.02;
  auto model() const {
    return nn::Sequential(nn::Flatten(), nn::Linear(28 * 28, 128), nn::ReLU(), nn::Linear(128, 10));
  }
  auto optimizer(nn::Sequential& net) const { return torch::optim::SGD(net->parameters(), lr); }
  auto criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return nn::functional::cross_entropy(output, batch.target);
  }
  // Drawn as with a pen; Idx("mnist", split) reads MNIST's files.
  auto dataset(troupe::data::Split split) const { return troupe::data::Digits(split); }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  auto result = troupe::train::run(session, Digits{},
                                   {.logical_ranks = 4, .micro_batch = 25, .epochs = 3, .trainers = 2});
  result.save("digits.safetensors");
  std::cout << result.state_hash << "\n";
}
