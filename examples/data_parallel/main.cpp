// A ConvNet trained in one process over the GPUs that there are, or over replicas on the CPU, as with
// PyTorch's DataParallel: no launcher, no ranks. Saves its weights and loads them into a bare model.
#include <cstdio>
#include <sstream>
#include <string>
#include <troupe/data_parallel.hpp>

using namespace troupe;

struct Digits {
  torch::Tensor images;  ///< [N, 1, 28, 28]
  torch::Tensor labels;  ///< [N]
};

/// Images that no file is needed for: a wave a class, with noise of its own.
Digits digits(std::uint64_t seed, std::int64_t count) {
  auto generator = at::detail::createCPUGenerator(seed);
  const torch::Tensor labels = torch::arange(count) % 10;
  const torch::Tensor at = torch::arange(28, torch::kFloat32);
  const torch::Tensor angle = labels.to(torch::kFloat32).view({-1, 1, 1}) * 0.6;
  const torch::Tensor waves =
      torch::sin(0.5 * (torch::cos(angle) * at.view({1, 28, 1}) + torch::sin(angle) * at.view({1, 1, 28})));
  return {(waves + torch::randn({count, 28, 28}, generator)).unsqueeze(1), labels};
}

/// Everything is made in reset(), which a clone for another device calls.
struct ConvNetImpl : torch::nn::Cloneable<ConvNetImpl> {
  ConvNetImpl() { reset(); }
  void reset() override {
    layer1 = register_module("layer1", block(1, 16));
    layer2 = register_module("layer2", block(16, 32));
    fc = register_module("fc", torch::nn::Linear(7 * 7 * 32, 10));
  }

  /// [N, 1, 28, 28] to logits [N, 10].
  torch::Tensor forward(const torch::Tensor& images) {
    return fc->forward(layer2->forward(layer1->forward(images)).flatten(1));
  }

  static torch::nn::Sequential block(int in, int out) {
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 5).padding(2)),
                                 torch::nn::BatchNorm2d(out), torch::nn::ReLU(), torch::nn::MaxPool2d(2));
  }

  torch::nn::Sequential layer1{nullptr}, layer2{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ConvNet);

void run(const train::DataParallelOptions& options) {
  torch::set_num_threads(1);  // a thread a replica
  train::keep_freed_memory();
  torch::manual_seed(7);
  const auto devices = train::devices_of(options, train::cuda_devices());
  ConvNet net;
  net->to(devices.front());
  train::DataParallel dp(net, options);
  torch::optim::SGD optimizer(dp.parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));

  const Digits train = digits(1, 2050);  // the last batch has 50, and does not divide by 4
  const Digits test = digits(2, 500);
  const std::int64_t count = train.labels.size(0);
  const auto accuracy = [&](auto& model) {
    const torch::NoGradGuard no_grad;
    return model->forward(test.images.to(devices.front())).argmax(1).cpu().eq(test.labels).sum();
  };

  for (int epoch = 0; epoch < 2; ++epoch) {
    dp.train();
    double loss_sum = 0;
    for (const torch::Tensor& part : torch::randperm(count).split(100)) {
      const torch::Tensor output = dp->forward(train.images.index_select(0, part));
      const torch::Tensor target = train.labels.index_select(0, part).to(output.device());
      const torch::Tensor loss = torch::nn::functional::cross_entropy(output, target);
      optimizer.zero_grad();
      loss.backward();  // gradients of all devices are summed into net's
      optimizer.step();
      loss_sum += loss.item<double>() * static_cast<double>(part.size(0));
    }
    dp.eval();
    std::printf("epoch %d  loss %.4f  accuracy %.2f %%\n", epoch + 1, loss_sum / static_cast<double>(count),
                100.0 * accuracy(dp).item<double>() / static_cast<double>(test.labels.size(0)));
  }

  std::stringstream file;
  torch::save(dp, file);  // the names of net
  ConvNet bare;
  torch::load(bare, file);
  bare->to(devices.front());
  bare->eval();
  std::printf("the same from a bare model: %s\n", accuracy(bare).equal(accuracy(dp)) ? "yes" : "no");
}

int main(int argc, char** argv) {
  train::DataParallelOptions options;  // all GPUs
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--replicas") options.replicas = std::atoi(argv[i + 1]);
    if (flag != "--devices") continue;
    std::istringstream ids(argv[i + 1]);
    for (std::string id; std::getline(ids, id, ',');) options.device_ids.push_back(std::atoi(id.c_str()));
  }
  if (argc % 2 == 0) {
    std::fputs("usage: data_parallel [--devices 2,3 | --replicas 2]\n", stderr);
    return 2;
  }
  try {
    run(options);
    return 0;
  } catch (const c10::Error& error) {  // what() is followed by a stack of LibTorch's
    std::fprintf(stderr, "data_parallel: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "data_parallel: %s\n", error.what());
    return 1;
  }
}
