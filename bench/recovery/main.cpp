// kill -9 of one of two trainers, to the commit of a step on the survivor, less one undisturbed step at the
// new size, and how long a step takes in which the replacement joins; with a small state, and with a large
// one. The job is the MNIST example's on rendered digits; each kill is a fault of the job's own, at a step of
// its own.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "actors/train/api/train.hpp"
#include "examples/mnist/digits.hpp"

namespace {

using namespace troupe;

/// torchft 0.2 tuned (heartbeat 300 ms) and torchrun 2.13, on a 2-core Xeon virtual machine.
constexpr double kTorchftMs = 320;
constexpr double kTorchrunMs = 2300;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The same step with a state of a given size: what a recovery pays for the size alone.
struct LargeDigits {
  Digits digits;
  std::int64_t mib = 0;
  ConvNet model() const { return digits.model(); }
  auto optimizer(ConvNet& net) const { return digits.optimizer(net); }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return digits.criterion(output, batch);
  }
  std::shared_ptr<data::Dataset> dataset(data::Split split) const { return digits.dataset(split); }
  void state(train::StateRegistry& state, ConvNet&, torch::optim::SGD&) const {
    state.add("table", torch::ones({mib, 1 << 18}));
  }
};

struct Measured {
  std::vector<double> recovered, detected, left;
  std::vector<double> widened;  ///< from the last step of one trainer to the first of both
  double step_ms = 0;           ///< with one trainer

  double recovery_ms() const { return median(recovered) - step_ms; }
};

train::TrainOptions options_for(int trainers, std::int64_t steps) {
  constexpr std::int64_t kStepsPerEpoch = 1200;
  return {.logical_ranks = 2,
          .micro_batch = 25,
          .epochs = static_cast<int>(steps / kStepsPerEpoch + 1),
          .trainers = trainers,
          .loaders = 1,
          .seed = 7,
          .evaluate = false,
          .show_progress = false};
}

/// Median time of a step with one trainer.
template <class Job>
double measure_step(const DriverSession& session, const Job& job) {
  constexpr int kSteps = 100;
  auto options = options_for(1, kSteps);
  std::vector<double> steps;
  const MonotonicClock clock;
  Instant last{};
  train::Run run = train::start(session, job, options);
  while (!run.is_over()) {
    const auto event = run.next_event(std::chrono::seconds(1));
    if (!event || !std::holds_alternative<report::StepDone>(*event)) continue;
    const Instant now = clock.now();
    if (last != Instant{}) steps.push_back(to_millis(now - last));
    last = now;
    if (steps.size() == kSteps) run.stop();
  }
  run.wait();
  return median(steps);
}

/// Kills one of two trainers `kills` times, `apart` steps from each other.
template <class Job>
Measured measure(const DriverSession& session, const Job& job, int kills, int apart) {
  auto options = options_for(2, static_cast<std::int64_t>(kills + 1) * apart);
  for (int i = 1; i <= kills; ++i) {
    options.chaos.push_back(
        {train::ChaosStep::What::kKillTrainer, static_cast<std::int64_t>(i) * apart, i % 2});
  }
  Measured measured;
  const MonotonicClock clock;
  Instant before{}, last{};
  bool joined = false;
  train::Run run = train::start(session, job, options);
  while (!run.is_over()) {
    const auto event = run.next_event(std::chrono::seconds(1));
    if (event && std::holds_alternative<report::StepDone>(*event)) {
      const Instant now = clock.now();
      if (std::exchange(joined, false))
        measured.widened.push_back(to_millis(std::max(now - last, last - before)));
      before = std::exchange(last, now);
    } else if (event && std::holds_alternative<report::Resized>(*event)) {
      joined = !measured.recovered.empty();  // the step before it, or the next one, waited for the state
    }
    const auto* fault = event ? std::get_if<report::Fault>(&*event) : nullptr;
    if (fault == nullptr || !fault->detected_ms) continue;
    measured.recovered.push_back(*fault->resumed_ms);
    measured.detected.push_back(*fault->detected_ms);
    measured.left.push_back(*fault->left_ms);
    std::printf("kill %2zu: detected after %.1f ms, left after %.1f ms, committed after %.1f ms\n",
                measured.recovered.size(), *fault->detected_ms, *fault->left_ms, *fault->resumed_ms);
    std::fflush(stdout);
    if (static_cast<int>(measured.recovered.size()) == kills) run.stop();
  }
  run.wait();
  if (measured.recovered.empty()) throw std::runtime_error("no trainer was killed");
  measured.step_ms = measure_step(session, job);
  return measured;
}

void print(const char* what, const Measured& m) {
  std::printf(
      "%s, median of %zu: %.1f ms (%.1f ms less one step of %.1f ms); detected after %.2f ms, left after "
      "%.2f ms\n",
      what, m.recovered.size(), m.recovery_ms(), median(m.recovered), m.step_ms, median(m.detected),
      median(m.left));
  if (!m.widened.empty())
    std::printf("  its replacement joins: %.1f ms from step to step, median of %zu\n", median(m.widened),
                m.widened.size());
}

}  // namespace

int main(int argc, char** argv) try {
  int kills = 20;
  int apart = 150;
  int large_kills = 5;
  std::int64_t state_mib = 1024;
  std::string json;
  CLI::App app(
      "Measures recovery: kill -9 of one of two trainers to the survivor's next commit, less one step.");
  app.add_option("--kills", kills, "Kills; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  app.add_option("--apart", apart, "Steps between kills, so that the replacement has joined")
      ->capture_default_str()
      ->check(CLI::Range(10, 10'000));
  app.add_option("--large-kills", large_kills, "Kills with a large state; 0: not measured")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  app.add_option("--state-mib", state_mib, "Size of the large state")
      ->capture_default_str()
      ->check(CLI::Range(1, 65'536));
  app.add_option("--json", json, "Write the result to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  auto session = init(argc, argv);
  const Measured small = kills > 0 ? measure(session, Digits{}, kills, apart) : Measured{};
  if (kills > 0) print("small model", small);
  const Measured large =
      large_kills > 0 ? measure(session, LargeDigits{{}, state_mib}, large_kills, apart) : Measured{};
  if (large_kills > 0) print(("a state of " + std::to_string(state_mib) + " MiB").c_str(), large);
  std::printf("quoted: torchft 0.2 tuned %.0f ms, torchrun 2.13 %.0f ms\n", kTorchftMs, kTorchrunMs);
  if (!json.empty()) {
    std::ofstream out(json);
    if (!out) throw IoError(io_error("cannot write " + json, errno, "name a file in a folder that is there"));
    const auto row = [&](const char* what, double ours, const char* peer_name, double peer) {
      out << nlohmann::json{{"bench", "recovery"},    {"case", what},         {"ours", ours}, {"peer", peer},
                            {"peer_name", peer_name}, {"ratio", peer / ours}, {"unit", "ms"}}
                 .dump()
          << "\n";
    };
    for (const auto& [name, peer] : {std::pair{"torchft 0.2 tuned (quoted)", kTorchftMs},
                                     std::pair{"torchrun 2.13 (quoted)", kTorchrunMs}}) {
      if (kills > 0) row("shrink 2 to 1", small.recovery_ms(), name, peer);
    }
    for (const auto& [what, m] :
         {std::pair{"grow 1 to 2", &small}, std::pair{"grow 1 to 2, the large state", &large}}) {
      if (!m->widened.empty()) row(what, median(m->widened), "a step", m->step_ms);
    }
    if (kills > 0 && large_kills > 0)
      row(("shrink 2 to 1, a state of " + std::to_string(state_mib) + " MiB").c_str(), large.recovery_ms(),
          "the small model", small.recovery_ms());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_recovery: %s\n", error.what());
  return 1;
}
