// A training job: a struct of yours, and one call. examples/mnist is the same with a command line.
#include <iostream>
#include <troupe/train.hpp>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(28 * 28, 128));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(128, 10));
  torch::Tensor forward(torch::Tensor x) { return output(torch::relu(hidden(x.flatten(1)))); }
};
TORCH_MODULE(Net);

struct Digits {
  std::string folder;
  double lr = 0.02;

  Net model() const { return Net(); }
  auto optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  troupe::data::Idx dataset(troupe::data::Split split) const {
    return troupe::data::Idx(folder, split, {.mean = 0.1307F, .std = 0.3081F});
  }
};

int main(int argc, char** argv) {
  auto session = troupe::init(argc, argv);
  auto result =
      troupe::train::run(session, Digits{"mnist"},
                         {.logical_ranks = 4, .micro_batch = 25, .epochs = 3, .trainers = 2, .seed = 7});
  std::cout << result.state_hash << "\n";
}
