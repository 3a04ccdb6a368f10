/// One of five training programs, for some steps, recorded so that PyTorch can train the same: the initial
/// weights, every batch as each logical rank got it, and the loss of every step. parity.py starts it.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/data/cifar10.hpp"
#include "actors/data/find_mnist.hpp"
#include "actors/data/idx_dataset.hpp"
#include "actors/data/subset.hpp"
#include "actors/data/torch.hpp"
#include "actors/data/transforms.hpp"
#include "actors/train/api/train.hpp"
#include "examples/mnist/model.hpp"
#include "scheduler/init/init.hpp"

namespace {

using troupe::data::Batch;
using troupe::data::Split;
using troupe::train::Leaf;
namespace nn = torch::nn;
namespace optim = torch::optim;

using Tensors = c10::Dict<std::string, torch::Tensor>;

/// For Python's torch.load.
void write_tensors(const std::string& path, const Tensors& tensors) {
  const std::vector<char> bytes = torch::pickle_save(tensors);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The weights as they are before the first step, and each leaf's batch.
template <class Net>
void record(const std::string& folder, Net& net, const Batch& batch, const Leaf& at) {
  if (at.step == 0 && at.rank == 0) {
    Tensors initial;
    for (const auto& item : net->named_parameters())
      initial.insert(item.key(), item.value().detach().clone());
    for (const auto& item : net->named_buffers()) initial.insert(item.key(), item.value().clone());
    write_tensors(folder + "/initial.pt", initial);
  }
  Tensors fields;
  fields.insert("input", batch.input.clone());
  fields.insert("target", batch.target.clone());
  write_tensors(folder + "/" + std::to_string(at.step) + "-" + std::to_string(at.rank) + ".pt", fields);
}

/// MNIST, SGD with momentum.
struct Mnist {
  std::string record_to, data;
  ConvNet model() const { return ConvNet(); }
  auto optimizer(ConvNet& net) const {
    return optim::SGD(net->parameters(), optim::SGDOptions(0.02).momentum(0.9));
  }
  torch::Tensor loss(ConvNet& net, const Batch& batch, Leaf& at) const {
    record(record_to, net, batch, at);
    return nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  troupe::data::Idx dataset(Split split) const {
    return {data, split, troupe::data::IdxOptions{.mean = 0.1307F, .std = 0.3081F}};
  }
};

/// Smooth, where ConvNet has kinks: on these pictures ReLU and max-pooling make one rounding error grow to
/// 1e-2 within 100 steps, between two runs of PyTorch, too.
struct SmoothNetImpl : nn::Module {
  static nn::Sequential block(int in, int out) {
    return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)), nn::BatchNorm2d(out),
                          nn::GELU(), nn::AvgPool2d(2));
  }
  nn::Sequential layer1 = register_module("layer1", block(3, 16));
  nn::Sequential layer2 = register_module("layer2", block(16, 32));
  nn::Linear fc = register_module("fc", nn::Linear(2048, 10));
  torch::Tensor forward(const torch::Tensor& images) {
    return fc->forward(layer2->forward(layer1->forward(images)).flatten(1));
  }
};
TORCH_MODULE(SmoothNet);

/// CIFAR-10 with random crops and flips, SGD with momentum and weight decay.
struct Cifar {
  std::string record_to, data;
  SmoothNet model() const { return {}; }
  auto optimizer(SmoothNet& net) const {
    return optim::SGD(net->parameters(), optim::SGDOptions(0.02).momentum(0.9).weight_decay(5e-4));
  }
  torch::Tensor loss(SmoothNet& net, const Batch& batch, Leaf& at) const {
    record(record_to, net, batch, at);
    return nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  troupe::data::Mapped dataset(Split split) const {
    using namespace troupe::data;
    const auto scale = normalize({0.4914F, 0.4822F, 0.4465F}, {0.2470F, 0.2435F, 0.2616F});
    return map(Cifar10(data, split),
               compose(random_crop(32, {.padding = 4}), random_horizontal_flip(), scale));
  }
};

struct MlpImpl : nn::Module {
  nn::Linear hidden = register_module("hidden", nn::Linear(784, 128));
  nn::Linear output = register_module("output", nn::Linear(128, 10));
  torch::Tensor forward(const torch::Tensor& images) {
    return output(torch::relu(hidden(images.flatten(1))));
  }
};
TORCH_MODULE(Mlp);

/// AdamW, whose learning rate warms up and decays step by step, with clipped gradients.
struct AdamWClipped {
  std::string record_to, data;
  Mlp model() const { return {}; }
  auto optimizer(Mlp& net) const {
    return optim::AdamW(net->parameters(), optim::AdamWOptions(3e-3).weight_decay(0.01));
  }
  auto scheduler(optim::AdamW& of) const {
    return troupe::train::every_step(troupe::train::LambdaLR(of, [](std::int64_t step) {
      return std::min(static_cast<double>(step + 1) / 20, std::pow(0.99, static_cast<double>(step)));
    }));
  }
  void apply(troupe::train::Apply& a) const {
    a.clip_grad_norm(1);
    a.step();
  }
  torch::Tensor loss(Mlp& net, const Batch& batch, Leaf& at) const {
    record(record_to, net, batch, at);
    return nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  troupe::data::Idx dataset(Split split) const {
    return {data, split, troupe::data::IdxOptions{.mean = 0.1307F, .std = 0.3081F}};
  }
};

/// Gradients accumulated over two micro-batches a rank: four logical ranks, two in PyTorch.
struct Accumulated {
  std::string record_to, data;
  Mlp model() const { return {}; }
  auto optimizer(Mlp& net) const {
    return optim::SGD(net->parameters(), optim::SGDOptions(0.05).momentum(0.9));
  }
  torch::Tensor loss(Mlp& net, const Batch& batch, Leaf& at) const {
    record(record_to, net, batch, at);
    return nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  troupe::data::Idx dataset(Split split) const {
    return {data, split, troupe::data::IdxOptions{.mean = 0.1307F, .std = 0.3081F}};
  }
};

constexpr std::int64_t kWords = 50;

struct ReaderImpl : nn::Module {
  nn::Embedding embedding = register_module("embedding", nn::Embedding(kWords, 32));
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(32, 64).batch_first(true)));
  nn::Linear output = register_module("output", nn::Linear(64, kWords));
  /// Tokens [N, T] to logits [N, T, words].
  torch::Tensor forward(const torch::Tensor& tokens) { return output(std::get<0>(lstm(embedding(tokens)))); }
};
TORCH_MODULE(Reader);

/// Sentences of 4 to 40 words, in which each word follows from the one before most of the time. -100: no
/// word.
struct Sentences {
  std::int64_t count;
  std::int64_t size() const { return count; }
  troupe::data::Sample get(std::int64_t index, troupe::data::Random&) const {
    troupe::SeededRandom random(static_cast<std::uint64_t>(index));
    std::vector<std::int64_t> words(5 + random.below(37));
    for (std::size_t i = 0; i < words.size(); ++i) {
      const bool follows = i > 0 && random.below(4) != 0;
      words[i] = follows ? (7 * words[i - 1] + 3) % kWords : static_cast<std::int64_t>(random.below(kWords));
    }
    return {{"input", torch::tensor(words)}};
  }
  troupe::data::Sample collate(std::vector<troupe::data::Sample> samples) const {
    std::vector<torch::Tensor> inputs, targets;
    for (const auto& sample : samples) {
      const torch::Tensor words = sample["input"];
      inputs.push_back(words.slice(0, 0, -1));
      targets.push_back(words.slice(0, 1));
    }
    return {{"input", nn::utils::rnn::pad_sequence(inputs, true)},
            {"target", nn::utils::rnn::pad_sequence(targets, true, -100)}};
  }
};

/// An LSTM on sentences of variable length; every word weighs the same, whatever rank it came to.
struct Words {
  std::string record_to, data;
  Reader model() const { return {}; }
  auto optimizer(Reader& net) const { return optim::Adam(net->parameters(), 3e-3); }
  torch::Tensor loss(Reader& net, const Batch& batch, Leaf& at) const {
    record(record_to, net, batch, at);
    at.weight(batch.target.ne(-100).sum().item<double>());
    return nn::functional::cross_entropy(net->forward(batch.input).flatten(0, 1), batch.target.flatten());
  }
  Sentences dataset(Split split) const { return {split == Split::kTrain ? 20'000 : 100}; }
};

struct Options {
  std::string program, folder, mnist, cifar;
  int steps = 200;
};

template <class Job>
int train(const troupe::DriverSession& session, const Options& options, const std::string& data,
          int logical_ranks) {
  std::ofstream losses(options.folder + "/losses.txt");
  losses.precision(9);
  std::optional<troupe::train::Run> run;
  int steps = 0;
  run.emplace(troupe::train::start(session, Job{options.folder, data},
                                   {.logical_ranks = logical_ranks,
                                    .micro_batch = 16,
                                    .epochs = 1,
                                    .trainers = 2,
                                    .seed = 7,
                                    .evaluate = false,
                                    .return_weights = false,
                                    .show_progress = false,
                                    .on_event = [&](const troupe::report::Event& event) {
                                      const auto* done = std::get_if<troupe::report::StepDone>(&event);
                                      if (done == nullptr || steps == options.steps) return;
                                      losses << done->loss << "\n";
                                      if (++steps == options.steps) run->stop();
                                    }}));
  run->wait();
  return steps == options.steps && losses.flush() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  CLI::App app{"One training program, recorded; see parity.py"};
  app.add_option("program", options.program)
      ->check(CLI::IsMember({"mnist", "cifar", "adamw", "accumulate", "lstm"}));
  app.add_option("folder", options.folder, "where the record goes; must exist")
      ->check(CLI::ExistingDirectory);
  app.add_option("--mnist", options.mnist, "folder of the MNIST files");
  app.add_option("--cifar", options.cifar, "folder of the CIFAR-10 files");
  app.add_option("--steps", options.steps)->check(CLI::Range(1, 300));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  auto session = troupe::init(argc, argv);  // its workers are this program without arguments
  if (options.folder.empty()) {
    std::fprintf(stderr, "bench_parity: name a program and a folder, or start parity.py\n");
    return 2;
  }
  if (options.program == "mnist") return train<Mnist>(session, options, options.mnist, 2);
  if (options.program == "cifar") return train<Cifar>(session, options, options.cifar, 2);
  if (options.program == "adamw") return train<AdamWClipped>(session, options, options.mnist, 2);
  if (options.program == "accumulate") return train<Accumulated>(session, options, options.mnist, 4);
  return train<Words>(session, options, "", 2);
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_parity: %s\n", error.what());
  return 1;
}
