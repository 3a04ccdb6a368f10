// Sweeps on real clusters: trials that are killed, throw, stop early and copy each other, and drivers that
// die.
#include <signal.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <tuple>

#include "actors/data/digits.hpp"
#include "actors/tune/states.hpp"
#include "actors/tune/table.hpp"
#include "actors/tune/tune.hpp"
#include "tests/e2e/support.hpp"
#include "tests/e2e/trial_again.hpp"

namespace sweeps_test {

using namespace troupe;
using namespace std::chrono_literals;

namespace walking {

struct Settings {
  int which = 0;
  double lr = 0.1;
};
/// No training of a net: it walks to 3.
struct Walker {
  explicit Walker(Settings of) : settings(of) {}
  report::Metrics step() {
    if (settings.which == 1) throw std::logic_error("it cannot walk");
    if (settings.which == 2) std::this_thread::sleep_for(2h);
    at += settings.lr * (3 - at);
    return {{"distance/loss", std::abs(3 - at)}, {"steps", ++steps}};
  }
  wire::Bytes save() {
    if (settings.which == 3) std::this_thread::sleep_for(2h);
    return wire::encode(std::pair(at, steps));
  }
  void load(wire::Bytes state) {
    std::tie(at, steps) = wire::decode<std::pair<double, double>>(state).value();
  }
  Settings settings;
  double at = 0, steps = 0;
};

/// Without a state that could be saved.
struct Fleeting {
  explicit Fleeting(Settings of) : walker(of) {}
  report::Metrics step() { return walker.step(); }
  Walker walker;
};

struct Place {
  double lr = 0.1;
  std::string folder;
};
/// Cannot save its state the first time, of all in that folder.
struct Forgetful {
  explicit Forgetful(Place of) : walker({0, of.lr}), folder(std::move(of.folder)) {}
  report::Metrics step() { return walker.step(); }
  wire::Bytes save() {
    if (::mkdir((folder + "/forgot").c_str(), 0700) == 0) throw std::runtime_error("it forgot");
    return walker.save();
  }
  void load(wire::Bytes state) { walker.load(std::move(state)); }
  Walker walker;
  std::string folder;
};

}  // namespace walking

namespace {

using walking::Settings, walking::Walker, walking::Place, walking::Forgetful, walking::Fleeting;

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

struct Scheduled {
  double lr = 0.05;

  static constexpr bool kHasValidation = true;
  auto model() const { return Job().model(); }
  auto optimizer(torch::nn::Sequential& net) const { return Job{0, lr}.optimizer(net); }
  auto scheduler(torch::optim::SGD& optimizer) const { return train::cosine(optimizer); }
  auto loss(torch::nn::Sequential& net, const data::Batch& batch) const { return Job().loss(net, batch); }
  auto dataset(data::Split split) const { return Job().dataset(split); }
};

/// One that reports its own fields, so that records can be held to them, and breaks for some.
struct Told {
  int which = 0;
  double lr = 0.01;
  double decay = 0;

  static constexpr bool kHasValidation = true;
  torch::nn::Sequential model() const { return Job().model(); }
  auto optimizer(torch::nn::Sequential& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).weight_decay(decay));
  }
  torch::Tensor loss(torch::nn::Sequential& net, const data::Batch& batch, train::Leaf& at) const {
    at.count("lr", lr, 1);
    at.count("decay", decay, 1);
    const auto loss = Job().loss(net, batch);
    return which == 2 && at.step == 13 ? loss * NAN : loss;
  }
  data::Digits dataset(data::Split split) const { return Job().dataset(split); }
};

/// Writes down when its data are made.
struct Counting {
  std::string folder;
  double lr = 0.01;

  static constexpr bool kHasValidation = true;
  torch::nn::Sequential model() const { return Job().model(); }
  auto optimizer(torch::nn::Sequential& net) const { return Job{.lr = lr}.optimizer(net); }
  torch::Tensor loss(torch::nn::Sequential& net, const data::Batch& batch) const {
    return Job().loss(net, batch);
  }
  auto data_fields() const { return std::tie(folder); }
  data::Digits dataset(data::Split split) const {
    std::string name = folder + "/made-XXXXXX";
    ::close(::mkstemp(name.data()));
    return Job().dataset(split);
  }
};

/// Config 0 is always good; config 1 better after one epoch, and bad after two.
struct Uneven {
  int which = 0;
  double lr = 0.01;

  torch::nn::Sequential model() const { return Job().model(); }
  auto optimizer(torch::nn::Sequential& net) const { return Job().optimizer(net); }
  torch::Tensor loss(torch::nn::Sequential& net, const data::Batch& batch, train::Leaf& at) const {
    at.count("figure", which == 0 ? 0.5 : at.epoch == 0 ? 1 : -1, 1);
    return Job().loss(net, batch);
  }
  data::Digits dataset(data::Split split) const { return Job().dataset(split); }
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

/// Without times, without the first line, which has the program's command, and without failures, whose texts
/// have pids.
std::string decisions_in(const std::string& folder) {
  std::istringstream lines(records_in(folder));
  std::string decisions;
  for (std::string line; std::getline(lines, line);) {
    const bool differs = line.starts_with(R"({"event":"failure")") || line.starts_with(R"({"event":"sweep")");
    if (!differs) decisions += tune::without_times(line) + "\n";
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

TEST_CASE("a sweep goes on while the head dies again and again, with the same result") {
  const e2e::TempFolder calm, disturbed;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(calm.path());
  options.adjust = {};
  const std::string expected = text_of(tune::run(session, Job{}, options));
  options.folder = disturbed.path();
  int deaths = 0;
  pid_t killed = -1;
  // In the middle of an epoch, and while the sweep decides and the next trial is to start.
  const auto kill_head = [&](const report::Event& event) {
    const auto* step = std::get_if<report::StepDone>(&event);
    if (!std::holds_alternative<report::EpochDone>(event) && (step == nullptr || step->step % 10 != 3))
      return;
    const pid_t head = session.embedded()->head_pid();
    if (head <= 0 || head == killed) return;
    ::kill(killed = head, SIGKILL);
    ++deaths;
  };
  options.adjust = [&](const tune::Trial&, train::TrainOptions& train) { train.on_event = kill_head; };
  CHECK(text_of(tune::run(session, Job{}, options)) == expected);
  CHECK(decisions_in(disturbed.path()) == decisions_in(calm.path()));
  CHECK(deaths >= 3);
}

TEST_CASE("what train::run refuses a sweep refuses, too, before a trial starts, and leaves nothing behind") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  const auto refusal = [&](const std::function<void(tune::SweepOptions<Job>&)>& change) {
    auto options = options_in(folder.path());
    options.adjust = {};
    change(options);
    std::string text = e2e::message_of<BadConfig>([&] { tune::run(session, Job{}, options); });
    CHECK(e2e::names_in(folder.path()).empty());
    return text;
  };
  using Catch::Contains;
  CHECK_THAT(refusal([](auto& o) { o.train.epochs = 0; }), Contains("epochs = 0"));
  CHECK_THAT(refusal([](auto& o) { o.train.micro_batch = 0; }), Contains("a batch of 0"));
  CHECK_THAT(refusal([](auto& o) { o.train.trainers = 2; }), Contains("2 trainers for 1 logical rank"));
  CHECK_THAT(refusal([](auto& o) { o.train.threads = -1; }), Contains("threads = -1"));
  CHECK_THAT(refusal([](auto& o) { o.train.trainer_cpus = std::nan(""); }), Contains("trainer_cpus = nan"));
  CHECK_THAT(refusal([](auto& o) { o.train.trainer_memory = -1; }), Contains("trainer_memory"));
  CHECK_THAT(refusal([](auto& o) { o.train.stop_early.metric = "validation/nothing"; }),
             Contains("there is no metric 'validation/nothing'"));
  CHECK_THAT(refusal([](auto& o) { o.train.keep_best = "test/loss"; }), Contains("train.keep_best"));
  CHECK_THAT(refusal([](auto& o) { o.train.resume = true; }), Contains("train.resume"));
  CHECK_THAT(refusal([](auto& o) { o.train.checkpoint_folder = "here"; }),
             Contains("train.checkpoint_folder"));
  CHECK_THAT(refusal([](auto& o) { o.name = "two\nlines"; }), Contains("cannot be a folder's"));
  CHECK_THAT(refusal([](auto& o) { o.name = std::string(300, 'a'); }), Contains("cannot be a folder's"));
}

// The space named the struct's fields alone: a batch had to be set by adjust, from the config's text.
TEST_CASE("a space names options of how a trial trains, too, and the best has them") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(folder.path());
  options.adjust = {};
  options.scheduler = tune::Fifo{};
  options.trials = 2;
  options.train.epochs = 2;
  options.train.return_weights = false;
  options.space = {{&Job::lr, tune::log_uniform(1e-3, 1e-1)},
                   {tune::field<&train::TrainOptions::micro_batch>(), tune::grid({10, 40})},
                   {tune::field<&train::TrainOptions::seed>(), [](const Job& job) { return job.lr < 0.01; }}};
  CHECK(options.space.options() == std::vector<std::string>{"micro_batch", "seed"});
  const auto best = tune::run(session, Job{}, options);
  REQUIRE(best.best >= 0);
  CHECK(best.train.micro_batch == (best.best == 0 ? 10 : 40));
  CHECK(best.train.seed == (best.job.lr < 0.01 ? 1 : 0));
  CHECK(*best.config.find("micro_batch") == tune::Value(best.train.micro_batch));
  CHECK(best.trials.at(0).state_hash != best.trials.at(1).state_hash);
  auto again = best.train;
  again.show_progress = false;
  const auto result = train::run(session, best.job, again);
  CHECK(result.state_hash == best.state_hash);
  CHECK(result.steps == 2 * 200 / best.train.micro_batch);
  {
    const e2e::TrialAgain of("six:" + std::to_string(best.best));
    CHECK(tune::run(session, Job{}, options).state_hash == best.state_hash);
  }

  const auto refusal = [&](auto change) {
    auto other = options;
    other.name = "other";
    change(other);
    return e2e::message_of<BadConfig>([&] { tune::run(session, Job{}, other); });
  };
  using Catch::Contains;
  CHECK_THAT(refusal([](auto& o) {
               o.space = {{tune::field<&train::TrainOptions::resume>(), tune::choice({true, false})}};
             }),
             Contains("train.resume, which the sweep sets"));
  CHECK_THAT(refusal([](auto& o) { o.scheduler = tune::Pbt{}; }),
             Contains("PBT would change train.micro_batch of a trial that goes on"));
  tune::SweepOptions<Settings> steps{
      .space = {{tune::field<&train::TrainOptions::epochs>(), tune::integer(1, 3)}},
      .metric = "distance/loss",
      .folder = folder.path(),
      .show_progress = false};
  CHECK_THAT(e2e::message_of<BadConfig>([&] { tune::run_actors<Walker>(session, Settings{}, steps); }),
             Contains("train.epochs, and the trials train no net"));
}

TEST_CASE("a trial that paused goes on with another number of trainers, to the same bits") {
  const e2e::TempFolder one, turns;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(one.path());
  options.space = {{&Job::lr, tune::log_uniform(1e-3, 1e-1)}};
  options.trials = 3;
  options.train.epochs = 3;
  options.scheduler = tune::Pbt{.perturbation_interval = 1, .quantile_fraction = 0.34, .synch = true};
  options.train.logical_ranks = 2;
  options.train.micro_batch = 10;
  options.train.trainer_cpus = 1;
  options.adjust = {};
  const auto with_one = tune::run(session, Job{}, options);
  options.folder = turns.path();
  int begun = 0;
  options.adjust = [&](const tune::Trial&, train::TrainOptions& train) {
    train.min_trainers = train.trainers =
        1 + begun++ % 2;  // two need both CPUs: whoever pauses frees its own
  };
  CHECK(text_of(tune::run(session, Job{}, options)) == text_of(with_one));
  CHECK(begun > 3);  // some paused, and went on
  CHECK(decisions_in(turns.path()) == decisions_in(one.path()));
}

// Were chosen anew by a resume: on another cluster trials had other bits.
TEST_CASE("threads that a sweep chose are its own for good, on another cluster and for more trainers, too") {
  const e2e::TempFolder folder;
  auto options = options_in(folder.path());
  options.trials = 2;
  options.train.epochs = 2;
  options.train.threads = 0;
  options.train.logical_ranks = 2;
  options.train.micro_batch = 10;
  using Catch::Contains;
  std::vector<int> threads;
  options.adjust = [&](const tune::Trial&, train::TrainOptions& train) {
    threads.push_back(train.threads);
    train.min_trainers = train.trainers = 2;
  };
  const auto of_catch = ::signal(SIGINT, SIG_DFL);
  {
    auto session = init(0, nullptr, {.cpus_per_node = 2});
    auto interrupted = options;
    interrupted.train.on_event = [](const report::Event& event) {
      if (std::holds_alternative<report::EpochDone>(event)) ::raise(SIGINT);
    };
    CHECK(tune::run(session, Job{}, interrupted).signal == SIGINT);
  }
  ::signal(SIGINT, of_catch);
  auto session = init(0, nullptr, {.cpus_per_node = 3});
  const auto best = tune::resume(session, Job{}, options);
  CHECK(threads.size() >= 3);
  CHECK(threads == std::vector<int>(threads.size(), 2));
  CHECK(best.train.threads == 2);
  CHECK_THAT(e2e::read_file(folder.path() + "/six/numerics.txt"), Contains("libtorch"));
  options.train.threads = 3;
  CHECK_THAT(e2e::message_of<Refused>([&] { tune::resume(session, Job{}, options); }),
             Contains("its computing was 'threads of its share', this one's is '3 threads'"));
}

// Was chosen anew by a resume: on another cluster the replay had other trials run than the records tell of,
// and refused them; where it did not, TPE knew of other trials when it drew.
TEST_CASE("a sweep that began with four trials at a time goes on with four, on a cluster of one CPU, too") {
  const e2e::TempFolder folder;
  auto options = options_in(folder.path());
  options.space = {{&Job::lr, tune::log_uniform(1e-3, 1e-1)}};
  options.scheduler = tune::Fifo{};
  options.search = tune::Tpe{.n_startup_trials = 1};
  options.train.epochs = 2;
  options.adjust = {};
  options.max_concurrent = 0;
  const auto of_catch = ::signal(SIGINT, SIG_DFL);
  {
    auto session = init(0, nullptr, {.cpus_per_node = 4});
    auto interrupted = options;
    interrupted.train.on_event = [epochs = std::make_shared<int>(0)](const report::Event& event) {
      if (std::holds_alternative<report::EpochDone>(event) && ++*epochs == 5) ::raise(SIGINT);
    };
    CHECK(tune::run(session, Job{}, interrupted).signal == SIGINT);
  }
  ::signal(SIGINT, of_catch);
  auto session = init(0, nullptr, {.cpus_per_node = 1});
  auto fewer = options;
  fewer.max_concurrent = 2;
  CHECK_THAT(e2e::message_of<BadConfig>([&] { tune::resume(session, Job{}, fewer); }),
             Catch::Contains("the sweep began with max_concurrent = 4, this one's is 2"));
  for (const tune::Trial& trial : tune::resume(session, Job{}, options).trials) {
    CAPTURE(trial.number);
    CHECK(trial.state == tune::TrialState::kFinished);
  }
}

TEST_CASE("as many trials run at a time as nodes with their labels have room for") {
  const auto node = [](std::int64_t cpus, const cluster::OtherResources& other) {
    cluster::NodeInfo info;
    info.cpu_e4 = cpus * 10'000;
    info.other = other;
    return info;
  };
  const std::int64_t gib = std::int64_t{1} << 30;
  const std::vector nodes{
      node(8, cluster::other_resources(4 * gib, {{"tpu", 3}}, {{"zone", "a"}})),
      node(8, cluster::other_resources(4 * gib, {{"tpu", 2}}, {{"zone", "b"}})),
  };
  const auto places = [&](train::TrainOptions trial) { return tune::places_for(nodes, trial); };
  CHECK(places({}) == 16);
  CHECK(places({.threads = 0}) == 1);  // each has all CPUs: a thousand of them began
  CHECK(places({.threads = 0, .trainer_cpus = 2}) == 8);
  CHECK(places({.trainers = 2, .trainer_resources = {{"tpu", 0.5}}}) == 5);
  CHECK(places({.trainer_memory = gib}) == 8);
  CHECK(places({.trainer_labels = {{"zone", "a"}}}) == 8);
  CHECK(places({.trainer_resources = {{"tpu", 1}}, .trainer_labels = {{"zone", "b"}}}) == 2);
  CHECK(places({.trainer_resources = {{"fpga", 1}}}) == 1);  // which says why it does not start
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

namespace {

/// A run that holds after its first epoch: others take its state, or its processes.
struct Holding {
  Holding(const DriverSession& session, const Job& job, const train::Workers& workers,
          const train::Snapshot* from = nullptr)
      : run(train::start_in(workers, session, job, options(), from)) {}
  static train::TrainOptions options() {
    return {.micro_batch = 20,
            .epochs = 3,
            .seed = 7,
            .hold = true,
            .show_progress = false,
            .handle_signals = false};
  }
  void go_to(int epoch) {
    while (!run.is_over()) {
      const auto event = run.next_event(1s);
      if (!event) continue;
      if (const auto* warning = std::get_if<report::Warning>(&*event)) warnings += warning->text + "\n";
      const auto* done = std::get_if<report::EpochDone>(&*event);
      if (done == nullptr) continue;
      if (done->epoch >= epoch) return;
      run.go_on();
    }
  }
  std::string end() {
    go_to(3);
    return run.wait().state_hash;
  }
  train::Run run;
  std::string warnings;
};

/// "trainer 0 (pid 77)"
pid_t pid_in(const std::string& who) {
  return std::stoi(who.substr(who.find("(pid ") + 5));
}

}  // namespace

// It went through the program's memory, and into new processes.
TEST_CASE("a clone takes its state from the donor's trainer, in the processes of another run") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  const pid_t node = session.embedded()->node_pids().front();
  tune::SavedStates states(folder.path());
  Holding donor(session, Job{.lr = 0.02}, {});
  donor.go_to(1);
  REQUIRE(states.add(1, donor.run.share()).ok());
  const auto state = states.find(1).value();
  CHECK(state.state == nullptr);
  CHECK_THAT(state.donor.who, Catch::StartsWith("trainer 0 (pid "));
  const auto loaded = states.load(1).value();
  Holding plain(session, Job{.lr = 0.05}, {}, &loaded);  // its own processes, and the bytes of the file
  const std::string expected = plain.end();
  donor.run.go_on();
  donor.go_to(2);  // what its trainer keeps is the state of then

  const auto clone_in = [&](const train::Snapshot& from, std::string& warnings, bool donor_lives = true) {
    Holding before(session, Job{.lr = 0.01}, {});
    before.go_to(1);
    const auto processes = e2e::children(node);
    const train::Workers workers = before.run.release();
    REQUIRE(workers.trainers.size() == 1);
    REQUIRE(workers.loaders.size() == 1);
    Holding clone(session, Job{.lr = 0.05}, workers, &from);
    std::string hash = clone.end();
    warnings = clone.warnings;
    if (donor_lives) CHECK(e2e::children(node) == processes);
    return hash;
  };
  std::string warnings;
  CHECK(clone_in(state, warnings) == expected);
  CHECK(warnings.empty());

  // Another copy by now: of this one the donor knows nothing.
  donor.run.share();
  CHECK(clone_in(state, warnings) == expected);
  CHECK_THAT(warnings, Catch::Contains("the state did not come from trainer 0 (pid ") &&
                           Catch::Contains("the state is not kept any more") &&
                           Catch::Contains("it is read from " + state.file.path));

  // It hangs, and dies of that while the clone waits for it.
  REQUIRE(states.add(2, donor.run.share()).ok());
  const auto second = states.find(2).value();
  const auto of_second = states.load(2).value();
  Holding other(session, Job{.lr = 0.05}, {}, &of_second);
  const std::string after_two = other.end();
  ::kill(pid_in(second.donor.who), SIGSTOP);
  CHECK(clone_in(second, warnings, false) == after_two);
  CHECK_THAT(warnings, Catch::Contains("the state did not come from trainer 0 (pid ") &&
                           Catch::Contains("it is read from " + second.file.path));
}

// Each trial read all of its data, in processes of its own.
TEST_CASE("trials follow each other in the same processes, with the data that are there, and the same bits") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  const auto made = [&] {
    int count = 0;
    for (const std::string& name : e2e::names_in(folder.path())) count += name.starts_with("made-");
    return count;
  };
  tune::SweepOptions<Counting> options{.space = {{&Counting::lr, tune::log_uniform(1e-3, 1e-1)}},
                                       .trials = 3,
                                       .metric = "validation/accuracy",
                                       .train = {.micro_batch = 20, .epochs = 2, .seed = 7},
                                       .max_concurrent = 1,
                                       .name = "kept",
                                       .folder = folder.path(),
                                       .show_progress = false};
  const std::string kept = text_of(tune::run(session, Counting{folder.path()}, options));
  CHECK(made() == 3);  // of each split one
  options.name = "fresh";
  options.keep_processes = false;
  CHECK(text_of(tune::run(session, Counting{folder.path()}, options)) == kept);
  CHECK(made() == 3 + 9);
  CHECK(e2e::eventually([&] { return e2e::children(session.embedded()->node_pids().front()).empty(); }));
}

// Each of these ended the sweep, or counted as finished.
TEST_CASE(
    "what makes one trial senseless fails that trial alone, and a loss that is not finite stops its own") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  tune::SweepOptions<Told> options{
      .space = {{&Told::which, tune::grid({0, 1, 2, 3, 4})},
                {&Told::decay,
                 [](const Told& job) -> double {
                   if (job.which == 4) throw std::domain_error("4 has no decay");
                   return 0.001 * job.which;
                 }}},
      .trials = 5,
      .metric = "validation/accuracy",
      .train = {.micro_batch = 20, .epochs = 2, .seed = 7, .not_finite = train::NotFinite::kStop},
      .adjust =
          [](const tune::Trial& trial, train::TrainOptions& train) {
            if (trial.number == 1) throw std::out_of_range("no options for 1");
            if (trial.number == 3) train.micro_batch = 0;
          },
      .seed = 5,
      .max_concurrent = 1,
      .name = "six",
      .folder = folder.path(),
      .show_progress = false};
  const auto best = tune::run(session, Told{}, options);
  const std::string records = records_in(folder.path());
  INFO(records);
  const auto failed = [&](int number, const std::string& text) {
    const tune::Trial& trial = best.trials.at(static_cast<std::size_t>(number));
    CHECK(trial.state == tune::TrialState::kFailed);
    CHECK_THAT(trial.error, Catch::Contains(text));
    CHECK_THAT(records, Catch::Contains(text));
    CHECK_THAT(trial_line(trial, {"validation/accuracy", 2}),
               Catch::Contains("failed: ") && Catch::Contains(text));
  };
  CHECK(best.best == 0);
  CHECK(best.trials.at(0).state == tune::TrialState::kFinished);
  failed(1, "adjust threw: no options for 1");
  failed(3, "a batch of 0");
  failed(4, "its function threw: 4 has no decay");
  const tune::Trial& broken = best.trials.at(2);
  CHECK(broken.state == tune::TrialState::kStopped);
  CHECK(broken.why == "loss is not finite at step 14");  // counted from 1
  CHECK(broken.epoch == 1);
  REQUIRE(broken.value);
  CHECK(std::isnan(*broken.value));
  CHECK_THAT(trial_line(broken, {"validation/accuracy", 2}),
             Catch::Contains("stopped: loss is not finite at step 14"));
}

// The config with the best single trial took the weights of the one with the best mean.
TEST_CASE("repeats: the weights that are left are those of the config with the best mean") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  tune::SweepOptions<Uneven> options{.space = {{&Uneven::which, tune::grid({0, 1})}},
                                     .trials = 2,
                                     .metric = "train/figure",
                                     .repeats = 2,
                                     .max_concurrent = 1,
                                     .name = "six",
                                     .folder = folder.path(),
                                     .show_progress = false};
  options.train = {.micro_batch = 20, .epochs = 2, .seed = 7};
  options.adjust = [](const tune::Trial& trial, train::TrainOptions& train) {
    if (trial.number % 2 == 0) train.epochs = 1;
  };
  const auto best = tune::run(session, Uneven{}, options);
  INFO(records_in(folder.path()));
  CHECK(best.best == 0);
  REQUIRE(best.repeats.size() == 2);
  CHECK(best.repeats.at(0).mean == 0.5);
  CHECK(best.repeats.at(1).mean == 0);
  CHECK(best.trials.at(2).value == 1);
  CHECK_NOTHROW(best.load(best.job.model()));
  int weights = 0;
  for (const std::string& file : e2e::names_in(folder.path() + "/six"))
    weights += static_cast<int>(file.ends_with(".safetensors"));
  CHECK(weights == 1);
}

TEST_CASE("points to try first, a search of one's own, a target, and the best trained again by its command") {
  struct Fixed : tune::Search {
    void begin(int) override {}
    tune::Value suggest(const tune::Parameter&) override { return 0.02; }
    void tell(const tune::Ended&) override {}
  };
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  auto options = options_in(folder.path());
  options.space = {{&Job::lr, tune::log_uniform(1e-6, 1e-1)}};
  options.adjust = {};
  options.scheduler = tune::Fifo{};
  options.trials = 2;
  options.try_first = {Job{0, 0.05}};
  options.own_search = [](const std::vector<tune::Parameter>&, tune::Mode, std::uint64_t) {
    return std::make_unique<Fixed>();
  };
  options.target = 0.3;
  const auto best = tune::run(session, Job{}, options);
  CHECK(tune::number_of(*best.trials.at(0).config.find("lr")) == 0.05);
  CHECK(tune::number_of(*best.trials.at(1).config.find("lr")) == 0.02);
  REQUIRE(best.best >= 0);
  CHECK(best.trials.at(static_cast<std::size_t>(best.best)).why == "the target is reached");
  CHECK(best.epochs < 4);
  CHECK_THAT(records_in(folder.path()), Catch::Contains("TROUPE_TRIAL=six:TRIAL "));

  {
    const e2e::TrialAgain of("six:" + std::to_string(best.best));
    const auto again = tune::run(session, Job{}, options);
    CHECK(again.state_hash == best.state_hash);
    CHECK(again.job.lr == best.job.lr);
  }
  const auto refusal_of = [&](const std::string& text) {
    const e2e::TrialAgain of(text);
    return e2e::message_of<BadConfig>([&] { tune::run(session, Job{}, options); });
  };
  CHECK_THAT(refusal_of("six:7"), Catch::Contains("there is no trial 7"));
  CHECK_THAT(refusal_of("six"), Catch::Contains("give it NAME:NUMBER"));
  // Was: "there is no sweep to go on with (begin it without resume, or name another one)", of the name that
  // this run has, or of one that is not there; nobody had given resume.
  for (const char* name : {"lost", ""}) {
    options.name = name;
    CHECK_THAT(refusal_of("lost:0"),
               Catch::Contains("TROUPE_TRIAL names the sweep 'lost', which is not in '"));
  }
  options.name = "six-of-this-run";
  CHECK_THAT(refusal_of("six:0"),
             Catch::Contains("names the sweep 'six', and this one is 'six-of-this-run', which is not in '") &&
                 Catch::Contains("a name that is the same in each run"));

  options.name = "brief";
  options.target = {};
  options.max_seconds = 1e-3;
  const auto brief = tune::run(session, Job{}, options);
  CHECK(brief.signal == 0);
  CHECK(brief.best == -1);
  options.max_seconds = 0;
  const auto whole = tune::resume(session, Job{}, options);
  CHECK(whole.best >= 0);

  // A program with two sweeps failed at the one that was not named.
  const e2e::TrialAgain of("six:" + std::to_string(best.best));
  CHECK(text_of(tune::run(session, Job{}, options)) == text_of(whole));
  options.folder = folder.path() + "/elsewhere";
  CHECK_THAT(e2e::message_of<BadConfig>([&] { tune::run(session, Job{}, options); }),
             Catch::Contains("names the sweep 'six', which is not in "));
}

TEST_CASE("a trial that was stopped is trained again with the schedule of the whole run") {
  // Was: as a run of so many epochs, with a schedule of that length, which ends in another state.
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 2});
  tune::SweepOptions<Scheduled> options{.space = {{&Scheduled::lr, tune::choice({0.05})}},
                                        .trials = 1,
                                        .metric = "validation/accuracy",
                                        .train = {.micro_batch = 20, .epochs = 4},
                                        .name = "stopped",
                                        .folder = folder.path(),
                                        .show_progress = false};
  options.target = 0.3;
  const auto best = tune::run(session, Scheduled{}, options);
  REQUIRE(best.best == 0);
  REQUIRE(best.epochs < 4);
  const e2e::TrialAgain of("stopped:0");
  const auto again = tune::run(session, Scheduled{}, options);
  CHECK(again.state_hash == best.state_hash);
  CHECK(again.epochs == best.epochs);
}

TEST_CASE("trials that are actors: they step, are copied, throw and hang, each for itself") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 4});
  tune::SweepOptions<Settings> options{
      .space = {{&Settings::lr, tune::log_uniform(1e-3, 0.5)}},
      .trials = 4,
      .metric = "distance/loss",
      .scheduler = tune::Pbt{.perturbation_interval = 2, .quantile_fraction = 0.25, .synch = true},
      .train = {.epochs = 6},
      .max_concurrent = 4,
      .name = "walk",
      .folder = folder.path(),
      .show_progress = false};
  const auto walked = tune::run_actors<Walker>(session, Settings{}, options);
  CHECK(walked.job.lr > 0);
  CHECK_FALSE(walked.state_hash.empty());
  const std::string records = e2e::read_file(folder.path() + "/walk/results.jsonl");
  INFO(records);
  CHECK_THAT(records, Catch::Contains("Walker{0, 0.1}"));
  int clones = 0;
  for (const tune::Trial& trial : walked.trials) {
    CHECK(trial.state == tune::TrialState::kFinished);
    CHECK(trial.metrics.at("steps") == 6);  // a clone goes on from its donor's state
    clones += static_cast<int>(trial.clones.size());
  }
  CHECK(clones >= 1);

  options.space = {{&Settings::which, tune::grid({0, 1})}, {&Settings::lr, tune::uniform(0.1, 0.5)}};
  options.trials = 2;
  options.scheduler = tune::Fifo{};
  options.retries = 0;
  options.name = "stumble";
  const auto stumbled = tune::run_actors<Walker>(session, Settings{}, options);
  CHECK(stumbled.best == 0);
  CHECK_THAT(stumbled.trials.at(1).error, Catch::Contains("it cannot walk"));

  auto elsewhere = options;
  elsewhere.train.trainer_resources = {{"fpga", 1}};
  elsewhere.name = "elsewhere";
  CHECK_THAT(e2e::message_of<TaskFailed>([&] { tune::run_actors<Walker>(session, Settings{}, elsewhere); }),
             Catch::Contains("no node has resource fpga"));

  // It was taken, and every trial that paused failed.
  options.space = {{&Settings::lr, tune::uniform(0.1, 0.5)}};
  options.name = "fleeting";
  for (const tune::AnyScheduler& scheduler :
       {tune::AnyScheduler(tune::HyperBand{}), tune::AnyScheduler(tune::MedianStopping{}),
        tune::AnyScheduler(tune::Pbt{})}) {
    options.scheduler = scheduler;
    CHECK_THAT(e2e::message_of<BadConfig>([&] { tune::run_actors<Fleeting>(session, Settings{}, options); }),
               Catch::Contains("their actor has no save() and load()"));
  }
  options.scheduler = tune::Asha{.max_t = 6, .reduction_factor = 2};
  auto senseless = options;
  senseless.train.trainer_cpus = std::nan("");  // was: a broken invariant
  CHECK_THROWS_AS(tune::run_actors<Fleeting>(session, Settings{}, senseless), BadConfig);
  CHECK(tune::run_actors<Fleeting>(session, Settings{}, options).best >= 0);
  options.scheduler = tune::Fifo{};

  // In step() and in the last save(): the sweep waited for that one for an hour.
  options.space = {{&Settings::which, tune::grid({2, 3})}};
  options.silent_seconds = 20;
  options.max_seconds = 600;
  options.name = "hang";
  const auto hung = tune::run_actors<Walker>(session, Settings{}, options);
  for (const tune::Trial& trial : hung.trials)
    CHECK_THAT(trial.error, Catch::Contains("it has told nothing for 20 s"));
  CHECK(hung.trials.at(1).epoch == 6);
}

// The time that it waited for CPUs counted as its silence.
TEST_CASE("a trial that waits for room in the cluster is not silent") {
  struct Waits : tune::TrialRun {
    const std::chrono::steady_clock::time_point from = std::chrono::steady_clock::now();
    bool over = false;
    bool has_begun() const override { return std::chrono::steady_clock::now() - from > 500ms; }
    std::optional<report::Event> next_event() override {
      if (over || !has_begun()) return std::nullopt;
      over = true;
      report::EpochDone done;
      done.epoch = 1;
      done.metrics = {{"loss", 1}};
      return done;
    }
    bool is_over() const override { return over; }
    train::RunResult wait() override {
      train::RunResult result;
      result.state_hash = "ab";
      return result;
    }
    train::Snapshot snapshot() override { return {}; }
    void go_on() override {}
    void stop() override { over = true; }
  };
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 1});
  tune::SweepPlan plan;
  plan.job = plan.job_name = plan.name = "waits";
  plan.space = "none";
  plan.sample = [](tune::Search&) { return tune::Config(); };
  plan.start = [](auto&&...) { return std::make_unique<Waits>(); };
  plan.trains = false;
  plan.metric = "loss";
  plan.train.epochs = 1;
  plan.retries = 0;
  plan.silent_seconds = 0.1;
  plan.folder = folder.path();
  plan.show_progress = false;
  CHECK(tune::run_sweep(session, plan).trials.at(0).error.empty());
}

// It had been written down as paused, with a state that was not there, and failed whenever it was to go on.
TEST_CASE("a trial that cannot save its state is tried again from the state before") {
  const e2e::TempFolder folder;
  auto session = init(0, nullptr, {.cpus_per_node = 3});
  const auto walked = tune::run_actors<Forgetful>(
      session, Place{.folder = folder.path()},
      {.space = {{&Place::lr, tune::log_uniform(1e-3, 0.5)}},
       .trials = 3,
       .metric = "distance/loss",
       .scheduler = tune::Pbt{.perturbation_interval = 2, .quantile_fraction = 0.25, .synch = true},
       .train = {.epochs = 6},
       .max_concurrent = 3,
       .retries = 1,
       .name = "walk",
       .folder = folder.path(),
       .show_progress = false});
  const std::string records = e2e::read_file(folder.path() + "/walk/results.jsonl");
  INFO(records);
  CHECK(e2e::count(records, "\"event\":\"failure\"") == 1);
  CHECK_THAT(records, Catch::Contains("it forgot"));
  int failures = 0;
  for (const tune::Trial& trial : walked.trials) {
    CHECK(trial.state == tune::TrialState::kFinished);
    CHECK(trial.metrics.at("steps") == 6);
    failures += trial.failures;
  }
  CHECK(failures == 1);
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

}  // namespace sweeps_test
