#include "bench/tune/asha_trials.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "actors/data/idx_dataset.hpp"
#include "actors/data/subset.hpp"
#include "actors/tune/tune.hpp"
#include "bench/tune/temp_folder.hpp"
#include "examples/mnist/model.hpp"

namespace troupe::bench {
namespace {

Instant now() {
  return MonotonicClock().now();
}

struct Mnist {
  std::string folder;
  std::int64_t samples = 0;
  std::int64_t evaluated = 0;
  double lr = 0.01;
  double momentum = 0.9;

  ConvNet model() const { return ConvNet(); }
  auto optimizer(ConvNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(momentum));
  }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  auto data_fields() const { return std::tie(folder, samples, evaluated); }
  data::Subset dataset(data::Split split) const {
    return data::first_samples(data::Idx(folder, split, {.mean = 0.1307F, .std = 0.3081F}),
                               split == data::Split::kTrain ? samples : evaluated);
  }
};

/// When a trial trained: from before its first step until its epoch was evaluated. The first step after a
/// wait has taken what a step of its epoch takes.
class Busy {
 public:
  void take(const report::Event& event) {
    if (std::holds_alternative<report::StepDone>(event)) steps_.push_back(now());
    if (!std::holds_alternative<report::EpochDone>(event) || steps_.size() < 3) return;
    std::vector<Duration> each;
    for (std::size_t i = 1; i < steps_.size(); ++i) each.push_back(steps_[i] - steps_[i - 1]);
    std::nth_element(each.begin(), each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2), each.end());
    epochs_.push_back({steps_.front() - each[each.size() / 2], now()});
    steps_.clear();
  }
  struct Epoch {
    Instant begin;
    Instant end;
  };
  const std::vector<Epoch>& epochs() const { return epochs_; }

 private:
  std::vector<Instant> steps_;
  std::vector<Epoch> epochs_;
};

}  // namespace

AshaFigures asha_trials(const DriverSession& session, const AshaTrials& of, const std::string& folder,
                        const std::string& json) {
  const TempFolder results;
  std::map<int, Busy> trials;
  tune::SweepOptions<Mnist> options{
      .space = {{&Mnist::lr, tune::log_uniform(1e-4, 1)}, {&Mnist::momentum, tune::uniform(0, 0.95)}},
      .trials = of.trials,
      .metric = "test/accuracy",
      .scheduler = tune::Asha{.max_t = double(of.epochs), .reduction_factor = 3},
      .train = {.micro_batch = of.batch, .epochs = of.epochs, .seed = 7, .return_weights = false},
      .adjust =
          [&](const tune::Trial& trial, train::TrainOptions& train) {
            train.on_event = [&busy = trials[trial.number]](const report::Event& event) { busy.take(event); };
          },
      .seed = 7,
      .max_concurrent = 2,
      .name = "asha",
      .folder = results.path(),
      .show_progress = false};
  const Instant begin = now();
  const auto best = tune::run(session, Mnist{folder, of.samples, of.evaluated}, options);
  AshaFigures figures{.seconds = to_seconds(now() - begin), .best = best.metric};

  Instant first = now();
  std::vector<Instant> ends;
  for (const auto& [number, busy] : trials) {
    for (const auto& epoch : busy.epochs()) {
      figures.training_s += to_seconds(epoch.end - epoch.begin);
      first = std::min(first, epoch.begin);
    }
    if (!busy.epochs().empty()) ends.push_back(busy.epochs().back().end);
    figures.epochs += static_cast<std::int64_t>(busy.epochs().size());
  }
  // When the last trial begins no other waits: what its neighbour's place is without since then is not idle.
  std::sort(ends.begin(), ends.end());
  const Instant last = ends.back();
  const Instant before = ends.size() > 1 ? ends[ends.size() - 2] : last;
  figures.idle_s = to_seconds(last - first) + to_seconds(before - first) - figures.training_s;

  nlohmann::json peer{{"configs", nlohmann::json::array()},
                      {"samples", of.samples},
                      {"evaluated", of.evaluated},
                      {"epochs", of.epochs},
                      {"batch", of.batch}};
  for (const tune::Trial& trial : best.trials)
    peer["configs"].push_back({{"lr", tune::number_of(*trial.config.find("lr"))},
                               {"momentum", tune::number_of(*trial.config.find("momentum"))}});
  std::ofstream(json) << peer.dump();
  return figures;
}

}  // namespace troupe::bench
