// kill -9 of one of two trainers, to the commit of a step on the survivor, less one undisturbed step at the
// new size. The job is the MNIST example's on rendered digits; each kill is a fault of the job's own, at a
// step of its own.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "actors/train/train.hpp"
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

}  // namespace

int main(int argc, char** argv) try {
  int kills = 20;
  int apart = 60;
  std::string json;
  CLI::App app(
      "Measures recovery: kill -9 of one of two trainers to the survivor's next commit, less one step.");
  app.add_option("--kills", kills, "Kills; the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--apart", apart, "Steps between kills, so that the replacement has joined")
      ->capture_default_str()
      ->check(CLI::Range(10, 10'000));
  app.add_option("--json", json, "Write the result to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  auto session = init(argc, argv);
  train::TrainOptions options{
      .logical_ranks = 2, .micro_batch = 25, .trainers = 2, .loaders = 1, .seed = 7, .evaluate = false};
  for (int i = 1; i <= kills; ++i) {
    options.chaos.push_back(
        {train::ChaosStep::What::kKillTrainer, static_cast<std::int64_t>(i) * apart, i % 2});
  }
  const std::int64_t steps = (kills + 1) * apart;
  options.epochs = static_cast<int>(steps / 1200 + 1);
  std::vector<double> recovered, detected, left;
  std::vector<double> alone;  // steps between a kill and the replacement's joining
  const MonotonicClock clock;
  Instant last{};
  int alone_for = 0;
  options.show_progress = false;
  train::Run run = train::start(session, Digits{}, options);
  while (!run.is_over()) {
    const auto event = run.next_event(std::chrono::seconds(1));
    if (!event) continue;
    if (const auto* fault = std::get_if<report::Fault>(&*event); fault != nullptr && fault->detected_ms) {
      recovered.push_back(*fault->resumed_ms);
      detected.push_back(*fault->detected_ms);
      left.push_back(*fault->left_ms);
      alone_for = 0;
      std::printf("kill %2zu: detected after %.1f ms, left after %.1f ms, committed after %.1f ms\n",
                  recovered.size(), detected.back(), left.back(), recovered.back());
      if (static_cast<int>(recovered.size()) == kills) run.stop();
    } else if (const auto* step = std::get_if<report::StepDone>(&*event)) {
      const Instant now = clock.now();
      if (step->trainers_alive == 1 && ++alone_for > 2) alone.push_back(to_millis(now - last));
      last = now;
    }
  }
  run.wait();
  if (recovered.empty()) throw std::runtime_error("no trainer was killed");
  const double step_ms = alone.empty() ? 0 : median(alone);
  const double ours = median(recovered) - step_ms;
  std::printf(
      "median of %zu: %.1f ms (%.1f ms less one step of %.1f ms); detected after %.2f ms, left after %.2f "
      "ms\n",
      recovered.size(), ours, median(recovered), step_ms, median(detected), median(left));
  std::printf("quoted: torchft 0.2 tuned %.0f ms, torchrun 2.13 %.0f ms\n", kTorchftMs, kTorchrunMs);
  if (!json.empty()) {
    std::ofstream out(json);
    if (!out) throw IoError(io_error("cannot write " + json, errno, "name a file in a folder that is there"));
    for (const auto& [name, peer] : {std::pair{"torchft 0.2 tuned (quoted)", kTorchftMs},
                                     std::pair{"torchrun 2.13 (quoted)", kTorchrunMs}}) {
      out << nlohmann::json{{"bench", "recovery"}, {"case", "shrink 2 to 1"}, {"ours", ours}, {"peer", peer},
                            {"peer_name", name},   {"ratio", peer / ours},    {"unit", "ms"}}
                 .dump()
          << "\n";
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_recovery: %s\n", error.what());
  return 1;
}
