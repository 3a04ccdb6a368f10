// A job whose own code hangs, crashes or throws: on real processes.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "actors/data/digits.hpp"
#include "actors/train/api/train.hpp"
#include "runtime/core/random.hpp"
#include "tests/e2e/support.hpp"

namespace training_failures_test {

using namespace troupe;
using Catch::Contains;
using e2e::TempFolder;

namespace {

enum class Place : std::uint8_t { kNowhere, kModel, kShape, kMode, kLoss, kWeights, kGet, kDataset };
enum class Fault : std::uint8_t { kHang, kSlow, kCrash, kAbort, kExit, kFork, kThrow, kThrowOfTorch };

/// What goes wrong, where.
struct Planned {
  Place place = Place::kNowhere;
  Fault fault = Fault::kHang;
  std::int64_t step = 0;  ///< kLoss: from which on
  std::string once;       ///< a file: only the first one to make it fails; empty: all do

  bool is_due() const {
    if (once.empty()) return true;
    const int fd = ::open(once.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) ::close(fd);
    return fd >= 0;
  }
  void fail_at(Place where) const {
    if (where != place || !is_due()) return;
    switch (fault) {
      case Fault::kHang:
        for (;;) ::pause();
      case Fault::kSlow:
        return std::this_thread::sleep_for(std::chrono::seconds(40));
      case Fault::kCrash:
        ::signal(SIGSEGV, SIG_DFL);
        ::raise(SIGSEGV);
        return;
      case Fault::kAbort:
        std::fputs("the tables are inconsistent\n", stderr);
        std::abort();
      case Fault::kExit:
        std::exit(0);
      case Fault::kFork:
        (void)::fork();  // and the child goes on, too
        return;
      case Fault::kThrow:
        throw std::runtime_error("no such luck");
      case Fault::kThrowOfTorch:
        TORCH_CHECK(false, "shapes that do not fit");
    }
  }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t classes = 10) : out(28 * 28, classes) { register_module("out", out); }
  torch::Tensor forward(const torch::Tensor& x) { return out(x.flatten(1)); }
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

struct FaultyJob {
  Planned planned;
  /// The first process that makes a model stays in this folder, the others go elsewhere; empty: all stay.
  std::string first_here{};

  Net model() const {
    if (!first_here.empty() && ::mkdir((first_here + "/first").c_str(), 0700) != 0)
      std::filesystem::current_path(first_here + "/elsewhere");
    planned.fail_at(Place::kModel);
    return Net(planned.place == Place::kShape && planned.is_due() ? 12 : 10);
  }
  auto optimizer(Net& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05));
  }
  torch::Tensor loss(Net& net, const data::Batch& batch, train::Leaf& at) const {
    if (at.step >= planned.step && at.rank == 1) planned.fail_at(Place::kLoss);
    if (at.step >= planned.step && at.rank == 1 && planned.place == Place::kWeights) {
      const torch::NoGradGuard no_grad;
      net->out->weight.add_(0.01);
    }
    if (at.step == planned.step && at.rank == 1 && planned.place == Place::kMode) net->eval();
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target) *
           (net->is_training() ? 1 : 2);
  }
  struct Data {
    Planned planned;
    std::shared_ptr<data::Digits> digits;
    bool trains = true;
    std::int64_t size() const { return digits->size(); }
    data::Sample get(std::int64_t index, data::Random& random) const {
      if (trains && index == 33) planned.fail_at(Place::kGet);
      return digits->get(index, random);
    }
  };
  Data dataset(data::Split split) const {
    planned.fail_at(Place::kDataset);
    const bool trains = split == data::Split::kTrain;
    return {planned, std::make_shared<data::Digits>(split, data::DigitsOptions{.size = trains ? 200 : 50}),
            trains};
  }
};

train::TrainOptions quick() {
  train::TrainOptions options{
      .logical_ranks = 2, .micro_batch = 5, .epochs = 2, .trainers = 2, .seed = 3, .show_progress = false};
  options.deadlines.hang = std::chrono::seconds(3);
  return options;
}

struct Seen {
  train::RunResult result;
  std::string failure;
  std::vector<std::string> told;  ///< warnings, faults and resumes
};

Seen run(const DriverSession& session, train::TrainOptions options, const FaultyJob& job) {
  Seen seen;
  options.on_event = [&, also = options.on_event](const report::Event& event) {
    if (const auto* warning = std::get_if<report::Warning>(&event)) seen.told.push_back(warning->text);
    if (const auto* fault = std::get_if<report::Fault>(&event)) seen.told.push_back(fault->what);
    if (const auto* resumed = std::get_if<report::Resumed>(&event))
      seen.told.push_back("resumed at " + std::to_string(resumed->global_step) + ", epoch " +
                          std::to_string(resumed->epoch));
    if (also) also(event);
  };
  try {
    seen.result = train::run(session, job, options);
  } catch (const Error& error) {
    seen.failure = error.what();
  }
  std::string all;
  for (const auto& line : seen.told) all += line + "\n";
  UNSCOPED_INFO("failure: " << seen.failure << "\ntold:\n" << all);
  return seen;
}

std::int64_t count(const Seen& seen, const std::string& words) {
  return std::count_if(seen.told.begin(), seen.told.end(),
                       [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

}  // namespace

TEST_CASE("what hangs once is found by its missing progress, told and counted, and changes no bit",
          "[training]") {
  auto session = init(0, nullptr);
  const auto plain = run(session, quick(), {});
  REQUIRE(plain.failure.empty());
  CHECK(plain.result.expired == 0);
  const TempFolder folder;
  const auto loss = run(session, quick(), {Place::kLoss, Fault::kHang, 5, folder.path() + "/loss"});
  CHECK(loss.result.state_hash == plain.result.state_hash);
  CHECK(loss.result.expired == 1);
  CHECK(loss.result.faults == 1);
  CHECK(count(loss, "is killed: it has shown no progress for 3 s (deadlines.hang) in step 6, leaf 1") == 2);
  const auto get = run(session, quick(), {Place::kGet, Fault::kHang, 0, folder.path() + "/get"});
  CHECK(get.result.state_hash == plain.result.state_hash);
  CHECK(get.result.expired == 1);
  CHECK(count(get, "it has shown no progress for 3 s (deadlines.hang) in the batch of epoch 1, step ") >= 1);
}

// It trained to another hash with each number of trainers, and exit code 0.
TEST_CASE("a loss() that changes the net's weights ends the job; what get() throws is not loss()'s",
          "[training]") {
  auto session = init(0, nullptr);
  const auto weights = run(session, quick(), {Place::kWeights, Fault::kThrow, 5, ""});
  CHECK_THAT(weights.failure, Contains("FaultyJob::loss") && Contains("changes parameters of the net") &&
                                  Contains("step 6, leaf 1"));
  const auto get = run(session, quick(), {Place::kGet, Fault::kThrow, 0, ""});
  CHECK_THAT(get.failure,
             Contains("sample 33 could not be read") && Contains("no such luck") && !Contains("loss threw"));
}

// By hand (`test_training "[slow]"`): 40 s each.
// The trainers of rank 0 alone were looked at.
TEST_CASE("state that escapes in one trainer, some steps after the first, ends the job", "[training]") {
  auto session = init(0, nullptr);
  const auto mode = run(session, quick(), {Place::kMode, Fault::kThrow, 12, ""});
  CHECK_THAT(mode.failure, Contains("the job keeps state that its TrainState lacks") && Contains("step 17"));
  const auto late = run(session, quick(), {Place::kMode, Fault::kThrow, 30, ""});
  CHECK_THAT(late.failure, Contains("the job keeps state that its TrainState lacks") && Contains("step 40"));
}

// It wrote into the memory of its parent's group: another hash, and exit code 0.
TEST_CASE("a forked child that comes back from loss() ends, and changes no bit", "[training]") {
  auto session = init(0, nullptr);
  const auto plain = run(session, quick(), {});
  const TempFolder folder;
  const auto forks = run(session, quick(), {Place::kLoss, Fault::kFork, 5, folder.path() + "/forked"});
  CHECK(forks.failure.empty());
  CHECK(forks.result.state_hash == plain.result.state_hash);
}

// Both answered the trainers: a job failed after 101 s without a word of the dataset, another was silent.
TEST_CASE("a forked child that comes back from get() ends, and the job says whose code it was",
          "[training]") {
  auto session = init(0, nullptr);
  const auto forks = run(session, quick(), {Place::kGet, Fault::kFork, 0, ""});
  CHECK_THAT(forks.failure, Contains("FaultyJob::dataset forked a process that came back from its code"));
}

// It failed in the collectives, with the words of their options.
TEST_CASE("a model() that is another one in each process ends the job, with the part that differs",
          "[training]") {
  auto session = init(0, nullptr);
  const TempFolder folder;
  const auto shape = run(session, quick(), {Place::kShape, Fault::kThrow, 0, folder.path() + "/made"});
  CHECK_THAT(shape.failure, Contains("two trainers made other models of the same job") &&
                                Contains("'out.weight' differs, in its name, its type or its shape"));
}

TEST_CASE("a leaf and a get() of 40 s pass with the deadlines as they are", "[.slow]") {
  auto session = init(0, nullptr);
  auto options = quick();
  options.deadlines = {};
  const TempFolder folder;
  for (const Place place : {Place::kLoss, Place::kGet}) {
    const auto seen =
        run(session, options,
            {place, Fault::kSlow, 5, folder.path() + "/" + std::to_string(static_cast<int>(place))});
    CHECK(seen.failure.empty());
    CHECK(seen.told.empty());
    CHECK(seen.result.expired == 0);
    CHECK(seen.result.faults == 0);
  }
}

TEST_CASE("the job's own crashes end it after the third one at the same place, with its last words",
          "[training]") {
  auto session = init(0, nullptr);
  const auto loss = run(session, quick(), {Place::kLoss, Fault::kCrash, 5, ""});
  CHECK_THAT(loss.failure, Contains("3 failures at step 6, the last one: trainer ") &&
                               Contains("killed by signal 11 (SIGSEGV)"));
  CHECK(loss.result.steps == 0);
  const auto exits = run(session, quick(), {Place::kLoss, Fault::kExit, 5, ""});
  CHECK_THAT(exits.failure,
             Contains("3 failures at step 6, the last one: trainer ") && Contains("exit code 0"));
  const auto get = run(session, quick(), {Place::kGet, Fault::kAbort, 0, ""});
  CHECK_THAT(get.failure, Contains("3 failures at step ") && Contains("the last one: loader ") &&
                              Contains("last line of its output: the tables are inconsistent"));
  const auto hangs = run(session, quick(), {Place::kGet, Fault::kHang, 0, ""});
  CHECK_THAT(hangs.failure, Contains("3 failures at step ") && Contains("it has shown no progress for 3 s"));
  const auto model = run(session, quick(), {Place::kModel, Fault::kThrow, 0, ""});
  CHECK_THAT(model.failure, Contains("3 failures before the first step was through") &&
                                Contains("FaultyJob::model") && Contains("no such luck"));
}

TEST_CASE("what the job throws is told with whose code it was and where, without the frames of a stack",
          "[training]") {
  auto session = init(0, nullptr);
  const auto loss = run(session, quick(), {Place::kLoss, Fault::kThrow, 2, ""});
  CHECK_THAT(loss.failure, Contains("FaultyJob::loss threw std::runtime_error in trainer ") &&
                               Contains(", step 3, leaf 1: no such luck"));
  for (const Place place : {Place::kLoss, Place::kGet, Place::kModel, Place::kDataset}) {
    const auto torch = run(session, quick(), {place, Fault::kThrowOfTorch, 2, ""});
    CHECK_THAT(torch.failure, Contains("shapes that do not fit") && !Contains("frame #") &&
                                  !Contains("Exception raised from"));
  }
}

namespace {

/// It throws in criterion(), or in apply().
struct Judged {
  FaultyJob job{};
  bool throws = true;
  Net model() const { return Net(); }
  auto optimizer(Net& net) const { return torch::optim::SGD(net->parameters(), 0.05); }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    if (throws) throw std::runtime_error("out of patience");
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  void apply(train::Apply& a) const {
    if (!throws) throw std::runtime_error("out of memory");
    a.step();
  }
  FaultyJob::Data dataset(data::Split split) const { return job.dataset(split); }
};

}  // namespace

// Was: "Judged::loss threw", of a job that has no loss().
TEST_CASE("an error names the member that the job has", "[training]") {
  auto session = init(0, nullptr);
  const auto failure = [&](const Judged& job) {
    return e2e::message_of([&] { train::run(session, job, quick()); });
  };
  CHECK_THAT(failure({}), Contains("Judged::criterion threw std::runtime_error in trainer ") &&
                              Contains(", step 1, leaf ") && Contains(": out of patience"));
  CHECK_THAT(failure({.throws = false}),
             Contains("Judged::apply threw std::runtime_error in trainer ") && Contains(": out of memory"));
}

TEST_CASE("a dataset() that hangs ends the job at the deadline of a start", "[training]") {
  auto session = init(0, nullptr);
  auto options = quick();
  options.deadlines.spawn = options.deadlines.gather = std::chrono::seconds(3);
  const auto seen = run(session, options, {Place::kDataset, Fault::kHang, 0, ""});
  CHECK_THAT(seen.failure, Contains("the first loader is given up: it did not start within 3 s"));
}

TEST_CASE("SIGTERM before the first step ends the job with 128 + 15", "[training]") {
  const auto of_catch = ::signal(SIGTERM, SIG_DFL);
  auto session = init(0, nullptr);
  auto options = quick();
  options.on_event = [](const report::Event& event) {
    if (std::holds_alternative<report::JobStarted>(event)) ::raise(SIGTERM);
  };
  const TempFolder folder;
  // The data hang: nothing can go on.
  const auto seen = run(session, options, {Place::kGet, Fault::kHang, 0, folder.path() + "/get"});
  CHECK(seen.failure.empty());
  CHECK(seen.result.stopped);
  CHECK(seen.result.exit_code() == 128 + SIGTERM);
  CHECK(seen.result.state_hash.empty());
  ::signal(SIGTERM, of_catch);
}

TEST_CASE("a job whose checkpoints cannot be written says so and does not end with 0", "[training]") {
  auto session = init(0, nullptr);
  const TempFolder folder;
  auto options = quick();
  options.checkpoint_folder = folder.path() + "/checkpoints";
  bool spoiled = false;
  options.on_event = [&](const report::Event& event) {
    if (!std::holds_alternative<report::StepDone>(event) || std::exchange(spoiled, true)) return;
    std::filesystem::remove_all(options.checkpoint_folder);
    std::ofstream(options.checkpoint_folder) << "a file is in the way";
  };
  const auto seen = run(session, options, {});
  CHECK(seen.failure.empty());
  CHECK(seen.result.failed_checkpoints == 2);
  CHECK(seen.result.saved_step == -1);
  CHECK(seen.result.unsaved);
  CHECK(seen.result.exit_code() == 1);
  CHECK(count(seen, "no checkpoint of step 40") == 1);
}

// Was: exit code 0, and a warning that scrolled away.
TEST_CASE("a log that cannot be written is told once, and the job does not end with 0", "[training]") {
  auto session = init(0, nullptr);
  auto options = quick();
  options.events_json = "/dev/full";
  const auto seen = run(session, options, {});
  CHECK(seen.failure.empty());
  CHECK(seen.result.steps == 40);
  REQUIRE(seen.result.incomplete_logs.size() == 1);
  CHECK_THAT(seen.result.incomplete_logs[0], Contains("'/dev/full'") && Contains("No space left on device"));
  CHECK(count(seen, "cannot write '/dev/full'") == 1);
  CHECK(seen.result.exit_code() == 1);
}

TEST_CASE("two runs do not share a checkpoint folder", "[training]") {
  auto session = init(0, nullptr);
  const TempFolder folder;
  auto options = quick();
  options.checkpoint_folder = folder.path();
  options.epochs = 1000;
  {
    train::Run first = train::start(session, FaultyJob{}, options);
    const auto second = run(session, options, {});
    CHECK_THAT(second.failure, Contains("the checkpoint folder '" + folder.path() + "' is in use: run-") &&
                                   Contains("(pid " + std::to_string(::getpid()) + " on host ") &&
                                   Contains("; this is run-"));
    first.stop();
    first.wait();
  }
  CHECK(checkpoint::FolderLock::take(folder.path(), "the next one").ok());
}

TEST_CASE("options that make no sense are refused by name", "[training]") {
  auto session = init(0, nullptr);
  const auto refused = [&](auto change) {
    auto options = quick();
    change(options);
    return run(session, options, {}).failure;
  };
  CHECK_THAT(refused([](auto& o) { o.min_trainers = 3; }),
             Contains("min_trainers = 3") && Contains("1 to trainers = 2"));
  CHECK_THAT(refused([](auto& o) { o.threads = -1; }), Contains("threads = -1"));
  CHECK_THAT(refused([](auto& o) { o.deadlines.hang = std::chrono::milliseconds(100); }),
             Contains("deadlines.hang = 0.1 s") && Contains("at least 3 s"));
  CHECK_THAT(refused([](auto& o) { o.deadlines.collective = std::chrono::seconds(2); }),
             Contains("deadlines.collective = 2 s is shorter than deadlines.hang = 3 s"));
  auto two_threads = quick();
  two_threads.threads = 2;
  two_threads.exact = false;
  two_threads.min_trainers = 2;
  CHECK(run(session, two_threads, {}).failure.empty());
}

// Was: the program locked and listed its folder, rank 0 wrote into the one of its own host; a resume found
// nothing.
TEST_CASE("trainers that see another checkpoint folder are found at the start", "[training]") {
  const auto before = std::filesystem::current_path();
  auto session = init(0, nullptr);  // whose processes stay where the program is now
  const TempFolder here;
  std::filesystem::current_path(here.path());
  auto options = quick();
  options.checkpoint_folder = "/proc/self/cwd/checkpoints";  // another one in each working directory
  int steps = 0;
  options.on_event = [&](const report::Event& event) {
    steps += std::holds_alternative<report::StepDone>(event) ? 1 : 0;
  };
  const auto seen = run(session, options, {});
  std::filesystem::current_path(before);
  CHECK_THAT(seen.failure, Contains("another folder than this program's") &&
                               Contains("/proc/self/cwd/checkpoints") &&
                               Contains("a disk that all hosts share"));
  CHECK(steps == 0);
}

TEST_CASE("trainers on other disks train on: one that sees the folder writes, and the others get its state",
          "[training]") {
  const auto before = std::filesystem::current_path();
  const TempFolder here;
  const std::string where = std::filesystem::canonical(here.path()).string();
  std::filesystem::create_directory(where + "/elsewhere");
  std::filesystem::current_path(where);
  auto session = init(0, nullptr);  // whose processes begin in that folder
  auto options = quick();
  options.rehearse = false;
  const auto undisturbed = run(session, options, {});
  const FaultyJob job{.first_here = where};
  options.checkpoint_folder = "/proc/self/cwd/checkpoints";  // another one in each working directory
  options.epochs = 1;
  const auto first = run(session, options, job);
  CHECK(first.failure.empty());
  CHECK(first.result.failed_checkpoints == 0);
  CHECK(std::filesystem::exists(where + "/checkpoints"));
  CHECK_FALSE(std::filesystem::exists(where + "/elsewhere/checkpoints"));

  std::filesystem::remove(where + "/first");
  options.epochs = 2;
  options.resume = true;
  const auto second = run(session, options, job);
  CHECK(count(second, "not every trainer can read the checkpoint") == 0);  // nobody tries in vain
  CHECK(second.result.state_hash == undisturbed.result.state_hash);

  // With shards nobody has a whole state to give: the one that reads the file passes it on part by part.
  for (const auto shard : {train::Shard::kOptimizer, train::Shard::kGradients, train::Shard::kParameters}) {
    CAPTURE(static_cast<int>(shard));
    std::filesystem::remove(where + "/first");
    std::filesystem::remove_all(where + "/checkpoints");
    auto sharded = options;
    sharded.shard = shard;
    sharded.shard_min_num_params = 1;
    sharded.resume = false;
    sharded.epochs = 1;
    CHECK(run(session, sharded, job).failure.empty());
    std::filesystem::remove(where + "/first");
    sharded.resume = true;
    sharded.epochs = 2;
    const auto on = run(session, sharded, job);
    CHECK(on.failure.empty());
    CHECK(on.result.failed_checkpoints == 0);
    CHECK(on.result.state_hash == undisturbed.result.state_hash);
  }

  // The last one that sees the folder dies; those that come in its place do not see it either.
  std::filesystem::remove(where + "/first");
  std::filesystem::remove_all(where + "/checkpoints");
  options.resume = false;
  options.chaos = {{train::ChaosStep::What::kKillTrainer, 25, 0}};
  const auto third = run(session, options, job);
  std::filesystem::current_path(before);
  CHECK(third.result.state_hash == undisturbed.result.state_hash);
  CHECK(third.result.failed_checkpoints > 0);
  CHECK(count(third, "no trainer that is left sees the folder") > 0);
}

}  // namespace training_failures_test
