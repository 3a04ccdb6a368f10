// Decisions of the schedulers: recorded runs decided again (--replay FILE), and how many ASHA makes a second;
// how many results a second a sweep's file takes; what a trial's start and a clone cost; and trials of ASHA
// on MNIST (--asha).
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "actors/data/find_mnist.hpp"
#include "actors/tune/records.hpp"
#include "actors/tune/scheduler.hpp"
#include "actors/tune/sweep_machine.hpp"
#include "bench/tune/asha_trials.hpp"
#include "bench/tune/replay.hpp"
#include "bench/tune/temp_folder.hpp"
#include "bench/tune/trials.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/escape.hpp"

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

/// Reports of a trial a second, decided on and in the sweep's file when the next begins: each survives a kill
/// -9 of the program, and the machine once the file is synced, which it is when so much time has gone by.
double records_per_second(int reports, Duration sync_every) {
  const bench::TempFolder folder;
  auto file = tune::RecordFile::create(folder.path(), {{"space", "lr log_uniform(0.0001, 0.1)"}}).value();
  tune::SweepMachine machine({.epochs = reports + 1, .metric = "test/accuracy"},
                             tune::make_scheduler(tune::Fifo{}, {.mode = tune::Mode::kMax, .seed = 7}),
                             tune::make_search(tune::RandomSearch{}, {}, tune::Mode::kMax, 7),
                             [](tune::Search&) {
                               tune::Config config;
                               config.set("lr", 0.01);
                               return config;
                             });
  machine.start();
  const MonotonicClock clock;
  const Instant begin = clock.now();
  Instant synced = begin;
  for (int epoch = 1; epoch <= reports; ++epoch) {
    const tune::SweepEvent event = tune::TrialReported{0, epoch, {{"test/accuracy", 0.5 + 1e-5 * epoch}}};
    const tune::Trial before = machine.trials().front();
    for (const std::string& line : tune::record_lines(event, before, machine.step(event)))
      file.append(tune::with_times(line, 1, 2)).value();
    if (clock.now() - synced < sync_every) continue;
    file.sync().value();
    synced = clock.now();
  }
  file.sync().value();
  return reports / to_seconds(clock.now() - begin);
}

/// What a Python program prints, as its last line.
std::string output_of(const std::string& command, const std::string& todo) {
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string last;
  char line[4096];
  while (pipe != nullptr && std::fgets(line, sizeof line, pipe) != nullptr) last = line;
  if (pipe == nullptr || ::pclose(pipe) != 0 || last.empty())
    throw std::runtime_error("'" + command + "' failed (" + todo + ")");
  return last;
}

/// The same of Optuna with SQLite, by bench/tune/optuna_peer.py of that Python.
double optuna_per_second(const std::string& python, int reports) {
  const std::string command =
      shell_word(python) + " " TROUPE_SOURCE_DIR "/bench/tune/optuna_peer.py " + std::to_string(reports);
  return std::stod(output_of(command, "pip install optuna"));
}

/// Trials of ASHA, and the same trials in Ray Tune, if a Python is named.
int asha(const DriverSession& session, const bench::AshaTrials& of, const std::string& folder,
         const std::string& ray, std::ofstream& out) {
  const bench::TempFolder peers;
  const std::string name = peers.path() + "/trials.json";
  const auto ours = bench::asha_trials(session, of, folder, name);
  const double idle = 100 * ours.idle_s / ours.training_s;
  std::printf("%d trials of ASHA: %.1f s, %lld epochs, best %.4f; training %.1f s, idle %.2f %% of it\n",
              of.trials, ours.seconds, static_cast<long long>(ours.epochs), ours.best, ours.training_s, idle);
  std::fflush(stdout);  // the peer takes longer
  nlohmann::json line{{"bench", "tune"}, {"case", "ASHA on MNIST"}, {"ours", ours.seconds},
                      {"unit", "s"},     {"epochs", ours.epochs},   {"idle_percent", idle}};
  if (!ray.empty()) {
    const std::string command = "env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY " +
                                shell_word(ray) + " " TROUPE_SOURCE_DIR "/bench/tune/ray_asha.py " +
                                shell_word(folder) + " " + shell_word(name) + " 2>/dev/null";
    const auto peer = nlohmann::json::parse(output_of(command, "pip install 'ray[tune]' torch"));
    const double seconds = peer["seconds"];
    std::printf("Ray Tune, torch %s: %.1f s, %d epochs, best %.4f; ratio %.2f, an epoch %.2f\n",
                peer["torch"].get<std::string>().c_str(), seconds, peer["epochs"].get<int>(),
                peer["best"].get<double>(), seconds / ours.seconds,
                seconds / peer["epochs"].get<double>() / (ours.seconds / static_cast<double>(ours.epochs)));
    line.update({{"peer", seconds},
                 {"peer_name", "Ray Tune"},
                 {"ratio", seconds / ours.seconds},
                 {"peer_epochs", peer["epochs"]},
                 {"peer_torch", peer["torch"]}});
  }
  out << line.dump() << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Measures a sweep's decisions, or decides a recorded run of a tuner again.");
  std::string trace;
  std::string json;
  std::string optuna;
  int trials = 100'000;
  app.add_option(
      "--replay", trace,
      "A recorded run: decide it again, end with 1 where a decision differs, 77 without such a scheduler");
  app.add_option("--trials", trials, "How many trials ASHA decides on");
  app.add_option("--optuna", optuna, "A python with optuna: its SQLite storage is measured in the same run");
  bench::AshaTrials asha_of{.trials = 0};
  std::string mnist;
  std::string ray;
  app.add_option("--asha", asha_of.trials, "Measure so many trials of ASHA on MNIST instead, two at a time");
  app.add_option("--samples", asha_of.samples, "Of an epoch of these")->capture_default_str();
  app.add_option("--mnist", mnist, "The folder of MNIST's files");
  app.add_option("--ray", ray, "A python with ray and torch: the same trials in Ray Tune");
  int clones = 0;
  app.add_option("--clones", clones, "Measure so many clones alone");
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
  auto session = init(argc, argv);
  std::ofstream out;
  if (!json.empty()) out.open(json);
  if (!json.empty() && !out)
    throw IoError(io_error("cannot write " + json, errno, "name a file in a folder that is there"));
  if (asha_of.trials > 0) {
    const auto found = data::find_mnist(data::default_mnist_search(mnist));
    if (found.folder.empty()) throw std::runtime_error(found.reason);
    return asha(session, asha_of, found.folder, ray, out);
  }
  std::printf("%-36s %14s %14s %8s\n", "", "a second", "peer", "ratio");
  const auto row = [&](const std::string& name, double ours, double peer, const std::string& of) {
    std::printf("%-36s %14.0f", name.c_str(), ours);
    nlohmann::json line{{"bench", "tune"}, {"case", name}, {"ours", ours}, {"unit", "1/s"}};
    if (peer > 0) {
      std::printf(" %14.0f %8.1f  %s", peer, ours / peer, of.c_str());
      line.update({{"peer", peer}, {"peer_name", of}, {"ratio", ours / peer}});
    }
    std::printf("\n");
    out << line.dump() << "\n";
  };
  const auto millis = [&](const std::string& name, double ours, double goal) {
    std::printf("%-36s %11.1f ms %11.0f ms %8.1f  goal\n", name.c_str(), ours, goal, goal / ours);
    out << nlohmann::json{{"bench", "tune"}, {"case", name},        {"ours", ours},        {"unit", "ms"},
                          {"peer", goal},    {"peer_name", "goal"}, {"ratio", goal / ours}}
               .dump()
        << "\n";
  };
  if (clones > 0) {
    millis("clone of a state of 100 MB", bench::clone_ms(session, clones), 100);
    return 0;
  }
  row("ASHA decisions", asha_decisions_per_second(trials), kGoal, "goal");
  const double peer = optuna.empty() ? 0 : optuna_per_second(optuna, 500);
  // As sweeps do it: the file is synced every 0.2 s.
  row("results in a sweep's file", records_per_second(200'000, std::chrono::milliseconds(200)), peer,
      "Optuna, SQLite");
  row("results, each synced by itself", records_per_second(500, Duration(0)), peer, "Optuna, SQLite");
  millis("start of a trial, warm", bench::trial_start_ms(session, 20), 50);
  millis("clone of a state of 100 MB", bench::clone_ms(session, 9), 100);
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_tune: %s\n", error.what());
  return 2;
}
