// A job whose trainers share more than gradients: BatchNorm over all logical ranks with an optimizer whose
// state is sharded over them; then, with plain BatchNorm, sharded gradients and parameters. The data are a
// dataset of LibTorch's. With and without shards the bits are the same.
#include <cmath>
#include <iostream>
#include <string>
#include <troupe/sync_batch_norm.hpp>
#include <troupe/train.hpp>
#include <utility>
#include <vector>

/// std::optional<std::size_t> in LibTorch 2.x, c10's in 1.13.
using Size = decltype(std::declval<const torch::data::datasets::MNIST&>().size());

/// Points of two spirals, and which one each is on.
struct Spirals : torch::data::datasets::Dataset<Spirals> {
  explicit Spirals(std::size_t points) : count(points) {}
  torch::data::Example<> get(std::size_t index) override {
    const double turn = 6.0 * static_cast<double>(index) / static_cast<double>(count);
    const double side = index % 2 == 0 ? 1 : -1;
    return {torch::tensor({side * turn * std::cos(turn), side * turn * std::sin(turn)}, torch::kFloat) / 10,
            torch::tensor(static_cast<std::int64_t>(index % 2))};
  }
  Size size() const override { return count; }
  std::size_t count;
};

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return output(torch::tanh(second_norm(second(torch::tanh(first_norm(first(x)))))));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 64));
  torch::nn::BatchNorm1d first_norm = register_module("first_norm", torch::nn::BatchNorm1d(64));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(64, 64));
  torch::nn::BatchNorm1d second_norm = register_module("second_norm", torch::nn::BatchNorm1d(64));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(64, 2));
};
TORCH_MODULE(Net);

struct TwoSpirals {
  double lr = 0.01;
  bool sync = true;

  Net model() const { return sync ? troupe::train::convert_sync_batchnorm(Net()) : Net(); }
  auto optimizer(Net& net) const {
    return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(lr));
  }
  torch::Tensor criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  auto dataset(troupe::data::Split split) const {
    return troupe::data::from_torch(Spirals(split == troupe::data::Split::kTrain ? 800 : 200));
  }
};

int main(int argc, char** argv) try {
  using troupe::train::Shard;
  TwoSpirals job;
  troupe::configure(argc, argv, {{job, {{&TwoSpirals::lr, "Learning rate"}}}},
                    "Trains on two spirals, whole and sharded, and compares the bits");
  auto session = troupe::init(argc, argv);
  bool same = true;
  for (const bool sync : {true, false}) {
    std::vector<std::string> hashes;
    job.sync = sync;
    for (const Shard shard : sync ? std::vector{Shard::kNothing, Shard::kOptimizer}
                                  : std::vector{Shard::kNothing, Shard::kGradients, Shard::kParameters}) {
      const auto result = troupe::train::run(session, job,
                                             {.logical_ranks = 4,
                                              .micro_batch = 10,
                                              .epochs = 5,
                                              .trainers = 2,
                                              .seed = 7,
                                              .shard = shard,
                                              .shard_min_num_params = 1000});
      hashes.push_back(result.state_hash);
    }
    for (const std::string& hash : hashes) same = same && hash == hashes.front();
  }
  std::cout << (same ? "the same bits, whole and sharded\n" : "the bits differ\n");
  return same ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "sharded: " << error.what() << "\n";
  return 1;
}
