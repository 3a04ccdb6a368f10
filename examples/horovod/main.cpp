// Horovod's example, in C++: a net of one's own and a loop of one's own, and an optimizer that reduces
// gradients over the ranks before it steps.
#include <cstdio>
#include <string>
#include <troupe/distributed_optimizer.hpp>

#include "batches.hpp"

using namespace troupe;

void run(const train::DistributedOptimizerOptions& options, int steps) {
  torch::set_num_threads(1);
  auto group = collectives::init_process_group("native");  // hvd.init(): env://
  torch::manual_seed(group->rank());
  torch::nn::Sequential net(torch::nn::Linear(32, 128), torch::nn::ReLU(), torch::nn::Linear(128, 4));
  // Twice the samples a step, twice the rate; Adasum finds the rate by itself.
  const double scale = options.op == train::GradientOp::kAverage ? group->size() : 1;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.02 * scale).momentum(0.9));

  train::broadcast_parameters(*net, *group);
  train::broadcast_optimizer_state(sgd, *group);
  train::DistributedOptimizer optimizer(sgd, net->named_parameters(), group, options);

  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    for (int pass = 0; pass < options.backward_passes_per_step; ++pass) {
      const auto [x, y] = batch_of(step * options.backward_passes_per_step + pass, group->rank());
      loss = torch::nn::functional::cross_entropy(net->forward(x), y) / options.backward_passes_per_step;
      loss.backward();  // buckets of gradients are reduced meanwhile
    }
    optimizer.synchronize();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 10.0);
    optimizer.step();  // what synchronize() has reduced
    if ((step + 1) % 100 != 0) continue;
    std::vector<float> mean{loss.item<float>() * static_cast<float>(options.backward_passes_per_step)};
    group->all_reduce(mean, collectives::ReduceOp::kAvg)->wait();  // hvd.allreduce(loss)
    if (group->rank() == 0) std::printf("step %d  loss %.4f\n", step + 1, static_cast<double>(mean[0]));
  }
}

int main(int argc, char** argv) {
  train::DistributedOptimizerOptions options;
  int steps = 300;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--fp16") {
      options.compression = train::Compression::kFp16;
    } else if (flag == "--adasum") {
      options.op = train::GradientOp::kAdasum;
    } else if (flag == "--passes" && !value.empty()) {
      options.backward_passes_per_step = std::atoi(argv[++i]);
    } else if (flag == "--steps" && !value.empty()) {
      steps = std::atoi(argv[++i]);
    } else {
      std::fputs("usage: horovod [--fp16] [--adasum] [--passes 1] [--steps 300], once a rank (README.md)\n",
                 stderr);
      return 2;
    }
  }
  try {
    run(options, steps);
    return 0;
  } catch (const c10::Error& error) {  // what() is followed by a stack of LibTorch's
    std::fprintf(stderr, "horovod: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "horovod: %s\n", error.what());
    return 1;
  }
}
