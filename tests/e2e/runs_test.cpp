// A run's handle: it outlives the node of its program, is paused, goes on, is cloned, and stops early; always
// with the bits of an undisturbed run. A small net with dropout and BatchNorm, so that a run takes seconds.
#include <signal.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <sstream>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/data/digits.hpp"
#include "actors/train/api/train.hpp"
#include "tests/e2e/small_net.hpp"
#include "tests/e2e/support.hpp"

namespace runs_test {

using namespace troupe;
using namespace std::chrono_literals;

namespace {

using Net = e2e::SmallNet;

struct Job {
  double lr = 0.01;

  Net model() const { return Net(); }
  auto optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor loss(Net& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? 400 : 100});
  }
};

/// The CPU time of a process; -1 where it is gone.
std::int64_t cpu_ticks(pid_t pid) {
  const std::string stat = e2e::read_file("/proc/" + std::to_string(pid) + "/stat");
  if (stat.empty()) return -1;
  std::istringstream words(stat.substr(stat.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) words >> skipped;
  std::int64_t user = 0, system = 0;
  words >> user >> system;
  return user + system;
}

/// A Job of 12 steps. With a folder its evaluation waits until another trainer has started and waits for
/// orders: it holds no state when the job ends.
struct LateJob {
  Job job{};
  std::string folder;
  static constexpr int kSteps = 12;

  Net model() const {
    if (!folder.empty()) e2e::write_file(folder + "/" + std::to_string(::getpid()), "made its model");
    return job.model();
  }
  auto optimizer(Net& net) const { return job.optimizer(net); }
  torch::Tensor loss(Net& net, const data::Batch& batch) const { return job.loss(net, batch); }
  torch::Tensor evaluate(Net& net, const data::Batch& batch, train::Leaf&) const {
    if (!folder.empty()) wait_for_newcomer();
    return job.loss(net, batch);
  }
  void wait_for_newcomer() const {
    std::map<pid_t, std::pair<std::int64_t, int>> quiet;  ///< ticks, and how often they were seen
    e2e::eventually([&] {
      for (const auto& name : e2e::names_in(folder)) {
        const pid_t pid = std::stoi(name);
        const std::int64_t ticks = pid == ::getpid() ? -1 : cpu_ticks(pid);
        auto& [seen, times] = quiet[pid];
        times = ticks == seen ? times + 1 : 0;
        seen = ticks;
        if (ticks >= 0 && times >= 10) return true;
      }
      return false;
    });
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? 120 : 20});
  }
};

/// 40 steps an epoch.
train::TrainOptions small(int epochs, int trainers = 2) {
  return {.logical_ranks = 2,
          .micro_batch = 5,
          .epochs = epochs,
          .trainers = trainers,
          .seed = 5,
          .show_progress = false};
}

std::int64_t steps_of(const report::StepDone& step) {
  return (step.epoch - 1) * step.steps_per_epoch + step.step;
}

/// Takes events until `steps` are committed.
void run_to(train::Run& run, std::int64_t steps) {
  while (!run.is_over()) {
    const auto event = run.next_event(1s);
    const auto* step = event ? std::get_if<report::StepDone>(&*event) : nullptr;
    if (step != nullptr && steps_of(*step) >= steps) return;
  }
}

/// What a run says beside its steps.
struct Lines {
  std::vector<std::string> faults;
  std::vector<std::string> warnings;
  bool has_checkpoint = false;
  auto listener() {
    return [this](const report::Event& event) {
      if (std::holds_alternative<report::Checkpointed>(event)) has_checkpoint = true;
      if (const auto* fault = std::get_if<report::Fault>(&event)) faults.push_back(fault->what);
      if (const auto* warning = std::get_if<report::Warning>(&event)) warnings.push_back(warning->text);
    };
  }
  bool has_fault(const std::string& text) const {
    for (const auto& fault : faults) {
      if (fault.find(text) != std::string::npos) return true;
    }
    return false;
  }
};

}  // namespace

TEST_CASE("a job goes on when the node of its program is killed: from its checkpoint, or from the beginning",
          "[runs]") {
  // Was: "the job is lost: run it again with resume", although the program had a new node within a second.
  auto session = init(0, nullptr);
  const auto undisturbed = train::run(session, Job{}, small(8));
  for (const bool checkpoints : {true, false}) {
    INFO((checkpoints ? "with" : "without") << " checkpoints");
    const e2e::TempFolder folder;
    Lines lines;
    auto options = small(8);
    if (checkpoints) options.checkpoint_folder = folder.path() + "/checkpoints";
    options.on_event = lines.listener();
    auto run = train::start(session, Job{}, options);
    run_to(run, 60);
    while (checkpoints && !lines.has_checkpoint && !run.is_over()) run.next_event(1s);
    ::kill(session.embedded()->node_pids().front(), SIGKILL);
    const auto result = run.wait();
    CHECK(result.state_hash == undisturbed.state_hash);
    CHECK(result.steps == undisturbed.steps);
    CHECK(result.metrics == undisturbed.metrics);
    CHECK(result.exit_code() == 0);
    CHECK(result.faults >= 1);
    CHECK_FALSE(result.weights.empty());
    INFO("faults: " << Catch::StringMaker<std::vector<std::string>>::convert(lines.faults));
    // Checkpoints are written beside the steps: how far they are depends on the disk.
    CHECK(lines.has_fault(checkpoints ? "the node of this program died: going on at step "
                                      : "the node of this program died: no checkpoint has the job's state"));
  }
  CHECK(train::run(session, Job{}, small(8)).state_hash == undisturbed.state_hash);
}

TEST_CASE("the snapshot of a job that holds has that epoch's figures, whoever reads its events", "[runs]") {
  // Was: the figures of the events that had been read, and nobody needs to read any.
  auto session = init(0, nullptr);
  const auto whole = train::run(session, Job{}, small(2));
  auto options = small(3);  // one more: it does not hold behind its last epoch
  options.hold = true;
  auto run = train::start(session, Job{}, options);
  const auto first = run.snapshot();
  CHECK(first.step() == 40);
  CHECK(first.metrics.contains("test/accuracy"));
  run.go_on();
  std::optional<train::Snapshot> second;
  REQUIRE(e2e::eventually([&] {
    second = run.snapshot();
    return second->step() == 80;
  }));
  CHECK(second->metrics == whole.metrics);
  run.stop();
  run.wait();
}

TEST_CASE("the first of two nodes is killed while a job starts, and again later", "[runs]") {
  auto session = init(0, nullptr, {.nodes = 2});
  const auto undisturbed = train::run(session, Job{}, small(2));
  Lines lines;
  auto options = small(2);
  options.on_event = lines.listener();
  auto run = train::start(session, Job{}, options);
  ::kill(session.embedded()->node_pids().front(), SIGKILL);
  run_to(run, 10);
  ::kill(session.embedded()->node_pids().front(), SIGKILL);
  CHECK(run.wait().state_hash == undisturbed.state_hash);
  CHECK(lines.faults.size() >= 2);
}

TEST_CASE("a first loader that is killed before it told of the data is tried again", "[runs]") {
  // Was: the job failed, where any later loader's death is survived.
  auto session = init(0, nullptr);
  const auto undisturbed = train::run(session, Job{}, small(1));
  const pid_t node = session.embedded()->node_pids().front();
  REQUIRE(e2e::eventually([&] { return e2e::children(node).empty(); }));
  Lines lines;
  auto options = small(1);
  options.on_event = lines.listener();
  auto run = train::start(session, Job{}, options);
  REQUIRE(e2e::eventually([&] { return !e2e::children(node).empty(); }));
  for (const pid_t child : e2e::children(node)) ::kill(child, SIGKILL);
  CHECK(run.wait().state_hash == undisturbed.state_hash);
  CHECK(lines.faults.size() == 1);
}

TEST_CASE("a run that is paused at any step goes on with the bits of an uninterrupted one", "[runs]") {
  auto session = init(0, nullptr);
  const auto undisturbed = train::run(session, Job{}, small(2));
  const pid_t node = session.embedded()->node_pids().front();
  for (const int at : {0, 1, 13, 40, 79}) {
    INFO("paused at step " << at);
    auto run = train::start(session, Job{}, small(1, 1 + at % 2));
    if (at > 0) run_to(run, at);
    const auto snapshot = run.pause();
    CHECK(snapshot.step() >= std::min(at, 40));
    CHECK(e2e::eventually([&] { return e2e::children(node).empty(); }));  // CPUs and memory are given back
    CHECK(run.is_over());
    run.resume(small(2, 2 - at % 2));  // more epochs, another number of trainers
    if (at == 13) {                    // and again
      run_to(run, 50);
      run.pause();
      run.resume();
    }
    const auto result = run.wait();
    CHECK(result.state_hash == undisturbed.state_hash);
    CHECK(result.metrics == undisturbed.metrics);
    CHECK(result.steps == undisturbed.steps);
    CHECK(result.faults == 0);
  }
  auto other = train::start(session, Job{}, small(1));
  CHECK_THROWS_AS(other.resume(), BadConfig);
  CHECK_THROWS_AS(other.clone(Job{}, small(1)), BadConfig);
  other.pause();
  auto seed = small(2);
  seed.seed = 6;
  CHECK_THROWS_WITH(other.resume(seed), Catch::Contains("with seed 5, this run has 6"));
  other.resume(small(2));
  CHECK(other.wait().state_hash == undisturbed.state_hash);
}

TEST_CASE("a run that goes on from a snapshot outlives the node of its program, and its trainers", "[runs]") {
  auto session = init(0, nullptr);
  const auto undisturbed = train::run(session, Job{}, small(2));
  auto run = train::start(session, Job{}, small(1));
  run_to(run, 20);
  run.pause();
  auto more = small(2);
  more.chaos = {{train::ChaosStep::What::kKillTrainer, 35, 0}};
  run.resume(more);
  run_to(run, 50);
  ::kill(session.embedded()->node_pids().front(), SIGKILL);
  const auto result = run.wait();
  CHECK(result.state_hash == undisturbed.state_hash);
  CHECK(result.faults >= 2);
}

TEST_CASE("a clone goes on from the same state with the options of its own struct", "[runs]") {
  auto session = init(0, nullptr);
  auto source = train::start(session, Job{.lr = 0.01}, small(1));
  run_to(source, 40);
  source.pause();
  // The same struct: an exact copy.
  auto same = source.clone(Job{.lr = 0.01}, small(2));
  auto other = source.clone(Job{.lr = 0.002}, small(2));
  auto again = source.clone(Job{.lr = 0.002}, small(2, 1));
  const auto from_other = other.wait();
  CHECK(from_other.state_hash == again.wait().state_hash);
  const auto undisturbed = train::run(session, Job{.lr = 0.01}, small(2));
  CHECK(same.wait().state_hash == undisturbed.state_hash);
  CHECK(from_other.state_hash != undisturbed.state_hash);
  CHECK(from_other.state_hash != train::run(session, Job{.lr = 0.002}, small(2)).state_hash);
  // It is not only told its rate: it trains with it. At no rate the weights stay those of the source.
  auto still = source.clone(Job{.lr = 0}, small(2));
  const auto stopped = still.wait();
  source.resume(small(1));
  const auto at_source = source.wait().load(Net());
  const auto at_clone = stopped.load(Net());
  CHECK(torch::equal(at_source->out->weight, at_clone->out->weight));
  // Its logical ranks are those of the source: steps mean the same.
  auto ranks = train::start(session, Job{}, small(1));
  ranks.pause();
  auto more_ranks = small(1);
  more_ranks.logical_ranks = 4;
  CHECK_THROWS_WITH(ranks.clone(Job{}, more_ranks), Catch::Contains("logical ranks"));
}

TEST_CASE("a job stops when a metric gets no better, with the best checkpoint kept; also when it was killed",
          "[runs]") {
  auto session = init(0, nullptr);
  const e2e::TempFolder folder;
  auto options = small(12);
  options.checkpoint_folder = folder.path() + "/whole";
  options.keep_checkpoints = 1;
  options.stop_early = {.metric = "test/loss", .patience = 2, .min_delta = 0.02};
  options.keep_best = "test/loss";
  std::vector<double> losses;
  options.on_event = [&](const report::Event& event) {
    if (const auto* epoch = std::get_if<report::EpochDone>(&event))
      losses.push_back(epoch->metrics.at("test/loss"));
  };
  const auto whole = train::run(session, Job{.lr = 0.1}, options);
  CHECK(whole.stopped_early);
  CHECK_FALSE(whole.stopped);
  REQUIRE(whole.steps < 12 * 40);
  CHECK(static_cast<std::int64_t>(losses.size()) * 40 == whole.steps);
  CHECK(whole.best_metric == *std::min_element(losses.begin(), losses.end()));
  REQUIRE(std::filesystem::exists(whole.best_checkpoint));
  checkpoint::PosixFileSystem files;
  checkpoint::CheckpointStore store(files, {options.checkpoint_folder});
  const auto best = store.load_manifest(whole.best_checkpoint).value();
  const auto best_epoch = std::min_element(losses.begin(), losses.end()) - losses.begin() + 1;
  CHECK(static_cast<std::int64_t>(best.manifest.position.global_step) == best_epoch * 40);
  CHECK(store.list().value().size() <= 2);                             // the newest and the best
  const Net held = train::load_weights(whole.best_checkpoint, Net());  // its manifest, or its tensors' file
  auto tensors = std::filesystem::path(whole.best_checkpoint).replace_extension(".safetensors");
  CHECK(torch::equal(held->hidden->weight, train::load_weights(tensors.string(), Net())->hidden->weight));
  CHECK_THROWS_WITH(train::load_weights(whole.best_checkpoint, Net(), "generator"),
                    Catch::Contains("name the module"));

  // The program's node dies in the middle: what the epochs before came to is in the manifests.
  auto killed = options;
  killed.checkpoint_folder = folder.path() + "/killed";
  auto run = train::start(session, Job{.lr = 0.1}, killed);
  run_to(run, whole.steps - 50);
  ::kill(session.embedded()->node_pids().front(), SIGKILL);
  const auto after = run.wait();
  CHECK(after.state_hash == whole.state_hash);
  CHECK(after.steps == whole.steps);
  CHECK(after.stopped_early);
  CHECK(after.best_metric == whole.best_metric);

  // Resumed as it ended, it ends at once; with more patience it goes on.
  auto resumed = options;
  resumed.resume = true;
  CHECK(train::run(session, Job{.lr = 0.1}, resumed).steps == whole.steps);
  resumed.stop_early.patience = 3;
  CHECK(train::run(session, Job{.lr = 0.1}, resumed).steps > whole.steps);
}

TEST_CASE("a metric that is not there is found at the start, or after an epoch that is saved", "[runs]") {
  // Was: the epoch's work was lost, the folder held the lock alone. The Job counts nothing of its own, so its
  // metrics are known beforehand; what a LateJob counts shows at the end of an epoch.
  auto session = init(0, nullptr);
  auto options = small(2);
  bool trained = false;
  options.on_event = [&](const report::Event& event) {
    trained = trained || std::holds_alternative<report::StepDone>(event);
  };
  options.stop_early = {.metric = "test/recall"};
  CHECK_THROWS_WITH(
      train::run(session, Job{}, options),
      Catch::Contains("there is no metric 'test/recall': the job has train/loss, test/loss, test/accuracy"));
  options.stop_early = {.metric = "loss"};
  const LateJob counts;
  CHECK_THROWS_WITH(train::run(session, counts, options), Catch::Contains("train/NAME"));
  CHECK_FALSE(trained);

  const e2e::TempFolder checkpoints;
  options.stop_early = {.metric = "test/recall"};
  options.checkpoint_folder = checkpoints.path() + "/job";
  CHECK_THROWS_WITH(train::run(session, counts, options),
                    Catch::Contains("there is no metric 'test/recall': the job has test/loss, train/loss") &&
                        Catch::Contains("resume goes on at step 12"));
  options.stop_early = {.metric = "test/loss", .patience = 5};
  options.resume = true;
  CHECK(train::run(session, counts, options).steps == 2 * LateJob::kSteps);

  options = small(2);
  options.stop_early = {.metric = "test/loss", .patience = 0};
  CHECK_THROWS_AS(train::run(session, Job{}, options), BadConfig);
  options.stop_early = {};
  options.keep_best = "test/loss";
  CHECK_THROWS_WITH(train::run(session, Job{}, options), Catch::Contains("without a checkpoint folder"));
}

TEST_CASE("what comes back of a job is its state, also when a replacement started just before the end",
          "[runs]") {
  // Was: the state was asked of any trainer, so in half of these runs it was a newcomer's: its initial
  // weights or those of an earlier step, with the right hash beside them.
  auto session = init(0, nullptr);
  auto options = small(1);
  torch::Tensor weights;
  for (int i = 0; i < 5; ++i) {
    const e2e::TempFolder folder;
    if (i > 0) options.chaos = {{train::ChaosStep::What::kKillTrainer, 5, -1}};
    auto run = train::start(session, LateJob{.folder = i == 0 ? "" : folder.path()}, options);
    std::optional<train::Snapshot> snapshot;
    if (i % 2 == 1) snapshot = run.pause_at_end();
    const auto result = run.wait();
    Net net = result.load(Net());
    if (i == 0) weights = net->hidden->weight.detach().clone();
    CHECK(result.steps == LateJob::kSteps);
    CHECK(torch::equal(net->hidden->weight, weights));
    CHECK((!snapshot || snapshot->step() == LateJob::kSteps));
    const e2e::TempFolder saved;
    result.save(saved.path() + "/late.safetensors");
    const Net read = train::load_weights(saved.path() + "/late.safetensors", Net());
    CHECK(torch::equal(read->hidden->weight, weights));
  }
  CHECK_THROWS_WITH(train::RunResult{}.save("none.safetensors"), Catch::Contains("the run has no weights"));
}

namespace {

struct Idle {
  int one() const { return 1; }
};

}  // namespace

// It started once its run was over, was told to nobody, and held its CPU as long as the program lived.
TEST_CASE("a trainer for which there was no room does not start after its run", "[runs]") {
  auto session = init(0, nullptr, {.cpus_per_node = 1});
  (void)train::run(session, Job{},
                   {.logical_ranks = 2,
                    .micro_batch = 20,
                    .epochs = 1,
                    .trainers = 2,
                    .trainer_cpus = 1,
                    .show_progress = false});
  const auto next = session.spawn<Idle>({.num_cpus = 1, .isolated = true});
  CHECK(next.call<&Idle::one>().get() == 1);
}

TEST_CASE("a signal ends a run in order, whatever it is waited for with", "[runs]") {
  // Was: in wait() alone. In the others no handler was there, and the program died without a checkpoint.
  const auto of_catch = ::signal(SIGTERM, SIG_DFL);
  auto session = init(0, nullptr);
  const e2e::TempFolder folder;
  int number = 0;
  const auto start = [&](bool raises = true) {
    auto options = small(1000);
    options.checkpoint_folder = folder.path() + "/" + std::to_string(++number);
    options.on_event = [raises](const report::Event& event) {
      if (const auto* step = std::get_if<report::StepDone>(&event);
          step != nullptr && steps_of(*step) == 3 && raises)
        ::raise(SIGTERM);
    };
    return train::start(session, Job{}, options);
  };
  const auto ended = [&](train::Run& run) {
    const auto result = run.wait();
    CHECK(result.stopped);
    CHECK(result.exit_code() == 128 + SIGTERM);
    CHECK(result.saved_step == result.steps);
    CHECK_FALSE(result.unsaved);
  };
  auto by_events = start();
  while (!by_events.is_over()) by_events.next_event(1h);
  ended(by_events);

  auto first = start();
  auto second = start(false);  // a second signal, before both have ended, would end this program at once
  std::vector<train::Run*> both{&first, &second};
  while (!both.empty()) std::erase(both, &train::wait_any(both));  // one signal is for both
  CHECK(first.signal() == SIGTERM);
  ended(first);
  CHECK(second.wait().stopped);

  auto at_end = start();
  const auto snapshot = at_end.pause_at_end();
  CHECK(snapshot.step() >= 3);
  CHECK(snapshot.step() < 1000 * 40);
  ended(at_end);
  struct sigaction after {};
  ::sigaction(SIGTERM, nullptr, &after);
  CHECK(after.sa_handler == SIG_DFL);
  ::signal(SIGTERM, of_catch);
}

TEST_CASE("program: trains until it is told to end", "[.program]") {
  ::signal(SIGTERM, SIG_DFL);  // not Catch's
  auto session = init(0, nullptr, {.nodes = 2});
  auto options = small(1000);
  options.checkpoint_folder = e2e::program_folder() + "/checkpoints";
  options.on_event = [](const report::Event& event) {
    const auto* step = std::get_if<report::StepDone>(&event);
    if (step != nullptr && steps_of(*step) == 3) e2e::write_file(e2e::program_folder() + "/trains", "yes");
  };
  const auto result = train::run(session, Job{}, options);
  CHECK(result.exit_code() == 128 + SIGTERM);
  CHECK(result.steps >= 3);
  CHECK(result.saved_step == result.steps);
  CHECK(result.faults == 0);
}

TEST_CASE("SIGTERM to every process of a program ends its run in order", "[runs]") {
  // As systemd, Slurm and `kill -1` send it. Was: head, nodes and workers took it for their own, and ended
  // before the program had saved anything.
  const e2e::TempFolder folder;
  e2e::Program program("program: trains until it is told to end", folder.path());
  REQUIRE(e2e::eventually([&] { return !e2e::read_file(folder / "trains").empty(); }));
  auto all = program.processes();
  CHECK(all.size() >= 8);  // a head, two nodes, three fork servers, two trainers
  std::erase(all, program.pid());
  all.push_back(program.pid());  // at last: the others have it by then
  for (const pid_t pid : all) ::kill(pid, SIGTERM);
  CHECK(program.wait(60s) == "exit code 0");
  CHECK_THAT(e2e::read_file(folder / "out"), Catch::Contains("All tests passed"));
  CHECK(e2e::read_file(folder / "err").empty());
}

TEST_CASE("program: joins a cluster and has a trainer killed", "[.program]") {
  const std::string folder = e2e::program_folder();
  std::string address = e2e::read_file(folder + "/address");
  address.pop_back();
  auto session = init(0, nullptr, {.address = address, .folder = folder});
  auto options = small(1);
  options.chaos = {{train::ChaosStep::What::kKillTrainer, 5, 0}, {train::ChaosStep::What::kKillLoader, 9}};
  CHECK(train::run(session, Job{}, options).faults >= 2);
  options.chaos = {{train::ChaosStep::What::kKillHead, 5}};
  CHECK_THROWS_WITH(train::run(session, Job{}, options), Catch::Contains("it has joined another one"));
}

TEST_CASE("a fault on purpose hits a trainer whose pid is of another host", "[runs]") {
  // Was: the program signalled that number on its own host, and so nobody or a stranger. The program runs
  // where the cluster's processes have no pids.
  const std::string unshare = "unshare --pid --fork --mount-proc ";
  if (e2e::shell(unshare + "true").code != 0) {
    WARN("not shown: unshare is not permitted here");
    return;
  }
  const e2e::TempFolder folder;
  const std::string cluster = folder.path() + "/cluster";
  const auto started = e2e::shell(TROUPE_CLI " start --head --port 0 --cpus 2 --detach --folder " + cluster);
  INFO(started.output);
  REQUIRE(started.code == 0);
  const auto ran = e2e::shell("TROUPE_TEST_FOLDER=" + cluster + " timeout 120 " + unshare +
                              std::filesystem::read_symlink("/proc/self/exe").string() +
                              " 'program: joins a cluster and has a trainer killed'");
  e2e::shell(TROUPE_CLI " stop --folder " + cluster);
  INFO(ran.output);
  CHECK(ran.code == 0);
}

TEST_CASE("a run whose session has ended says so", "[runs]") {
  // resume() was a SIGSEGV, and wait() spoke of a fork.
  std::optional<DriverSession> session(init(0, nullptr));
  train::Run paused = train::start(*session, Job{}, small(1));
  paused.pause();
  train::Run runs = train::start(*session, Job{}, small(1));
  run_to(runs, 2);
  session.reset();
  CHECK_THROWS_WITH(paused.resume(), Catch::Contains("its session has ended"));
  CHECK_THROWS_WITH(runs.stop(), Catch::Contains("its session has ended"));
  CHECK_THROWS_WITH(runs.pause(), Catch::Contains("its session has ended"));
  CHECK_THROWS_WITH(runs.wait(), Catch::Contains("its session has ended"));
}

}  // namespace runs_test
