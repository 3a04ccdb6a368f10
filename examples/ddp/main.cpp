// A ConvNet trained by hand on several ranks, as with PyTorch's DistributedDataParallel: no cluster, no
// actors.
#include <cstdio>
#include <string>
#include <troupe/ddp.hpp>

#include "digits.hpp"

using namespace troupe;

struct ConvNetImpl : torch::nn::Module {
  /// [N, 1, 28, 28] to logits [N, 10].
  torch::Tensor forward(const torch::Tensor& images) {
    return fc->forward(layer2->forward(layer1->forward(images)).flatten(1));
  }

  static torch::nn::Sequential block(int in, int out) {
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 5).padding(2)),
                                 torch::nn::BatchNorm2d(out), torch::nn::ReLU(), torch::nn::MaxPool2d(2));
  }

  torch::nn::Sequential layer1 = register_module("layer1", block(1, 16));
  torch::nn::Sequential layer2 = register_module("layer2", block(16, 32));
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(7 * 7 * 32, 10));
};
TORCH_MODULE(ConvNet);

/// Right answers and samples of all ranks together: every sample is counted once, on one of them.
std::vector<std::int64_t> evaluate(ConvNet& net, const Digits& test, collectives::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  const torch::Device device = train::device_of(group);
  net->eval();
  std::vector<std::int64_t> counts{0, 0};
  const auto mine = torch::arange(group.rank(), test.labels.size(0), group.size());
  for (const torch::Tensor& part : mine.split(500)) {
    const torch::Tensor said = net->forward(test.images.index_select(0, part).to(device)).argmax(1);
    counts[0] += said.cpu().eq(test.labels.index_select(0, part)).sum().item<std::int64_t>();
    counts[1] += part.size(0);
  }
  net->train();
  group.host_group().all_reduce(counts)->wait();
  return counts;
}

void run(const std::string& backend, const std::string& url, const std::string& folder, int epochs) {
  torch::set_num_threads(1);
  train::keep_freed_memory();
  auto group = collectives::init_process_group(backend, url);
  const torch::Device device = train::device_of(*group);  // with "nccl" this rank's GPU

  auto data = digits(folder, true, 4000).map(torch::data::transforms::Stack<>());
  train::DistributedSampler sampler(data.size().value(), *group);
  auto loader = torch::data::make_data_loader(data, sampler, 100);

  torch::manual_seed(7);
  ConvNet net;
  net->to(device);
  train::DistributedDataParallel ddp(net, group);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));

  for (int epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);
    torch::Tensor loss;
    for (auto& batch : *loader) {
      const torch::Tensor input = batch.data.to(device), target = batch.target.to(device);
      optimizer.zero_grad();
      loss = torch::nn::functional::cross_entropy(ddp->forward(input), target);
      loss.backward();  // gradients are averaged over the ranks when it returns
      optimizer.step();
    }
    const auto counts = evaluate(net, digits(folder, false, 1000), *group);
    if (group->rank() == 0) {
      std::printf("epoch %d  loss %.4f  accuracy %.2f %%\n", epoch + 1, loss.item<double>(),
                  100.0 * static_cast<double>(counts[0]) / static_cast<double>(counts[1]));
    }
  }
}

int main(int argc, char** argv) {
  std::string backend = "native";
  std::string url = "env://";
  std::string folder;
  int epochs = 2;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--backend") backend = argv[i + 1];
    if (flag == "--url") url = argv[i + 1];
    if (flag == "--data") folder = argv[i + 1];
    if (flag == "--epochs") epochs = std::atoi(argv[i + 1]);
  }
  if (argc % 2 == 0) {
    std::fputs("usage: ddp [--url env://] [--data MNIST_FOLDER] [--epochs 2], once a rank (README.md)\n",
               stderr);
    return 2;
  }
  try {
    collectives::use_gloo();
    collectives::use_mpi();
    run(backend, url, folder, epochs);
    return 0;
  } catch (const c10::Error& error) {  // what() is followed by a stack of LibTorch's
    std::fprintf(stderr, "ddp: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddp: %s\n", error.what());
    return 1;
  }
}
