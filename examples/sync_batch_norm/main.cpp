// BatchNorm over all ranks: a net that is trained by several ranks on a batch each, beside the same net in
// one process with plain BatchNorm on these batches, one behind the other.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <troupe/ddp.hpp>
#include <troupe/sync_batch_norm.hpp>
#include <vector>

using namespace troupe;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& images) {
    return fc(torch::tanh(norm(conv(images))).mean({2, 3}));
  }
  torch::nn::Conv2d conv =
      register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(8));
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(8, 2));
};
TORCH_MODULE(Net);

Net same_net() {
  torch::manual_seed(7);
  return Net();
}

/// Stripes that lie or stand, and noise: 4 images a rank, and which kind each is.
std::pair<torch::Tensor, torch::Tensor> batch_of(int step, int rank) {
  torch::manual_seed(1000 * static_cast<std::uint64_t>(step) + static_cast<std::uint64_t>(rank));
  const torch::Tensor kinds = torch::randint(2, {4}, torch::kLong);
  const torch::Tensor lying = torch::arange(8).remainder(2).to(torch::kFloat).view({1, 1, 8, 1});
  const torch::Tensor stands = kinds.to(torch::kFloat).view({4, 1, 1, 1});
  const torch::Tensor stripes = lying * (1 - stands) + lying.transpose(2, 3) * stands;
  return {stripes + torch::randn({4, 1, 8, 8}) / 2, kinds};
}

int main() try {
  torch::set_num_threads(1);
  auto group = collectives::init_process_group("native", "env://");
  Net net = train::convert_sync_batchnorm(same_net(), group);
  train::DistributedDataParallel ddp(net, group);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  Net alone = same_net();
  torch::optim::SGD its(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  double furthest = 0;
  for (int step = 0; step < 100; ++step) {
    std::vector<torch::Tensor> images, kinds;
    for (int rank = 0; rank < group->size(); ++rank) {
      const auto [x, y] = batch_of(step, rank);
      images.push_back(x);
      kinds.push_back(y);
    }
    const auto mine = static_cast<std::size_t>(group->rank());
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(ddp->forward(images[mine]), kinds[mine]);
    loss.backward();
    optimizer.step();
    its.zero_grad();
    const torch::Tensor whole =
        torch::nn::functional::cross_entropy(alone->forward(torch::cat(images)), torch::cat(kinds));
    whole.backward();
    its.step();

    std::vector<double> mean{loss.item<double>()};
    group->all_reduce(mean, collectives::ReduceOp::kAvg)->wait();
    furthest = std::max(furthest, std::abs(mean[0] - whole.item<double>()));
    if (group->rank() == 0 && (step + 1) % 50 == 0)
      std::printf("step %d  loss %.4f  alone %.4f\n", step + 1, mean[0], whole.item<double>());
  }
  if (furthest >= 1e-5) throw std::runtime_error("a loss differs by " + std::to_string(furthest));
  if (group->rank() == 0) std::puts("the same losses, to 1e-5");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "sync_batch_norm: %s\n", error.what());
  return 1;
}
