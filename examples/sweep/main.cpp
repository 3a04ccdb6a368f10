// Successive halving: 16 learning rates get an epoch each, the better half goes on with twice as many, and so
// on. The best is cloned in memory, and goes on at a tenth of its rate. Trial 3's trainer is killed on the
// way.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <random>
#include <stdexcept>

#include "examples/sweep/digits.hpp"

using namespace troupe;

int faults = 0;

struct Trial {
  int number = 0;
  Digits job;
  std::optional<train::Run> run{};
  std::vector<double> accuracies{};

  train::TrainOptions options(int epochs) const {
    train::TrainOptions options{
        .micro_batch = 25, .epochs = epochs, .seed = 7, .trainer_cpus = 1, .show_progress = false};
    options.on_event = [](const report::Event& event) {
      faults += std::holds_alternative<report::Fault>(event);
    };
    if (number == 3) options.chaos = {{train::ChaosStep::What::kKillTrainer, 10, 0}};
    return options;
  }
  void start(const DriverSession& session, int epochs) {
    if (run) return run->resume(options(epochs));
    run = train::start(session, job, options(epochs));
  }
  void hold() {
    const auto snapshot = run->pause_at_end();
    if (run->signal() != 0) throw std::runtime_error("interrupted");
    accuracies.push_back(snapshot.metrics.at("test/accuracy"));
  }
};

/// Brings each trial to so many epochs and holds it there, as many at a time as the node has CPUs for.
void bring_to(int epochs, const DriverSession& session, const std::vector<Trial*>& trials) {
  const auto at_a_time =
      static_cast<std::size_t>(std::max<std::int64_t>(1, session.nodes()[0].cpu_e4 / 10'000));
  std::deque<Trial*> waiting(trials.begin(), trials.end());
  std::vector<train::Run*> under_way;
  while (!waiting.empty() || !under_way.empty()) {
    for (; !waiting.empty() && under_way.size() < at_a_time; waiting.pop_front()) {
      waiting.front()->start(session, epochs);
      under_way.push_back(&*waiting.front()->run);
    }
    const train::Run* over = &train::wait_any(under_way);
    std::erase(under_way, over);
    (*std::find_if(trials.begin(), trials.end(), [&](Trial* trial) { return &*trial->run == over; }))->hold();
  }
}

int main(int argc, char** argv) try {
  if (argc > 1 && std::string(argv[1]) == "--help") return std::puts("usage: sweep [TRIALS]") < 0 ? 1 : 0;
  auto session = init(argc, argv);
  std::mt19937_64 random(7);
  std::vector<Trial> trials(argc > 1 ? std::stoul(argv[1]) : 16);
  std::vector<Trial*> left;
  for (Trial& trial : trials) {
    trial.number = static_cast<int>(left.size());
    trial.job.lr = std::pow(10.0, -4.0 + 4.0 * static_cast<double>(random() % 1000) / 1000);
    left.push_back(&trial);
  }
  int epochs = 1;
  for (bring_to(epochs, session, left); left.size() > 1; bring_to(epochs *= 2, session, left)) {
    std::stable_sort(left.begin(), left.end(),
                     [](Trial* a, Trial* b) { return a->accuracies.back() > b->accuracies.back(); });
    for (std::size_t i = left.size() / 2; i < left.size(); ++i) left[i]->run.reset();
    left.resize(left.size() / 2);
  }
  Trial& best = *left.front();
  Trial finer{static_cast<int>(trials.size()), {best.job.lr / 10}};
  finer.run = best.run->clone(finer.job, finer.options(epochs + 2));
  finer.hold();
  trials.push_back(std::move(finer));  // the best one's clone, 2 epochs later
  std::printf("trial  learning rate  test accuracy after 1, 2, 4... epochs\n");
  for (const Trial& trial : trials) {
    std::printf("%5d  %13.5f ", trial.number, trial.job.lr);
    for (const double accuracy : trial.accuracies) std::printf(" %6.2f %%", 100 * accuracy);
    std::printf("\n");
  }
  std::printf("%d fault survived\n", faults);
} catch (const std::exception& error) {
  std::fprintf(stderr, "sweep: %s\n", error.what());
  return 1;
}
