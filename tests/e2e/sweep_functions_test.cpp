// Sweeps whose trials are plain functions: they report, are stopped, throw, die and go on from each other's
// state; and what TensorBoard reads of them.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "actors/tune/sweep_fields.hpp"
#include "tests/e2e/support.hpp"
#include "tests/e2e/trial_again.hpp"

namespace sweep_functions_test {

using namespace troupe;
using namespace std::chrono_literals;

namespace functions {

struct Settings {
  int which = 0;
  double rate = 0.5;
  std::string folder;
};

/// Says when it went, and how.
struct Leaves {
  const Settings& of;
  ~Leaves() { e2e::write_file(of.folder + "/left-" + std::to_string(of.which), "yes"); }
};

double shrink(const Settings& of, tune::Reporter& reporter) {
  const Leaves leaves{of};
  if (of.which == 1) throw std::logic_error("it cannot shrink");
  double loss = 1;
  for (int i = 0; i < 8; ++i) {
    reporter.report(loss *= of.rate);
    // Once, in the middle.
    if (of.which == 2 && i == 3 && e2e::read_file(of.folder + "/died").empty()) {
      e2e::write_file(of.folder + "/died", "yes");
      ::kill(::getpid(), SIGKILL);
    }
  }
  return loss / 2;
}

/// Nothing but what it returns.
double square(const Settings& of) {
  return of.rate * of.rate;
}
/// Another program's, once there is a file that says so.
double drifts(const Settings& of) {
  return square(of) + (e2e::read_file(of.folder + "/drifted").empty() ? 0 : 1);
}
report::Metrics figures(const Settings& of) {
  return {{"loss", of.rate}, {"which", of.which}};
}
void silent(const Settings&, tune::Reporter&) {}

struct Progress {
  int steps = 0;
  double loss = 1;
  int beginner = -1;  ///< which trial's function made its first step
};
void go_on(const Settings& of, tune::Reporter& reporter, Progress& state) {
  if (state.steps == 0) state.beginner = of.which;
  while (state.steps < 7) {
    ++state.steps;
    state.loss *= of.rate;
    reporter.report({{"loss", state.loss}, {"steps", state.steps}, {"beginner", state.beginner}});
  }
}

}  // namespace functions

namespace {

using namespace functions;

tune::SweepOptions<Settings> options_in(const std::string& folder) {
  return {.space = {{&Settings::which, tune::grid({0, 1, 2, 3})}, {&Settings::rate, tune::uniform(0.3, 0.9)}},
          .trials = 4,
          .metric = "loss",
          .seed = 3,
          .max_concurrent = 1,
          .retries = 1,
          .name = "f",
          .folder = folder,
          .show_progress = false};
}

}  // namespace

TEST_CASE("a sweep's options come from flags and a file, with those of its trials") {
  Settings job;
  tune::SweepOptions<Settings> options{.space = {{&Settings::rate, tune::uniform(0, 1)}}, .trials = 8};
  static_cast<void>(
      read_configuration({"--rate", "0.25", "--trials", "64", "--sweep.seed", "9", "--sweep.mode", "max",
                          "--target=0.9", "--epochs", "3", "--options.seed", "4", "--resume"},
                         {job, options}, "sweep"));
  CHECK(job.rate == 0.25);
  CHECK(options.trials == 64);
  CHECK(options.seed == 9);
  CHECK(options.mode == tune::Mode::kMax);
  CHECK(options.target == 0.9);
  CHECK(options.resume);
  CHECK(options.train.epochs == 3);
  CHECK(options.train.seed == 4);
  CHECK_THROWS_WITH(read_configuration({"--seed", "1"}, {job, options}, "sweep"),
                    Catch::Contains("sweep.seed"));
}

// Was: --micro-batch was taken in silence where the space drew it, and --help had what a sweep refuses.
TEST_CASE("a flag for an option that the space draws is refused by name; what a sweep refuses is no flag") {
  Settings job;
  tune::SweepOptions<Settings> options{
      .space = {{tune::field<&train::TrainOptions::micro_batch>(), tune::grid({16, 32})}}, .trials = 2};
  const auto read = [&](const std::vector<std::string>& words) {
    return read_configuration(words, {job, options}, "sweep");
  };
  CHECK_THROWS_WITH(read({"--micro-batch", "64"}),
                    Catch::Contains("options.micro_batch: the sweep's space draws it"));
  const std::string help = read({"--help"}).help;
  for (const char* refused : {"checkpoint-folder", "max-steps", "keep-best "})
    CHECK_THAT(help, !Catch::Contains(refused));
  CHECK_THAT(help, Catch::Contains("torch.save"));
}

// Was: "there is a sweep of this name already", so that no further attempt of a submitted job got past it.
TEST_CASE("a program that is started again goes on with the sweep of that name") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  const auto options = options_in(folder.path());
  const auto run = [&] { return tune::run_function<&square>(session, Settings{}, options); };
  const auto first = run();
  const std::string records = e2e::read_file(folder.path() + "/f/results.jsonl");
  CHECK_THROWS_WITH(run(), Catch::Contains("there is a sweep of this name already"));
  REQUIRE(::setenv("TROUPE_RESUME", "auto", 1) == 0);
  const auto again = run();
  ::unsetenv("TROUPE_RESUME");
  CHECK(again.best == first.best);
  CHECK(e2e::read_file(folder.path() + "/f/results.jsonl") == records);
}

TEST_CASE("a function of the config is a trial: it reports, is tried again after its death, fails alone") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  const auto best =
      tune::run_function<&shrink>(session, Settings{.folder = folder.path()}, options_in(folder.path()));
  const std::string records = e2e::read_file(folder.path() + "/f/results.jsonl");
  INFO(records);
  CHECK_THAT(records, Catch::Contains("shrink{0, 0.5, "));
  for (const int finished : {0, 2, 3}) {
    const tune::Trial& trial = best.trials.at(static_cast<std::size_t>(finished));
    CHECK(trial.state == tune::TrialState::kFinished);
    CHECK(trial.epoch == 9);  // its reports, and what it returned
    const double rate = tune::number_of(*trial.config.find("rate"));
    CHECK(*trial.value == Approx(std::pow(rate, 8) / 2));
    CHECK(trial.failures == (finished == 2 ? 1 : 0));
    CHECK(e2e::count(records, "\"event\":\"report\",\"trial\":" + std::to_string(finished)) == 9);
  }
  CHECK(best.trials.at(1).state == tune::TrialState::kFailed);
  CHECK(best.trials.at(1).failures == 2);
  // Was: "troupe::tune::detail::FunctionActor<{anonymous}::shrink>::step threw ... [..., actor ..., node
  // ...]".
  CHECK_THAT(best.trials.at(1).error, Catch::Contains("shrink threw std::logic_error: it cannot shrink") &&
                                          !Catch::Contains("FunctionActor") && !Catch::Contains("node "));
  CHECK(best.job.rate == tune::number_of(*best.config.find("rate")));

  // A sweep that was over is over.
  auto options = options_in(folder.path());
  options.resume = true;
  const auto again = tune::run_function<&shrink>(session, Settings{.folder = folder.path()}, options);
  CHECK(again.best == best.best);
  CHECK(again.metric == best.metric);
  CHECK(e2e::read_file(folder.path() + "/f/results.jsonl") == records);
}

TEST_CASE("a scheduler that stops a function unwinds it") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(folder.path());
  options.space = {{&Settings::which, tune::grid({3, 4, 5, 6})},
                   {&Settings::rate, [](const Settings& of) { return 0.1 * of.which; }}};
  options.scheduler = tune::Asha{.max_t = 8, .reduction_factor = 2};
  const auto best = tune::run_function<&shrink>(session, Settings{.folder = folder.path()}, options);
  INFO(e2e::read_file(folder.path() + "/f/results.jsonl"));
  CHECK(best.best == 0);
  CHECK(best.epochs == 8);  // ASHA ends it there
  int stopped_early = 0;
  for (const tune::Trial& trial : best.trials) {
    CHECK(trial.state == tune::TrialState::kStopped);
    CHECK(trial.failures == 0);
    stopped_early += trial.epoch < 8;
    CHECK(e2e::read_file(folder.path() + "/left-" + std::to_string(trial.number + 3)) == "yes");
  }
  CHECK(stopped_early >= 2);
}

TEST_CASE("functions without a Reporter report what they return; one that tells nothing fails") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(folder.path());
  options.retries = 0;
  const auto squared = tune::run_function<&square>(session, Settings{}, options);
  CHECK(squared.metric == Approx(squared.job.rate * squared.job.rate));
  CHECK(squared.epochs == 1);
  // One that has no state is held to its figures when it is run again.
  options.name = "drifts";
  const Settings drifting{.folder = folder.path()};
  tune::run_function<&drifts>(session, drifting, options);
  {
    const e2e::TrialAgain again("drifts:2");
    CHECK(tune::run_function<&drifts>(session, drifting, options).best == 2);
    e2e::write_file(folder.path() + "/drifted", "yes");
    CHECK_THAT(e2e::message_of<TaskFailed>([&] { tune::run_function<&drifts>(session, drifting, options); }),
               Catch::Contains("trial 2 came to another state than in the sweep"));
  }
  options.name = "figures";
  const auto told = tune::run_function<&figures>(session, Settings{}, options);
  CHECK(told.trials.at(3).metrics.at("which") == 3);
  options.name = "silent";
  CHECK_THAT(e2e::message_of<TaskFailed>([&] { tune::run_function<&silent>(session, Settings{}, options); }),
             Catch::Contains("the trial has no result: its function returned without a report") &&
                 !Catch::Contains("FunctionActor"));
  options.name = "refused";
  options.scheduler = tune::Pbt{};
  CHECK_THAT(e2e::message_of<BadConfig>([&] { tune::run_function<&shrink>(session, Settings{}, options); }),
             Catch::Contains("a function: no state"));
}

TEST_CASE("functions with a state are paused and copied: they go on from it") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 4});
  auto options = options_in(folder.path());
  options.space = {{&Settings::which, tune::grid({0, 1, 2, 3})}, {&Settings::rate, tune::uniform(0.3, 0.9)}};
  options.scheduler = tune::Pbt{
      .perturbation_interval = 3, .quantile_fraction = 0.25, .mutations = {&Settings::rate}, .synch = true};
  options.max_concurrent = 4;
  options.train.tensorboard_folder = folder.path() + "/board";
  const auto best = tune::run_function<&go_on>(session, Settings{}, options);
  INFO(e2e::read_file(folder.path() + "/f/results.jsonl"));
  int copied = 0, others_work = 0;
  std::set<std::string> sessions;
  for (const tune::Trial& trial : best.trials) {
    CHECK(trial.state == tune::TrialState::kFinished);
    CHECK(trial.metrics.at("steps") == 7);
    copied += static_cast<int>(trial.clones.size());
    others_work += trial.metrics.at("beginner") != trial.number;
    for (std::size_t i = 0; i <= trial.clones.size(); ++i)
      sessions.insert("trial-" + std::to_string(trial.number) + (i == 0 ? "" : "." + std::to_string(i)));
  }
  CHECK(copied >= 1);
  CHECK(others_work >= 1);
  // Each config is a session of its own.
  std::set<std::string> shown;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/board"))
    if (entry.is_directory()) shown.insert(entry.path().filename());
  CHECK(shown == sessions);
}

}  // namespace sweep_functions_test
