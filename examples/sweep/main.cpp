// Successive halving: 16 learning rates get an epoch each, the better half goes on with twice as many, and so
// on. The best is cloned in memory, and goes on at a tenth of its rate. One trial's trainer is killed on the
// way.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <random>

#include "examples/mnist/model.hpp"
#include "troupe/train.hpp"

using namespace troupe;

struct Digits {
  double lr = 0.01;

  ConvNet model() const { return ConvNet(); }
  auto optimizer(ConvNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor loss(ConvNet& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = 500, .mean = 0.145F, .std = 0.251F});
  }
};

struct Trial {
  int number = 0;
  Digits job;
  std::optional<train::Run> run{};
  std::vector<double> accuracies{};
};

int faults = 0;

train::TrainOptions options_for(const Trial& trial, int epochs) {
  train::TrainOptions options{
      .micro_batch = 25, .epochs = epochs, .seed = 7, .trainer_cpus = 1, .show_progress = false};
  options.on_event = [](const report::Event& event) {
    faults += std::holds_alternative<report::Fault>(event) ? 1 : 0;
  };
  if (trial.number == 3) options.chaos = {{train::ChaosStep::What::kKillTrainer, 10, 0}};
  return options;
}

/// Brings each trial to so many epochs and holds it there, as many at a time as the cluster has CPUs for.
void bring_to(int epochs, const DriverSession& session, const std::vector<Trial*>& trials) {
  double cpus = 0;
  for (const auto& node : session.nodes()) cpus += static_cast<double>(node.cpu_e4) / 1e4;
  std::deque<Trial*> waiting(trials.begin(), trials.end());
  std::vector<train::Run*> under_way;
  while (!waiting.empty() || !under_way.empty()) {
    for (; !waiting.empty() && under_way.size() < std::max(1.0, cpus); waiting.pop_front()) {
      Trial& next = *waiting.front();
      if (next.run) {
        next.run->resume(options_for(next, epochs));
      } else {
        next.run = train::start(session, next.job, options_for(next, epochs));
      }
      under_way.push_back(&*next.run);
    }
    train::Run& over = train::wait_any(under_way);
    std::erase(under_way, &over);
    for (Trial* trial : trials) {
      if (&*trial->run == &over) trial->accuracies.push_back(over.pause_at_end().metrics.at("test/accuracy"));
    }
  }
}

int main(int argc, char** argv) try {
  auto session = init(argc, argv);
  std::mt19937_64 random(7);
  std::vector<Trial> trials(argc > 1 ? std::stoul(argv[1]) : 16);
  for (std::size_t i = 0; i < trials.size(); ++i) {
    trials[i].number = static_cast<int>(i);
    trials[i].job.lr = std::pow(10.0, -4.0 + 4.0 * static_cast<double>(random() % 1000) / 1000);
  }
  std::vector<Trial*> left;
  for (Trial& trial : trials) left.push_back(&trial);
  int epochs = 1;
  for (;; epochs *= 2) {
    bring_to(epochs, session, left);
    std::stable_sort(left.begin(), left.end(),
                     [](Trial* a, Trial* b) { return a->accuracies.back() > b->accuracies.back(); });
    if (left.size() == 1) break;
    for (std::size_t i = left.size() / 2; i < left.size(); ++i) left[i]->run.reset();
    left.resize(left.size() / 2);
  }

  const Trial& best = *left.front();
  Trial finer{static_cast<int>(trials.size()), {best.job.lr / 10}};
  finer.run = best.run->clone(finer.job, options_for(finer, epochs + 2));
  finer.accuracies.push_back(finer.run->pause_at_end().metrics.at("test/accuracy"));
  trials.push_back(std::move(finer));
  std::printf("trial  learning rate  test accuracy after 1, 2, 4... epochs\n");
  for (const Trial& trial : trials) {
    std::printf("%5d  %13.5f ", trial.number, trial.job.lr);
    for (const double accuracy : trial.accuracies) std::printf(" %6.2f %%", 100 * accuracy);
    std::printf("%s\n", &trial == &trials.back() ? "  (the best one's clone, 2 epochs later)" : "");
  }
  std::printf("%d fault survived\n", faults);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "sweep: %s\n", error.what());
  return 1;
}
