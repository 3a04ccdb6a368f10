// Trains a ConvNet on digits for an epoch, or takes the weights of a file, and answers HTTP with it until
// Ctrl-C. More epochs are trained while it serves; after each, the new weights answer. With --save it writes
// the weights of its epochs to a file instead.
#include <cstdio>
#include <optional>
#include <string>
#include <troupe/serve.hpp>

using namespace troupe;

torch::nn::Sequential conv_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 16, 5).padding(2)), BatchNorm2d(16), ReLU(), MaxPool2d(2),   //
                    Conv2d(Conv2dOptions(16, 32, 5).padding(2)), BatchNorm2d(32), ReLU(), MaxPool2d(2),  //
                    Flatten(), Linear(7 * 7 * 32, 10));
}

/// What is trained and served: a net, and rendered digits.
struct Digits {
  double lr = 0.02;

  torch::nn::Sequential model() const { return conv_net(); }
  auto optimizer(torch::nn::Sequential& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = 10'000, .mean = 0.145F, .std = 0.251F});
  }
};

struct Flags {
  int port = 8000;
  serve::Replicas replicas{1, 4};
  std::string weights = serve::configured_weights("digits");  // of troupe serve run
  int epochs = 1;
  std::string save;
};

int main(int argc, char** argv) try {
  Flags flags;
  Digits job;
  configure(argc, argv,
            {{flags,
              {{&Flags::port, "Where it listens; 0: any free port"},
               {&Flags::replicas, "Processes that compute: the least and the most of them"},
               {&Flags::weights, "A safetensors file, or a checkpoint's manifest; default: trains an epoch"},
               {&Flags::epochs, "Trains so many: those after the first while it serves"},
               {&Flags::save, "Trains them all, writes the weights to this file, and serves nothing"}}},
             job},
            "Serves a digit classifier on http://127.0.0.1:PORT/v1/digits");
  auto session = init(argc, argv);
  train::TrainOptions training{.micro_batch = 25, .seed = 7, .title = "ConvNet, one epoch"};
  if (!flags.save.empty()) {
    training.epochs = flags.epochs;
    const auto result = train::run(session, job, training);
    if (result.exit_code() == 0) result.save(flags.save);
    return result.exit_code();
  }
  std::optional<train::Run> run;
  std::optional<serve::Weights> weights;
  if (!flags.weights.empty()) {
    weights = flags.weights;
  } else {
    run = train::start(session, job, training);
    weights = run->pause_at_end();
    if (const int signal = run->signal()) return 128 + signal;
  }

  auto served =
      serve::run(session, "digits", job, *weights, {.replicas = flags.replicas, .port = flags.port});
  std::printf("%s\n", served.url().c_str());
  for (const int pid : served.pids()) std::printf("replica: pid %d\n", pid);
  std::fflush(stdout);
  for (int epoch = 2; run && epoch <= flags.epochs; ++epoch) {
    training.epochs = epoch;
    run->resume(training);
    const auto snapshot = run->pause_at_end();
    if (run->signal() != 0) break;
    try {
      const auto version = served.update(snapshot);
      std::printf("weights %d answer\n", static_cast<int>(version));
      std::fflush(stdout);
    } catch (const Error& error) {  // those from before go on
      std::fprintf(stderr, "serve: %s\n", error.what());
    }
  }
  served.wait();
  std::printf("every accepted request was answered\n");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "serve: %s\n", error.what());
  return 1;
}
