// Decisions of the schedulers: recorded runs decided again (--replay FILE), and how many ASHA makes a second.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "actors/tune/scheduler.hpp"
#include "bench/tune/replay.hpp"
#include "runtime/core/clock.hpp"

namespace {

using namespace troupe;

constexpr double kGoal = 100'000;

/// Decisions a second over whole trials: added, chosen, reported at every epoch, completed.
double asha_decisions_per_second(int trials) {
  tune::Asha options{.max_t = 81, .grace_period = 1, .reduction_factor = 3};
  const auto scheduler = tune::make_scheduler(options, {.mode = tune::Mode::kMax, .seed = 7});
  SeededRandom random(7);
  std::int64_t decisions = 0;
  const MonotonicClock clock;
  const Instant begin = clock.now();
  for (int trial = 0; trial < trials; ++trial) {
    scheduler->step(tune::Added{trial});
    scheduler->step(tune::Choose{});
    const double level = random.uniform();
    for (int t = 1; t <= 81; ++t) {
      const double metric = level + random.uniform() / 10;
      ++decisions;
      if (scheduler->step(tune::Reported{trial, double(t), metric}).action != tune::Action::kStop) continue;
      scheduler->step(tune::Completed{trial, double(t), metric, true});
      break;
    }
  }
  return static_cast<double>(decisions) / to_seconds(clock.now() - begin);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Measures a sweep's decisions, or decides a recorded run of a tuner again.");
  std::string trace;
  std::string json;
  int trials = 100'000;
  app.add_option(
      "--replay", trace,
      "A recorded run: decide it again, end with 1 where a decision differs, 77 without such a scheduler");
  app.add_option("--trials", trials, "How many trials ASHA decides on");
  app.add_option("--json", json, "Write the figures here, too");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!trace.empty()) {
    std::ifstream file(trace);
    if (!file) throw std::runtime_error("cannot read " + trace);
    return static_cast<int>(tune::replay(file, std::cout));
  }
  const double rate = asha_decisions_per_second(trials);
  std::printf("%-22s %14s %14s\n%-22s %12.0f/s %12.0f/s\n", "", "measured", "goal", "ASHA decisions", rate,
              kGoal);
  if (!json.empty()) {
    std::ofstream(json) << nlohmann::json{{"bench", "tune"},     {"case", "ASHA decisions"},
                                          {"ours", rate},        {"peer", kGoal},
                                          {"peer_name", "goal"}, {"ratio", rate / kGoal},
                                          {"unit", "1/s"}}
                               .dump()
                        << "\n";
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_tune: %s\n", error.what());
  return 2;
}
