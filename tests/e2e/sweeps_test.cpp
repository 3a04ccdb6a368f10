// Sweeps on real clusters: trials that are killed, throw, stop early and copy each other, and drivers that
// die.
#include <signal.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <sstream>

#include "actors/data/digits.hpp"
#include "actors/tune/tune.hpp"
#include "tests/e2e/support.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct Job {
  int which = 0;
  double lr = 0.01;

  static constexpr bool kHasValidation = true;
  torch::nn::Sequential model() const {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(28 * 28, 16), torch::nn::ReLU(),
                                 torch::nn::Linear(16, 10));
  }
  auto optimizer(torch::nn::Sequential& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor loss(torch::nn::Sequential& net, const data::Batch& batch) const {
    if (which == 4) throw std::out_of_range("this one never works");
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? 200 : 100});
  }
};

/// Six trials one after another, so that their reports have one order; trial 1's trainer is killed, trial 4
/// throws.
tune::SweepOptions<Job> options_in(const std::string& folder) {
  tune::SweepOptions<Job> options{
      .space = {{&Job::which, tune::grid({0, 1, 2, 3, 4, 5})}, {&Job::lr, tune::log_uniform(1e-3, 1e-1)}},
      .trials = 6,
      .metric = "validation/accuracy",
      .scheduler = tune::Asha{.max_t = 4, .reduction_factor = 2},
      .train = {.micro_batch = 20, .epochs = 4, .seed = 7},
      .adjust =
          [](const tune::Trial& trial, train::TrainOptions& train) {
            if (trial.number == 1) train.chaos = {{train::ChaosStep::What::kKillTrainer, 4, 0}};
          },
      .seed = 5,
      .max_concurrent = 1,
      .retries = 1,
      .name = "six",
      .folder = folder,
      .show_progress = false};
  return options;
}

/// All that a sweep came to.
std::string text_of(const tune::SweepOutcome& sweep) {
  std::ostringstream text;
  for (const tune::Trial& trial : sweep.trials)
    text << trial.number << " " << to_text(trial.config) << " " << name_of(trial.state) << " epoch "
         << trial.epoch << " " << trial.value.value_or(-1) << " " << trial.state_hash << "\n";
  text << "best " << sweep.best << " " << sweep.state_hash << "\n";
  return text.str();
}
std::string records_in(const std::string& folder) {
  return e2e::read_file(folder + "/six/results.jsonl");
}

/// Without times, and without failures, whose texts have pids.
std::string decisions_in(const std::string& folder) {
  std::istringstream lines(records_in(folder));
  std::string decisions;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(R"({"event":"failure")")) decisions += tune::without_times(line) + "\n";
  }
  return decisions;
}

}  // namespace

TEST_CASE("program that sweeps", "[.]") {
  const std::string folder = e2e::program_folder();
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(folder);
  options.resume = !e2e::read_file(folder + "/resume").empty();
  e2e::write_file(folder + "/outcome", text_of(tune::run(session, Job{}, options)));
}

TEST_CASE("a sweep outlives a killed trainer, a job that throws and its own program, with the same result") {
  const e2e::TempFolder undisturbed, disturbed;
  std::string expected;
  {
    auto session = init(0, nullptr, {.cpus_per_node = 2});
    const auto best = tune::run(session, Job{}, options_in(undisturbed.path()));
    expected = text_of(best);
    INFO(expected);
    const tune::Trial& bad = best.trials.at(4);
    CHECK(bad.state == tune::TrialState::kFailed);
    CHECK(bad.failures == 2);
    CHECK(bad.error.find("this one never works") != std::string::npos);
    int finished = 0, stopped = 0;
    for (const tune::Trial& trial : best.trials) {
      finished += trial.state == tune::TrialState::kFinished;
      stopped += trial.state == tune::TrialState::kStopped;
    }
    CHECK(finished >= 1);
    CHECK(stopped >= 1);
    CHECK(finished + stopped == 5);

    // Trained again, with the same config: the same bits.
    REQUIRE(best.best >= 0);
    CHECK(best.job.which == best.best);
    auto again = options_in("").train;
    again.epochs = best.epochs;
    again.show_progress = false;
    const auto result = train::run(session, best.job, again);
    CHECK(result.state_hash == best.state_hash);
    CHECK(result.metrics.at("validation/accuracy") == best.metric);
    const auto loaded = best.load(best.job.model());
    const auto trained = result.load(best.job.model());
    CHECK(torch::equal(loaded->parameters()[0], trained->parameters()[0]));
  }
  {
    e2e::Program first("program that sweeps", disturbed.path());
    REQUIRE(e2e::eventually([&] { return e2e::count(records_in(disturbed.path()), "\n") >= 9; }, 120s));
    first.kill(SIGKILL);
  }
  CHECK(e2e::read_file(disturbed.path() + "/outcome").empty());
  e2e::write_file(disturbed.path() + "/resume", "yes");
  e2e::Program second("program that sweeps", disturbed.path());
  CHECK(second.wait(200s) == "exit code 0");
  CHECK(e2e::read_file(disturbed.path() + "/outcome") == expected);
  CHECK(decisions_in(disturbed.path()) == decisions_in(undisturbed.path()));
}

TEST_CASE("what train::run refuses a sweep refuses, too, before a trial starts, and leaves nothing behind") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  const auto refusal = [&](const std::function<void(tune::SweepOptions<Job>&)>& change) {
    auto options = options_in(folder.path());
    options.adjust = {};
    change(options);
    const std::string text = e2e::message_of<BadConfig>([&] { tune::run(session, Job{}, options); });
    CHECK(e2e::names_in(folder.path()).empty());
    return text;
  };
  using Catch::Contains;
  CHECK_THAT(refusal([](auto& o) { o.train.epochs = 0; }), Contains("epochs = 0"));
  CHECK_THAT(refusal([](auto& o) { o.train.micro_batch = 0; }), Contains("a batch of 0"));
  CHECK_THAT(refusal([](auto& o) { o.train.trainers = 2; }), Contains("2 trainers for 1 logical rank"));
  CHECK_THAT(refusal([](auto& o) { o.train.threads = 0; }), Contains("threads = 0"));
  CHECK_THAT(refusal([](auto& o) { o.train.trainer_cpus = std::nan(""); }), Contains("trainer_cpus = nan"));
  CHECK_THAT(refusal([](auto& o) { o.train.stop_early.metric = "validation/nothing"; }),
             Contains("there is no metric 'validation/nothing'"));
  CHECK_THAT(refusal([](auto& o) { o.train.keep_best = "test/loss"; }), Contains("train.keep_best"));
  CHECK_THAT(refusal([](auto& o) { o.train.resume = true; }), Contains("train.resume"));
  CHECK_THAT(refusal([](auto& o) { o.train.checkpoint_folder = "here"; }),
             Contains("train.checkpoint_folder"));
  CHECK_THAT(refusal([](auto& o) { o.name = "two\nlines"; }), Contains("cannot be a folder's"));
  CHECK_THAT(refusal([](auto& o) { o.name = std::string(300, 'a'); }), Contains("cannot be a folder's"));
}

TEST_CASE("PBT's trials take over each other's state and go on with another config") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(folder.path());
  options.space = {{&Job::lr, tune::log_uniform(1e-6, 1e-1)}};
  options.scheduler = tune::Pbt{.perturbation_interval = 1, .quantile_fraction = 0.34};
  options.trials = 3;
  options.adjust = {};
  const auto best = tune::run(session, Job{}, options);
  const std::string records = records_in(folder.path());
  INFO(records);
  CHECK(e2e::count(records, "\"decision\":\"exploit\"") >= 1);
  CHECK(e2e::count(records, "\"event\":\"end\"") == 3);
  CHECK(best.metric > 0.3);  // a rate of 1e-6 learns nothing by itself
  for (const std::string& file : e2e::names_in(folder.path() + "/six"))
    CHECK_FALSE(file.starts_with("state-"));
}

TEST_CASE("Ctrl-C ends a sweep in order, and it is resumed; a metric that nobody reports is said at once") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(folder.path());
  options.trials = 2;
  options.adjust = {};
  options.train.epochs = 2;
  auto interrupted = options;
  interrupted.train.on_event = [](const report::Event& event) {
    if (std::holds_alternative<report::EpochDone>(event)) ::raise(SIGINT);
  };
  const auto of_catch = ::signal(SIGINT, SIG_DFL);
  const auto part = tune::run(session, Job{}, interrupted);
  ::signal(SIGINT, of_catch);
  CHECK(part.signal == SIGINT);
  CHECK(part.exit_code() == 128 + SIGINT);
  CHECK(part.trials.at(0).epoch == 1);
  CHECK_FALSE(part.trials.at(0).is_over());
  const auto whole = tune::resume(session, Job{}, options);
  CHECK(whole.signal == 0);
  CHECK(whole.trials.at(0).is_over());
  CHECK(whole.best >= 0);

  options.name = "unknown";
  options.metric = "validation/accurcy";
  CHECK(e2e::message_of<BadConfig>([&] {
          tune::run(session, Job{}, options);
        }).find("there is no metric 'validation/accurcy': the job reports test/") != std::string::npos);
}
