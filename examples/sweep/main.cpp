// A sweep over a ConvNet's learning rate and momentum on rendered digits: no data folder, no second program.
#include <CLI/CLI.hpp>
#include <iostream>
#include <troupe/tune.hpp>

namespace tune = troupe::tune;
namespace train = troupe::train;

torch::nn::Sequential conv_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 16, 5).padding(2)), BatchNorm2d(16), ReLU(), MaxPool2d(2),   //
                    Conv2d(Conv2dOptions(16, 32, 5).padding(2)), BatchNorm2d(32), ReLU(), MaxPool2d(2),  //
                    Flatten(), Linear(7 * 7 * 32, 10));
}

struct Digits {
  double lr = 0.01;
  double momentum = 0.9;

  static constexpr bool kHasValidation = true;
  torch::nn::Sequential model() const { return conv_net(); }
  auto optimizer(torch::nn::Sequential& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(momentum));
  }
  torch::Tensor criterion(const torch::Tensor& output, const troupe::data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  troupe::data::Digits dataset(troupe::data::Split split) const {
    return troupe::data::Digits(split, {.size = 500, .mean = 0.145F, .std = 0.251F});
  }
};

int main(int argc, char** argv) try {
  auto session = troupe::init(argc, argv);
  int epochs = 4;
  bool chaos = false;
  std::string scheduler = "asha";
  tune::SweepOptions<Digits> sweep{
      .space = {{&Digits::lr, tune::log_uniform(1e-4, 1)}, {&Digits::momentum, tune::uniform(0, 0.95)}},
      .trials = 16,
      .metric = "validation/accuracy",
      .train = {.micro_batch = 25, .seed = 7, .trainer_cpus = 1}};
  CLI::App app("A hyperparameter sweep on rendered digits");
  app.add_option("--trials", sweep.trials, "configs to try")->capture_default_str();
  app.add_option("--epochs", epochs, "of a trial, at most")->capture_default_str();
  app.add_option("--scheduler", scheduler)
      ->check(CLI::IsMember({"fifo", "asha", "hyperband", "median", "pbt"}))
      ->capture_default_str();
  app.add_option("--seed", sweep.seed, "of the configs")->capture_default_str();
  app.add_option("--name", sweep.name, "of the sweep: its records are in results/NAME");
  app.add_flag("--resume", sweep.resume, "go on with the sweep of that name");
  app.add_option("--json", sweep.report_json, "a file for a line of JSON a report");
  app.add_option("--tensorboard", sweep.train.tensorboard_folder, "a folder for TensorBoard");
  app.add_flag("--chaos", chaos, "kill the trainer of trial 3 at step 10");
  std::string address;
  app.add_option("--address", address, "HOST:PORT of a running cluster");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const double most = epochs;
  sweep.train.epochs = epochs;
  if (scheduler == "asha") sweep.scheduler = tune::Asha{.max_t = most, .reduction_factor = 2};
  if (scheduler == "hyperband") sweep.scheduler = tune::HyperBand{.max_t = most, .reduction_factor = 2};
  if (scheduler == "median") sweep.scheduler = tune::MedianStopping{.grace_period = 1};
  if (scheduler == "pbt") sweep.scheduler = tune::Pbt{.perturbation_interval = 1};
  sweep.adjust = [chaos](const tune::Trial& trial, train::TrainOptions& options) {
    if (chaos && trial.number == 3) options.chaos = {{train::ChaosStep::What::kKillTrainer, 10, 0}};
  };
  return tune::run(session, Digits{}, sweep).exit_code();
} catch (const std::exception& error) {
  std::cerr << "sweep: " << error.what() << "\n";
  return 1;
}
