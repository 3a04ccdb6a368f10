// Trains MNIST's or CIFAR-10's ConvNet of the examples, by troupe or by a loop of plain LibTorch, on the CPU
// or on a GPU: gpu_training mnist|cifar10 [--plain] [--gpus SHARE] ... Prints how fast it was, for
// compare.py:
//   samples_per_s 12345.6              from a tenth of the steps to the last
//   measured from 1700000000.1 to 1700000009.2   in seconds of Unix time
//   loss 0.1234                        of the last step
//   parameters sha256 01ab...          by troupe alone
// Exits with 77 where the files of CIFAR-10 are not there. (MNIST's digits are rendered then.)
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <variant>

#include "actors/data/find_mnist.hpp"
#include "actors/data/torch.hpp"
#include "actors/train/engine/numerics.hpp"
#include "examples/cifar10/pictures.hpp"
#include "examples/mnist/digits.hpp"

namespace {

namespace data = troupe::data;
namespace train = troupe::train;
using Clock = std::chrono::system_clock;

struct Options {
  std::string net = "mnist";
  std::string folder;
  bool plain = false;
  double gpus = 0;
  int trainers = 1;
  int logical_ranks = 4;
  std::int64_t batch = 25;
  int epochs = 1;
  std::int64_t samples = 0;
  std::int64_t kill_at = 0;
};

double seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

/// Of steps that are done, how fast: the first tenth warms up, and does not count.
class Speed {
 public:
  Speed(std::int64_t steps, std::int64_t samples) : warm_up_(steps / 10), samples_(samples) {}

  void step(double loss) {
    loss_ = loss;
    last_ = Clock::now();
    if (++done_ == warm_up_) first_ = last_;
  }
  void print() const {
    if (!first_ || done_ <= warm_up_) throw std::runtime_error("too few steps to measure: give more epochs");
    const double from = seconds(*first_), to = seconds(last_);
    std::printf("samples_per_s %.1f\nmeasured from %.3f to %.3f\nloss %.6f\n",
                static_cast<double>((done_ - warm_up_) * samples_) / (to - from), from, to, loss_);
  }

 private:
  const std::int64_t warm_up_;
  const std::int64_t samples_;  ///< a step
  std::int64_t done_ = 0;
  double loss_ = 0;
  std::optional<Clock::time_point> first_;
  Clock::time_point last_;
};

/// All samples as one batch, read once.
data::Batch read_all(const data::Dataset& dataset) {
  std::vector<torch::Tensor> inputs, targets;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    data::Random random({7, 0}, i);
    const data::Sample sample = dataset.get(i, random);
    inputs.push_back(data::TensorTraits<at::Tensor>::to(sample["input"]));
    targets.push_back(data::TensorTraits<at::Tensor>::to(sample["target"]));
  }
  return {torch::stack(inputs), torch::stack(targets)};
}

/// What somebody writes without troupe: one process, gradients of the leaves of a step added up by autograd.
template <class Job>
void train_plainly(const Job& job, const Options& o, const data::Dataset& dataset) {
  const torch::Device device = train::computing_device(o.gpus > 0);
  train::set_up_numerics(1, device);  // as a trainer
  const data::Batch all = read_all(dataset);
  torch::manual_seed(7);
  auto net = job.model();
  net->to(device);
  auto optimizer = job.optimizer(net);
  const std::int64_t a_step = o.logical_ranks * o.batch, steps = all.size() / a_step;
  Speed speed(o.epochs * steps, a_step);
  for (int epoch = 0; epoch < o.epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(all.size());
    for (std::int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      torch::Tensor sum = torch::zeros({}, device);
      for (int leaf = 0; leaf < o.logical_ranks; ++leaf) {
        const torch::Tensor chosen = order.narrow(0, step * a_step + leaf * o.batch, o.batch);
        const data::Batch batch{all.input.index_select(0, chosen).to(device),
                                all.target.index_select(0, chosen).to(device)};
        const torch::Tensor loss = job.criterion(net->forward(batch.input), batch) / o.logical_ranks;
        loss.backward();
        sum += loss.detach();
      }
      optimizer.step();
      speed.step(sum.item<double>());
    }
  }
  speed.print();
}

template <class Job>
int train_by_troupe(troupe::DriverSession& session, const Job& job, const Options& o, std::int64_t size) {
  std::vector<train::ChaosStep> chaos;
  if (o.kill_at > 0) chaos.push_back({train::ChaosStep::What::kKillTrainer, o.kill_at});
  const std::int64_t a_step = o.logical_ranks * o.batch;
  Speed speed(o.epochs * (size / a_step), a_step);
  bool killed = false;
  const auto result = train::run(session, job,
                                 {.logical_ranks = o.logical_ranks,
                                  .micro_batch = o.batch,
                                  .epochs = o.epochs,
                                  .trainers = o.trainers,
                                  .seed = 7,
                                  .evaluate = false,
                                  .trainer_gpus = o.gpus,
                                  .chaos = chaos,
                                  .on_event = [&](const troupe::report::Event& event) {
                                    if (const auto* done = std::get_if<troupe::report::StepDone>(&event))
                                      speed.step(done->loss);
                                    killed = killed || std::holds_alternative<troupe::report::Fault>(event);
                                  }});
  if (o.kill_at > 0 && !killed) throw std::runtime_error("no trainer died: --kill-at is after the last step");
  speed.print();
  return result.exit_code();
}

template <class Job>
int train_net(troupe::DriverSession& session, const Job& job, const Options& o) {
  const auto dataset = data::share(job.dataset(data::Split::kTrain));
  if (!o.plain) return train_by_troupe(session, job, o, dataset->size());
  train_plainly(job, o, *dataset);
  return 0;
}

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app("Trains a net of the examples, and prints how fast.");
  app.add_option("net", o.net, "mnist or cifar10")->check(CLI::IsMember({"mnist", "cifar10"}));
  app.add_option("--data", o.folder,
                 "Folder with the files [default: searched; MNIST: else rendered digits]");
  app.add_flag("--plain", o.plain, "By a loop of plain LibTorch in this process");
  app.add_option("--gpus", o.gpus, "That each trainer holds: 0 (the CPU), 1, or a part of one")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--trainers", o.trainers, "Processes that compute")->capture_default_str();
  app.add_option("--logical-ranks", o.logical_ranks, "Leaves a step")->capture_default_str();
  app.add_option("--batch", o.batch, "Samples a leaf")->capture_default_str();
  app.add_option("--epochs", o.epochs, "Passes over the data")->capture_default_str();
  app.add_option("--samples", o.samples, "MNIST: train on the first so many; 0: on all")
      ->capture_default_str();
  app.add_option("--kill-at", o.kill_at, "Kill a trainer when so many steps are committed; 0: none");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options o = parse(argc, argv);
  auto session = troupe::init(argc, argv);
  const auto search = data::default_mnist_search(o.folder);
  const auto found = o.net == "mnist" ? data::find_mnist(search) : data::find_cifar10(search);
  const std::string folder = found.folder.empty() ? "" : std::filesystem::absolute(found.folder).string();
  if (o.net == "mnist") return train_net(session, Digits{.folder = folder, .samples = o.samples}, o);
  if (folder.empty()) {
    std::printf("skipped: %s\n", found.reason.c_str());
    return 77;
  }
  return train_net(session, Pictures{folder}, o);
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_training: %s\n", error.what());
  return 1;
}
