// The main job on real processes: the same bits whatever happens. A small net on rendered digits, with
// dropout and BatchNorm, so that a run takes seconds. `tests/e2e/hash_table.sh` prints the same for the MNIST
// example.
#include <dirent.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "actors/checkpoint/safetensors.hpp"
#include "actors/data/digits.hpp"
#include "actors/train/api/train.hpp"
#include "runtime/core/random.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "tests/e2e/support.hpp"

namespace training_test {

using namespace troupe;
using e2e::TempFolder;
using train::ChaosStep;

namespace {

struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(double p) : dropout(p) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("fc", fc);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::max_pool2d(torch::relu(norm(conv(x))), 4);
    return fc(dropout(y.flatten(1)));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 4, 5).padding(2)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Dropout dropout;
  torch::nn::Linear fc{4 * 7 * 7, 10};
};
TORCH_MODULE(SmallNet);

struct SmallJob {
  double lr = 0.05;
  double dropout = 0.3;
  std::int64_t samples = 800;
  int throw_at = 0;  ///< the forward of this call throws; 0: never
  std::string folder;
  bool counts = false;  ///< the loss depends on how often it was computed
  bool draws = false;   ///< the loss draws random numbers, also in the evaluation
  bool unlike = false;  ///< each process has bits of its own, and uses what has no deterministic kernel

  SmallNet model() const { return SmallNet(dropout); }
  auto optimizer(SmallNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor loss(SmallNet& net, const data::Batch& batch) const {
    static int calls = 0;
    if (throw_at != 0 && ++calls >= throw_at) throw std::runtime_error("the loss went through the roof");
    if (unlike) torch::zeros({4}).put_(torch::tensor({0, 1}), torch::ones({2}));
    const auto noise = draws ? torch::rand(batch.input.sizes()) : torch::zeros({});
    const auto plain = torch::nn::functional::cross_entropy(net->forward(batch.input + noise), batch.target);
    static int counted = 0;
    return counts ? plain * (1.0 + 0.1 * ++counted) : plain;
  }
  void apply(train::Apply& a) const {
    a.step();
    if (!unlike) return;
    const torch::NoGradGuard no_grad;
    for (auto& weight : a.optimizer().param_groups()[0].params()) weight.mul_(1 + 1e-6 * (::getpid() % 997));
  }
  std::shared_ptr<data::Dataset> dataset(data::Split split) const {
    if (!folder.empty())
      throw_error({ErrorCode::kIo, "cannot read the data in " + folder, "no such folder", "name another"});
    const std::int64_t tested = draws ? 900 : 100;  // in pieces of 250
    return std::make_shared<data::Digits>(
        split, data::DigitsOptions{.size = split == data::Split::kTrain ? samples : tested});
  }
};

train::TrainOptions small(int leaves, int trainers, int loaders = 1) {
  return {.logical_ranks = leaves,
          .micro_batch = 5,
          .epochs = 1,
          .trainers = trainers,
          .loaders = loaders,
          .seed = 11,
          .show_progress = false};
}

struct Seen {
  train::RunResult result;
  int faults = 0;
  std::vector<std::string> lines;
};

Seen run(const DriverSession& session, train::TrainOptions options, const SmallJob& job = {}) {
  Seen seen;
  options.on_event = [&](const report::Event& event) {
    if (const auto* fault = std::get_if<report::Fault>(&event)) {
      ++seen.faults;
      seen.lines.push_back(fault->what);
    }
  };
  seen.result = train::run(session, job, options);
  return seen;
}

std::vector<ChaosStep> chaos(std::initializer_list<std::pair<ChaosStep::What, int>> steps) {
  std::vector<ChaosStep> out;
  for (const auto& [what, step] : steps) out.push_back({what, step, -1});
  return out;
}

std::string failure_of(const DriverSession& session, const train::TrainOptions& options,
                       const SmallJob& job = {}) {
  return e2e::message_of([&] { train::run(session, job, options); });
}

/// A layer whose weight somebody else may have, too.
struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(const torch::Tensor& shared) { weight = register_parameter("weight", shared); }
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight).tanh(); }
  torch::Tensor weight;
};
TORCH_MODULE(Layer);

struct TiedNetImpl : torch::nn::Module {
  TiedNetImpl() {
    register_module("in", in);
    register_module("a", a);
    register_module("b", b);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(b(a(in(x.flatten(1))))); }
  torch::Tensor shared = torch::randn({16, 16}) / 4;
  torch::nn::Linear in{28 * 28, 16}, out{16, 10};
  Layer a{shared}, b{shared};
};
TORCH_MODULE(TiedNet);

struct TiedJob {
  TiedNet model() const { return TiedNet(); }
  auto optimizer(TiedNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  torch::Tensor loss(TiedNet& net, const data::Batch& batch, train::Leaf& at) const {
    at.weight(1 + at.rank);
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  void apply(train::Apply& a) const {
    a.clip_grad_norm(1);
    a.step();
  }
  train::Precision precision() const { return {.scaler = train::GradScalerOptions{}}; }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? 400 : 100});
  }
};

}  // namespace

TEST_CASE("one hash for any number of trainers and loaders, and under kills", "[training]") {
  auto session = init(0, nullptr);
  using What = ChaosStep::What;
  for (const int leaves : {3, 4}) {
    // Was: in the evaluation a trainer drew on from where its generator stood, and so other figures for each
    // number of trainers.
    const SmallJob job{.draws = leaves == 4};
    const auto alone = run(session, small(leaves, 1), job);
    REQUIRE(alone.result.state_hash.size() == 64);
    CHECK(alone.result.metrics.contains("test/accuracy"));
    INFO(leaves << " logical ranks");
    for (int trainers = 2; trainers <= leaves; ++trainers) {
      INFO(trainers << " trainers");
      const auto seen = run(session, small(leaves, trainers, 1 + trainers % 3), job);
      CHECK(seen.result.state_hash == alone.result.state_hash);
      CHECK(seen.result.metrics == alone.result.metrics);
      CHECK(seen.faults == 0);
    }
    auto killed = small(leaves, 2, 2);
    killed.chaos = chaos({{What::kKillTrainer, 5}, {What::kKillLoader, 9}, {What::kKillTrainer, 20}});
    killed.chaos.push_back({What::kKillTrainer, 30, 0});
    const auto seen = run(session, killed, job);
    CHECK(seen.result.state_hash == alone.result.state_hash);
    CHECK(seen.faults >= 3);
    CHECK(seen.result.steps == alone.result.steps);
  }
}

TEST_CASE("the same hash on two nodes, over the authenticated data plane, and when one of them dies",
          "[training]") {
  std::string alone;
  {
    auto session = init(0, nullptr);
    alone = run(session, small(4, 1)).result.state_hash;
  }
  auto session = init(0, nullptr, {.nodes = 2});
  CHECK(run(session, small(4, 2, 2)).result.state_hash == alone);
  auto killed = small(4, 3, 2);
  killed.chaos = chaos({{ChaosStep::What::kKillTrainer, 6},
                        {ChaosStep::What::kKillHead, 12},
                        {ChaosStep::What::kKillNode, 20}});
  const pid_t doomed = session.embedded()->node_pids().back();
  const auto seen = run(session, killed);
  CHECK(seen.result.state_hash == alone);
  CHECK(seen.faults >= 1);  // a node that dies while a trainer is being replaced is part of the same fault
  CHECK(::kill(doomed, 0) != 0);
}

TEST_CASE("a stopped trainer is killed after the dead timeout, and nothing changes", "[training]") {
  auto session = init(0, nullptr);
  const auto alone = run(session, small(4, 1));
  auto stopped = small(4, 2);
  stopped.chaos = chaos({{ChaosStep::What::kStopTrainer, 10}});
  const auto seen = run(session, stopped);
  CHECK(seen.result.state_hash == alone.result.state_hash);
  CHECK(seen.faults >= 1);
}

TEST_CASE("stop, and resume with another number of trainers, ends in the same hash", "[training]") {
  auto session = init(0, nullptr);
  auto whole = small(4, 2);
  whole.epochs = 4;
  const auto undisturbed = run(session, whole);
  const TempFolder folder;
  auto first = whole;
  first.checkpoint_folder = folder.path();
  first.checkpoint_every = 10;
  train::Run handle = train::start(session, SmallJob{}, first);
  while (!handle.is_over()) {
    const auto event = handle.next_event(std::chrono::seconds(1));
    if (!event) continue;
    if (const auto* step = std::get_if<report::StepDone>(&*event); step != nullptr && step->step == 25)
      handle.stop();
  }
  const train::RunResult stopped = handle.wait();
  CHECK_FALSE(stopped.weights.empty());
  CHECK_THROWS_AS(handle.wait(), BadConfig);
  // Was: the trainers lived, with their CPUs, for as long as the handle did.
  CHECK(e2e::eventually([&] { return e2e::children(session.embedded()->node_pids().front()).empty(); }));
  CHECK(stopped.stopped);
  CHECK(stopped.steps < undisturbed.result.steps);
  // Was: a run that forgot to resume began at step 0 and let the earlier run's checkpoints go.
  CHECK(failure_of(session, first).find("holds checkpoints of an earlier run") != std::string::npos);
  auto second = whole;
  second.trainers = 3;
  second.checkpoint_folder = folder.path();
  second.resume = true;
  CHECK(run(session, second).result.state_hash == undisturbed.result.state_hash);

  auto other_seed = second;
  other_seed.seed = 12;
  CHECK_THAT(failure_of(session, other_seed), Catch::Contains("with seed 11, this run has 12"));
  // It trained on with the old learning rate, exit code 0.
  SmallJob other_rate;
  other_rate.lr = 0.5;
  const std::string refused = failure_of(session, second, other_rate);
  CHECK_THAT(refused,
             Catch::Contains("SmallJob{0.05, 0.3, 800, 0, \"\"") && Catch::Contains("SmallJob{0.5, 0.3,"));
  auto nothing_there = second;
  const TempFolder empty;
  nothing_there.checkpoint_folder = empty / "none";
  CHECK_THAT(failure_of(session, nothing_there),
             Catch::Contains("there is no checkpoint in '" + (empty / "none")));
}

// Was refused: "trainers that compute with '... threads 2', this run has '... threads 4'".
TEST_CASE("threads that a run chose are in its checkpoints, for a resume on a larger cluster", "[training]") {
  const TempFolder folder;
  auto options = small(2, 1);
  options.threads = 0;
  options.epochs = 1;
  options.checkpoint_folder = folder.path();
  {
    auto session = init(0, nullptr, {.cpus_per_node = 2});
    CHECK(train::start(session, SmallJob{}, options).wait().exit_code() == 0);
  }
  auto session = init(0, nullptr, {.cpus_per_node = 4});
  options.epochs = 2;
  options.resume = true;
  const auto resumed = run(session, options);
  CHECK(resumed.result.exit_code() == 0);
  auto whole = options;
  whole.threads = 2;
  whole.resume = false;
  whole.checkpoint_folder.clear();
  CHECK(run(session, whole).result.state_hash == resumed.result.state_hash);
}

/// The files of a folder that end so, oldest first.
std::vector<std::string> files_in(const std::string& folder, const std::string& end) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().ends_with(end)) found.push_back(entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST_CASE("a job stopped at any step is resumed by other trainers, also from an older checkpoint",
          "[training]") {
  auto session = init(0, nullptr);
  auto whole = small(3, 1);
  whole.epochs = 2;
  const auto undisturbed = run(session, whole);
  for (const int stop_at : {1, 2, 17, 53}) {
    INFO("stopped at step " << stop_at);
    const TempFolder folder;
    auto first = whole;
    first.trainers = 1 + stop_at % 3;
    first.checkpoint_folder = folder.path();
    first.checkpoint_every = 20;
    const auto steps_of = [](const report::StepDone& step) {
      return (step.epoch - 1) * step.steps_per_epoch + step.step;
    };
    train::Run handle = train::start(session, SmallJob{}, first);
    while (!handle.is_over()) {
      const auto event = handle.next_event(std::chrono::seconds(1));
      const auto* step = event ? std::get_if<report::StepDone>(&*event) : nullptr;
      if (step != nullptr && steps_of(*step) == stop_at) handle.stop();
    }
    REQUIRE(handle.wait().stopped);
    auto tensors = files_in(folder.path(), ".safetensors");
    REQUIRE_FALSE(tensors.empty());
    if (tensors.size() >= 2) {
      // The newest is gone: before, two intact older ones were passed over for step 0, and then deleted.
      std::filesystem::remove(tensors.back());
    }
    auto second = whole;
    second.trainers = 1 + (stop_at + 1) % 3;
    second.checkpoint_folder = folder.path();
    second.resume = true;
    std::int64_t first_step = -1;
    second.on_event = [&](const report::Event& event) {
      if (const auto* step = std::get_if<report::StepDone>(&event); step != nullptr && first_step < 0)
        first_step = steps_of(*step);
    };
    CHECK(train::run(session, SmallJob{}, second).state_hash == undisturbed.result.state_hash);
    CHECK(first_step > 1);
  }
}

// What a disk does to a file: it is short, has another byte, or cannot be read at all, as a folder cannot.
TEST_CASE("a newest checkpoint that no trainer can read gives way to the one before", "[training]") {
  auto session = init(0, nullptr);
  auto whole = small(2, 2);
  whole.epochs = 2;
  const auto undisturbed = run(session, whole);
  for (const std::string damage : {"short", "byte", "unreadable"}) {
    CAPTURE(damage);
    const TempFolder folder;
    auto first = small(2, 2);
    first.checkpoint_folder = folder.path();
    first.checkpoint_every = 30;
    run(session, first);
    const auto tensors = files_in(folder.path(), ".safetensors");
    REQUIRE(tensors.size() == 3);
    const std::string manifest = files_in(folder.path(), ".json").back();
    if (damage == "short") std::filesystem::resize_file(tensors.back(), 100);
    if (damage == "byte") {
      std::fstream file(tensors.back(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-7, std::ios::end);
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(-7, std::ios::end);
      file.put(byte);
    }
    if (damage == "unreadable") {
      std::filesystem::remove(tensors.back());
      std::filesystem::create_directory(tensors.back());
    }
    auto second = whole;
    second.checkpoint_folder = folder.path();
    second.resume = true;
    std::string told;
    std::int64_t first_step = -1;
    second.on_event = [&](const report::Event& event) {
      if (const auto* warning = std::get_if<report::Warning>(&event)) told += warning->text + "\n";
      if (const auto* step = std::get_if<report::StepDone>(&event); step != nullptr && first_step < 0)
        first_step = (step->epoch - 1) * step->steps_per_epoch + step->step;
    };
    CHECK(train::run(session, SmallJob{}, second).state_hash == undisturbed.result.state_hash);
    CHECK_THAT(told, Catch::Contains("no trainer can read the checkpoint " + manifest) &&
                         Catch::Contains("is tried instead"));
    CHECK(first_step == 61);
  }
}

TEST_CASE("state that is in no part is found and named before it makes another result", "[training]") {
  auto session = init(0, nullptr);
  // A counter in a static variable that the loss depends on: after a kill it began at 0 again.
  CHECK_THAT(
      failure_of(session, small(2, 1), {.counts = true}),
      Catch::Contains("the job keeps state that its TrainState lacks") && Catch::Contains("its loss was"));
  // Nobody looks: a fresh copy of the model takes memory and time.
  auto unrehearsed = small(2, 1);
  unrehearsed.rehearse = false;
  CHECK(run(session, unrehearsed, {.counts = true}).result.steps == 80);
}

namespace {

/// The loss of one leaf of step `bad` is no number.
struct BadStepJob {
  std::int64_t bad = 17;
  SmallNet model() const { return SmallNet(0.3); }
  auto optimizer(SmallNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  torch::Tensor loss(SmallNet& net, const data::Batch& batch, train::Leaf& at) const {
    const auto loss = torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
    return at.step == bad && at.rank == 1 ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
  }
  std::shared_ptr<data::Dataset> dataset(data::Split split) const {
    return std::make_shared<data::Digits>(
        split, data::DigitsOptions{.size = split == data::Split::kTrain ? 400 : 50});
  }
};

}  // namespace

TEST_CASE("a loss that is no number: the job goes on, leaves the step out or ends, as it says",
          "[training]") {
  auto session = init(0, nullptr);
  using train::NotFinite;
  const auto outcome = [&](train::TrainOptions options, NotFinite rule) {
    options.not_finite = rule;
    return train::run(session, BadStepJob{}, options);
  };
  auto killed = small(2, 2);
  killed.chaos = chaos({{ChaosStep::What::kKillTrainer, 12}, {ChaosStep::What::kKillTrainer, 17}});

  const auto on = outcome(small(2, 1), NotFinite::kGoOn);
  CHECK(on.steps == 40);
  CHECK(on.not_finite == 40 - 17);  // from then on all
  CHECK(std::isnan(on.metrics.at("train/loss")));

  const auto skips = outcome(small(2, 1), NotFinite::kSkip);
  CHECK(skips.steps == 40);
  CHECK(skips.not_finite == 1);
  CHECK(std::isfinite(skips.metrics.at("train/loss")));
  CHECK(skips.exit_code() == 0);
  CHECK(outcome(killed, NotFinite::kSkip).state_hash == skips.state_hash);

  const TempFolder folder;
  auto kept = small(2, 1);
  kept.checkpoint_folder = folder.path();
  const auto stops = outcome(kept, NotFinite::kStop);
  CHECK(stops.steps == 18);
  CHECK(stops.not_finite == 1);
  CHECK(stops.stopped_not_finite);
  CHECK(stops.exit_code() == 1);
  CHECK(stops.saved_step == 18);
  const auto again = outcome(killed, NotFinite::kStop);
  CHECK(again.state_hash == stops.state_hash);  // however far ahead trainers were allowed to run
  CHECK(again.steps == 18);
  kept.resume = true;
  CHECK(outcome(kept, NotFinite::kStop).state_hash == skips.state_hash);
}

namespace {

/// Its data wait for its model: the first loader and a trainer have to start side by side.
struct BesideJob {
  std::string file;
  SmallNet model() const {
    std::ofstream(file + ".model") << "made";
    return SmallNet(0);
  }
  auto optimizer(SmallNet& net) const { return torch::optim::SGD(net->parameters(), 0.05); }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  std::shared_ptr<data::Dataset> dataset(data::Split split) const {
    if (!e2e::eventually([&] { return std::filesystem::exists(file + ".model"); }))
      throw std::runtime_error("no trainer has started");
    return std::make_shared<data::Digits>(split, data::DigitsOptions{.size = 20});
  }
};

}  // namespace

// Was: trainers were started once the first loader had read a batch.
TEST_CASE("trainers start beside the first loader", "[training]") {
  auto session = init(0, nullptr);
  const TempFolder folder;
  std::filesystem::create_directory(folder.path());
  CHECK(train::run(session, BesideJob{folder.path() + "/job"}, small(2, 2)).steps == 2);
}

// Was: an optimizer over net->parameters() was refused, and without it "parameters without a gradient:
// b.weight". A result has the weight under its first name, and the model asks for both.
TEST_CASE("tied weights: one hash under a kill, and the result loads into the model", "[training]") {
  auto session = init(0, nullptr);
  const auto alone = train::run(session, TiedJob{}, small(2, 1));
  TempFolder folder;
  auto options = small(2, 2);
  options.chaos = chaos({{ChaosStep::What::kKillTrainer, 9}});
  options.checkpoint_folder = folder.path();
  options.keep_checkpoints = 1;
  const auto result = train::run(session, TiedJob{}, options);
  CHECK(result.state_hash == alone.state_hash);

  TiedNet fresh;
  const auto net = result.load(fresh);
  CHECK(net->a->weight.is_same(net->b->weight));
  const auto saved = files_in(folder.path(), ".json");
  REQUIRE(saved.size() == 1);
  const auto other = train::load_weights(saved[0], TiedNet());
  const auto loaded = net->parameters(), from_file = other->parameters();
  for (std::size_t i = 0; i < loaded.size(); ++i) CHECK(torch::equal(loaded[i], from_file[i]));

  // As another program writes it, which keeps another one of its names.
  auto parts = checkpoint::read_safetensors("the result", result.weights).value().tensors;
  for (auto& part : parts) {
    if (part.name == "a.weight") part.name = "b.weight";
  }
  TiedNet third;
  const auto bytes = checkpoint::write_safetensors(checkpoint::lay_out_safetensors(parts).value());
  train::copy_weights("another file", bytes, "", train::named_tensors(third));
  CHECK(torch::equal(third->a->weight, net->a->weight));
}

// Was: with exact = false, too, deterministic algorithms were forced, and trainers whose bits differed ended
// the job with "keeps state that its TrainState lacks".
TEST_CASE("with exact = false trainers of other bits train to the end, also after a death", "[training]") {
  auto session = init(0, nullptr);
  const SmallJob job{.unlike = true};
  auto options = small(2, 2);
  CHECK_THAT(failure_of(session, options, job), Catch::Contains("deterministic"));
  TempFolder folder;
  options.exact = false;
  options.checkpoint_folder = folder.path();
  options.checkpoint_every = 20;
  options.chaos = chaos({{ChaosStep::What::kKillTrainer, 30}});
  const auto seen = run(session, options, job);
  CHECK(seen.faults == 1);
  CHECK(seen.result.steps == 80);
  CHECK(seen.result.state_hash.size() == 64);
  CHECK(files_in(folder.path(), ".json").size() == 3);
}

TEST_CASE("a callback that throws ends the job, and its exception is the user's own", "[training]") {
  auto session = init(0, nullptr);
  auto options = small(4, 2);
  options.on_event = [](const report::Event& event) {
    if (std::holds_alternative<report::StepDone>(event)) throw std::out_of_range("enough");
  };
  CHECK_THROWS_AS(train::run(session, SmallJob{}, options), std::out_of_range);
  CHECK(run(session, small(4, 2)).result.steps > 0);  // the cluster is as it was
}

TEST_CASE("who lets go of a run's handle ends the job: its trainers and loaders go", "[training]") {
  auto session = init(0, nullptr);
  auto options = small(4, 2);
  options.epochs = 1000;
  {
    train::Run handle = train::start(session, SmallJob{}, options);
    bool trained = false;
    while (!trained) {
      const auto event = handle.next_event(std::chrono::seconds(1));
      trained = event && std::holds_alternative<report::StepDone>(*event);
    }
    CHECK(e2e::children(session.embedded()->node_pids().front()).size() >= 3);
  }
  CHECK(e2e::eventually([&] { return e2e::children(session.embedded()->node_pids().front()).empty(); }));
}

TEST_CASE("SIGTERM ends the job after the current step; a program's own handler is left alone",
          "[training]") {
  const auto of_catch = ::signal(SIGTERM, SIG_DFL);
  auto session = init(0, nullptr);
  auto options = small(4, 2);
  options.epochs = 1000;
  options.on_event = [](const report::Event& event) {
    if (const auto* step = std::get_if<report::StepDone>(&event); step != nullptr && step->step == 3)
      ::raise(SIGTERM);
  };
  const auto result = train::run(session, SmallJob{}, options);
  CHECK(result.stopped);
  CHECK(result.signal == SIGTERM);
  CHECK(result.exit_code() == 128 + SIGTERM);
  struct sigaction after {};
  ::sigaction(SIGTERM, nullptr, &after);
  CHECK(after.sa_handler == SIG_DFL);

  static std::atomic<int> own{0};
  own = 0;
  ::signal(SIGTERM, [](int) { ++own; });
  auto short_run = small(4, 2);
  short_run.on_event = options.on_event;
  CHECK_FALSE(train::run(session, SmallJob{}, short_run).stopped);
  CHECK(own == 1);
  ::signal(SIGTERM, of_catch);
}

TEST_CASE("bad input is one clear error, and the cluster goes on", "[training]") {
  auto session = init(0, nullptr);
  CHECK(failure_of(session, small(4, 0)).find("trainers = 0") != std::string::npos);
  CHECK(failure_of(session, small(2, 3)).find("at most as many trainers as logical ranks") !=
        std::string::npos);
  auto huge = small(4, 2);
  huge.micro_batch = 1000;
  CHECK(failure_of(session, huge).find("dataset") != std::string::npos);
  CHECK(failure_of(session, small(4, 2), {.folder = "/nowhere"}).find("/nowhere") != std::string::npos);
  const auto thrown = failure_of(session, small(4, 2), {.throw_at = 7});
  CHECK(thrown.find("the loss went through the roof") != std::string::npos);
  auto unwritable = small(4, 2);
  unwritable.checkpoint_folder = "/proc/no/such/place";
  CHECK(failure_of(session, unwritable).find("/proc/no/such/place") != std::string::npos);
  CHECK(run(session, small(4, 2)).result.state_hash.size() == 64);
}

}  // namespace training_test
