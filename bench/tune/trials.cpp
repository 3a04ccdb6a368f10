#include "bench/tune/trials.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "actors/data/digits.hpp"
#include "actors/train/api/train.hpp"
#include "actors/tune/states.hpp"
#include "bench/tune/temp_folder.hpp"

namespace troupe::bench {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

/// Two layers of 2048 x 2048: with Adam's two averages 101 MB.
struct Large {
  double lr = 1e-3;
  std::int64_t samples = 80;

  torch::nn::Sequential model() const {
    using namespace torch::nn;
    return Sequential(Flatten(), Linear(28 * 28, 64), ReLU(), Linear(64, 2048), ReLU(), Linear(2048, 2048),
                      ReLU(), Linear(2048, 2048), ReLU(), Linear(2048, 10));
  }
  auto optimizer(torch::nn::Sequential& net) const {
    return torch::optim::Adam(net->parameters(), torch::optim::AdamOptions(lr));
  }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  auto data_fields() const { return std::tie(samples); }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? samples : 10});
  }
};

/// A net of MNIST's.
struct Small {
  double lr = 1e-3;
  std::int64_t samples = 80;

  torch::nn::Sequential model() const {
    using namespace torch::nn;
    return Sequential(Flatten(), Linear(28 * 28, 64), ReLU(), Linear(64, 10));
  }
  auto optimizer(torch::nn::Sequential& net) const {
    return torch::optim::Adam(net->parameters(), torch::optim::AdamOptions(lr));
  }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  auto data_fields() const { return std::tie(samples); }
  data::Digits dataset(data::Split split) const { return Large().dataset(split); }
};

train::TrainOptions options() {
  return {.micro_batch = 10,
          .epochs = 1000,
          .seed = 7,
          .evaluate = false,
          .hold = true,
          .return_weights = false,
          .show_progress = false,
          .handle_signals = false};
}

/// Its events until it holds after an epoch: when each step was committed.
std::vector<Instant> run_epoch(train::Run& run) {
  std::vector<Instant> steps;
  for (;;) {
    const auto event = run.next_event(std::chrono::seconds(60));
    if (!event) throw std::runtime_error("a trial came no further");
    if (std::holds_alternative<report::StepDone>(*event)) steps.push_back(MonotonicClock().now());
    if (std::holds_alternative<report::EpochDone>(*event)) return steps;
  }
}

/// From `from` to the first step, less a later one.
double start_of(const std::vector<Instant>& steps, Instant from) {
  std::vector<double> later;
  for (std::size_t i = 3; i < steps.size(); ++i) later.push_back(to_millis(steps[i] - steps[i - 1]));
  return to_millis(steps.at(0) - from) - median(later);
}

}  // namespace

double trial_start_ms(const DriverSession& session, int times) {
  std::vector<double> starts;
  train::Workers workers;
  for (int i = 0; i <= times; ++i) {
    const Instant begin = MonotonicClock().now();
    auto run = train::start_in(workers, session, Small{.lr = 1e-3 / (i + 1)}, options(), nullptr);
    const double start = start_of(run_epoch(run), begin);
    if (i > 0) starts.push_back(start);  // the first one's are cold
    workers = run.release();
  }
  train::start_in(workers, session, Small(), options(), nullptr);  // which ends them
  return median(starts);
}

double clone_ms(const DriverSession& session, int times) {
  const TempFolder folder;
  tune::SavedStates states(folder.path());
  auto donor = train::start_in({}, session, Large(), options(), nullptr);
  auto trial = train::start_in({}, session, Large(), options(), nullptr);
  run_epoch(donor);
  run_epoch(trial);
  std::vector<double> clones;
  for (int i = 1; i <= times; ++i) {
    states.add(i, donor.share()).value();
    const auto state = states.find(i).value();
    const Instant begin = MonotonicClock().now();
    const train::Workers workers = trial.release();
    trial = train::start_in(workers, session, Large{.lr = 1e-3 / i}, options(), &state);
    clones.push_back(start_of(run_epoch(trial), begin));
  }
  return median(clones);
}

}  // namespace troupe::bench
