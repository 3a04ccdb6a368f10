// Jobs whose trainers need each other inside of a step, on real processes: the same bits whatever happens.
#include <torch/torch.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "actors/data/digits.hpp"
#include "actors/ddp/sync_batch_norm.hpp"
#include "actors/train/api/train.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "tests/e2e/support.hpp"
#include "tests/support/contains.hpp"

namespace training_together_test {

using namespace troupe;
using test::contains;
using train::ChaosStep;
using What = train::ChaosStep::What;

namespace {

struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("fc", fc);
    register_module("last", last);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::max_pool2d(torch::relu(norm(conv(x))), 4);
    return out(torch::tanh(last(fc(dropout(y.flatten(1))))));
  }
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 4, 5).padding(2)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Dropout dropout{0.3};
  torch::nn::Linear fc{4 * 7 * 7, 32};
  torch::nn::BatchNorm1d last{32};
  torch::nn::Linear out{32, 10};
};
TORCH_MODULE(NormedNet);

struct NormedJob {
  bool converts = false;

  NormedNet model() const { return converts ? train::convert_sync_batchnorm(NormedNet()) : NormedNet(); }
  auto optimizer(NormedNet& net) const {
    return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01));
  }
  torch::Tensor criterion(const torch::Tensor& output, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(output, batch.target);
  }
  void apply(train::Apply& a) const {
    a.clip_grad_norm(0.5);
    a.step();
  }
  data::Digits dataset(data::Split split) const {
    return data::Digits(split, {.size = split == data::Split::kTrain ? 800 : 100});
  }
};

train::TrainOptions options_of(int trainers, std::vector<ChaosStep> chaos = {}) {
  return {.logical_ranks = 4,
          .micro_batch = 5,
          .epochs = 1,
          .trainers = trainers,
          .seed = 11,
          .chaos = std::move(chaos),
          .show_progress = false};
}

/// Far apart, since two deaths that are found together are one fault.
const std::vector<ChaosStep> kTwoKills = {{What::kKillTrainer, 5, -1}, {What::kKillTrainer, 20, 0}};
const std::string kSaved = "saved step ";

struct Seen {
  train::RunResult result;
  int faults = 0;
  std::vector<std::string> lines;
};

Seen run(const DriverSession& session, train::TrainOptions options, const NormedJob& job) {
  Seen seen;
  options.on_event = [&](const report::Event& event) {
    if (const auto* fault = std::get_if<report::Fault>(&event)) {
      ++seen.faults;
      seen.lines.push_back(fault->what);
    }
    if (const auto* warning = std::get_if<report::Warning>(&event)) seen.lines.push_back(warning->text);
    if (const auto* saved = std::get_if<report::Checkpointed>(&event))
      seen.lines.push_back(kSaved + std::to_string(saved->global_step));
  };
  seen.result = train::run(session, job, options);
  return seen;
}

/// A death takes shards with it. Without checkpoints it goes back to the beginning; with them to the last,
/// where a newcomer joins, too.
void check_under_kills(const DriverSession& session, train::TrainOptions options, const std::string& hash) {
  options.chaos = kTwoKills;
  const auto again = run(session, options, {});
  CHECK(again.result.state_hash == hash);
  CHECK(again.faults >= 2);
  const e2e::TempFolder folder;
  options.checkpoint_folder = folder.path();
  options.checkpoint_every = 8;
  options.chaos.push_back({What::kKillTrainer, 30, -1});
  const auto saved = run(session, options, {});
  CHECK(saved.result.state_hash == hash);
  CHECK(saved.faults >= 3);
  std::string newest = "0", last, text;
  for (const auto& line : saved.lines) {
    text += line + "\n";
    if (line.starts_with(kSaved)) newest = line.substr(kSaved.size());
    if (!contains(line, "again from step ")) continue;
    last = newest;
    CHECK_THAT(line, Catch::EndsWith("again from step " + last));
  }
  INFO(text);
  // Before step 24 is copied, step 16 is a file: one checkpoint is written at a time.
  CHECK_THAT(last, Catch::Matches("16|24"));
  CHECK(contains(text, " is reached again after "));
}

/// Four trainers with shards come to a checkpoint, three go on from it, with `again` or whole.
void check_goes_on(const DriverSession& session, const train::TrainOptions& two_epochs, train::Shard shard,
                   train::Shard again, const std::string& hash) {
  const e2e::TempFolder folder;
  auto first = options_of(4);
  first.shard = shard;
  first.shard_min_num_params = 300;
  first.checkpoint_folder = folder.path();
  run(session, first, {});
  auto second = two_epochs;
  second.trainers = 3;
  second.shard = again;
  second.checkpoint_folder = folder.path();
  second.resume = true;
  const auto seen = run(session, second, {});
  CHECK(seen.result.steps == 80);
  CHECK(seen.result.state_hash == hash);
}

}  // namespace

TEST_CASE("SyncBatchNorm in a job: one hash for 1, 2, 3 and 4 trainers, and under kills", "[training]") {
  auto session = init(0, nullptr);
  const NormedJob job{.converts = true};
  const auto alone = run(session, options_of(1), job);
  REQUIRE(alone.result.state_hash.size() == 64);
  for (const int trainers : {2, 3, 4}) {
    INFO(trainers << " trainers");
    const auto seen = run(session, options_of(trainers), job);
    CHECK(seen.result.state_hash == alone.result.state_hash);
    CHECK(seen.result.metrics == alone.result.metrics);
    CHECK(seen.faults == 0);
  }
  const auto killed = run(session, options_of(3, kTwoKills), job);
  CHECK(killed.result.state_hash == alone.result.state_hash);
  CHECK(killed.faults >= 2);
  CHECK(run(session, options_of(2), {}).result.state_hash != alone.result.state_hash);
}

TEST_CASE("a sharded optimizer: one hash for 1, 2 and 4 trainers, with and without shards, and under kills",
          "[training]") {
  auto session = init(0, nullptr);
  const auto whole = run(session, options_of(2), {});
  REQUIRE(whole.result.state_hash.size() == 64);
  for (const int trainers : {1, 2, 4}) {
    INFO(trainers << " trainers");
    auto sharded = options_of(trainers);
    sharded.shard = train::Shard::kOptimizer;
    const auto seen = run(session, sharded, {});
    CHECK(seen.result.state_hash == whole.result.state_hash);
    CHECK(seen.result.metrics == whole.result.metrics);
    CHECK(seen.faults == 0);
  }
  auto killed = options_of(3);
  killed.shard = train::Shard::kOptimizer;
  check_under_kills(session, killed, whole.result.state_hash);
}

TEST_CASE("sharded gradients and parameters: one hash and one file of weights, and under kills",
          "[training]") {
  auto session = init(0, nullptr);
  const auto whole = run(session, options_of(2), {});
  REQUIRE(whole.result.state_hash.size() == 64);
  REQUIRE(!whole.result.weights.empty());
  const auto with = [](train::TrainOptions options, train::Shard shard) {
    options.shard = shard;
    options.shard_min_num_params = 300;  // two units and the root
    return options;
  };
  for (const auto& [trainers, shard] :
       {std::pair(1, train::Shard::kParameters), std::pair(2, train::Shard::kGradients),
        std::pair(4, train::Shard::kParameters)}) {
    INFO(trainers << " trainers");
    const auto seen = run(session, with(options_of(trainers), shard), {});
    CHECK(seen.result.state_hash == whole.result.state_hash);
    CHECK(seen.result.metrics == whole.result.metrics);
    CHECK((seen.result.weights == whole.result.weights));  // bytes have no text
    CHECK(seen.faults == 0);
  }
  auto named = options_of(2);
  named.shard = train::Shard::kParameters;
  named.shard_min_num_params = 0;
  named.shard_units = {"fc", "conv"};
  named.shard_prefetch = true;
  CHECK(run(session, named, {}).result.state_hash == whole.result.state_hash);
  check_under_kills(session, with(options_of(3), train::Shard::kParameters), whole.result.state_hash);
}

namespace {

/// Reads events until so many steps are committed.
void run_to(train::Run& run, int steps) {
  for (;;) {
    const auto event = run.next_event(std::chrono::seconds(120));
    REQUIRE(event);
    const auto* done = std::get_if<report::StepDone>(&*event);
    if (done != nullptr && (done->epoch - 1) * done->steps_per_epoch + done->step >= steps) return;
  }
}

}  // namespace

// pause() and hold were refused, but for ZeRO-1, whose snapshot at a hold lacked the other trainers' shards.
TEST_CASE("a sharded job is paused, held and cloned with the bits of one that runs through", "[training]") {
  auto session = init(0, nullptr);
  auto options = options_of(2);
  options.epochs = 2;
  const auto whole = run(session, options, {});
  for (const auto shard : {train::Shard::kOptimizer, train::Shard::kGradients, train::Shard::kParameters}) {
    CAPTURE(static_cast<int>(shard));
    auto sharded = options;
    sharded.trainers = 3;
    sharded.shard = shard;
    sharded.shard_min_num_params = 300;
    auto short_one = sharded;
    short_one.epochs = 1;
    auto going = train::start(session, NormedJob{}, short_one);
    run_to(going, 13);
    CHECK(going.pause().step() >= 13);
    short_one.trainers = 2;
    going.resume(short_one);
    CHECK(going.pause_at_end().step() == 40);
    sharded.trainers = 4;
    going.resume(sharded);
    run_to(going, 45);
    going.pause();
    going.resume(options);  // whole
    const auto result = going.wait();
    CHECK(result.state_hash == whole.result.state_hash);
    CHECK((result.weights == whole.result.weights));

    auto holding = sharded;
    holding.hold = true;
    auto holds = train::start(session, NormedJob{}, holding);
    const auto snapshot = holds.share();
    CHECK(snapshot.step() == 40);
    holds.go_on();
    CHECK(holds.wait().state_hash == whole.result.state_hash);
    for (const auto& again : {options, sharded})
      CHECK(train::start(session, NormedJob{}, again, snapshot).wait().state_hash == whole.result.state_hash);
  }
}

TEST_CASE("what does not go with sharded parameters is refused", "[training]") {
  auto session = init(0, nullptr);
  auto options = options_of(2);
  options.shard = train::Shard::kParameters;
  CHECK_THROWS_WITH(run(session, options, {.converts = true}), Catch::Contains("SyncBatchNorm"));
  options.shard_units = {"fc", "no"};
  CHECK_THROWS_WITH(run(session, options, {}), Catch::Contains("unit 'no' is no module") &&
                                                   Catch::Contains("conv, norm, dropout") &&
                                                   !Catch::Contains("failures"));
  // Each was found by three trainers, one after another.
  const auto refused = [&](const std::vector<std::string>& units) {
    options.shard_units = units;
    return e2e::message_of<BadConfig>([&] { run(session, options, {}); });
  };
  CHECK_THAT(refused({"fc", "fc"}), Catch::Contains("unit fc is there twice"));
  CHECK_THAT(refused({"fc.weight"}), Catch::Contains("unit 'fc.weight' is no module"));
  CHECK_THAT(refused({""}), Catch::Contains("unit '' is no module"));
  CHECK_THAT(refused({"\x1b[31m" + std::string(100'000, 'x')}),
             Catch::Contains("unit '\\x1b[31mxxx") && Catch::Contains("... (100005 bytes)"));
  options.shard = train::Shard::kOptimizer;
  CHECK_THAT(refused({"fc"}), Catch::Contains("shard_units with Shard::kOptimizer"));
  options.shard = train::Shard::kNothing;
  CHECK_THAT(refused({"fc"}), Catch::Contains("shard_units with no shard"));
  options.shard_prefetch = true;
  CHECK_THAT(refused({}), Catch::Contains("shard_prefetch with no shard"));
  options.shard = train::Shard::kParameters;
  options.find_unused_parameters = true;
  CHECK_THROWS_WITH(run(session, options, {}), Catch::Contains("find_unused_parameters"));
}

TEST_CASE("a checkpoint of a sharded job goes on with another number of trainers, with or without shards",
          "[training]") {
  auto session = init(0, nullptr);
  auto options = options_of(2);
  options.epochs = 2;
  const auto whole = run(session, options, {});
  for (const auto shard : {train::Shard::kOptimizer, train::Shard::kParameters}) {
    for (const auto again : {shard, train::Shard::kNothing}) {
      CAPTURE(static_cast<int>(shard), static_cast<int>(again));
      check_goes_on(session, options, shard, again, whole.result.state_hash);
    }
  }
}

namespace {

/// The first event of which `is` is true; fails when there is none in time.
template <class Is>
void await_event(train::Run& run, Is is) {
  for (;;) {
    const auto event = run.next_event(std::chrono::seconds(120));
    REQUIRE(event);
    if (is(*event)) return;
  }
}

struct Holder {
  int one() { return 1; }
};

}  // namespace

// Each had a part of the CPUs, waited for the other's, and failed after two minutes.
TEST_CASE(
    "two jobs that each need most of the cluster run one after the other, and the second says why it waits",
    "[training]") {
  const bool custom = GENERATE(false, true);
  auto session = init(0, nullptr,
                      {.nodes = 2,
                       .cpus_per_node = custom ? 8.0 : 2.0,
                       .memory_per_node = std::int64_t{1} << 30,
                       .resources_per_node = {{"slot", 2}},
                       .labels = {{"zone", "a"}}});
  auto options = options_of(3);
  options.min_trainers = 3;
  if (custom) {
    options.trainer_memory = 1 << 20;
    options.trainer_resources = {{"slot", 1}};
    options.trainer_labels = {{"zone", "a"}};
  } else {
    options.trainer_cpus = 1;
  }
  options.handle_signals = false;
  auto holding = options;
  holding.epochs = 2;
  holding.hold = true;
  const NormedJob job{.converts = true};
  auto first = train::start(session, job, holding);
  await_event(first, [](const auto& event) { return std::holds_alternative<report::EpochDone>(event); });
  auto second = train::start(session, job, options);
  await_event(second, [custom](const auto& event) {
    const auto* warning = std::get_if<report::Warning>(&event);
    return warning != nullptr &&
           warning->text.find("the job waits for room for 3 trainers (min_trainers)") != std::string::npos &&
           warning->text.find(custom ? "3 slot" : "they ask for 3 CPU") != std::string::npos;
  });
  // One that waits can be given up, and leaves nothing behind that would take the room.
  {
    auto third = train::start(session, job, options);
    await_event(third, [](const auto& event) { return std::holds_alternative<report::Warning>(event); });
    third.stop();
    CHECK(third.wait().stopped);
  }
  first.go_on();
  CHECK(first.wait().steps == 2 * 40);
  const std::string hash = second.wait().state_hash;
  CHECK(hash == run(session, options, job).result.state_hash);
  CHECK(session.spawn_group<Holder>(4, {.num_cpus = 1, .resources = {{"slot", 1}}, .isolated = true})
            .call_all<&Holder::one>()
            .get() == std::vector<int>(4, 1));
}

TEST_CASE("trainers whose memory, resources or labels no node has are refused, with what is missing",
          "[training]") {
  auto session = init(0, nullptr, {.resources_per_node = {{"slot", 1}}, .labels = {{"zone", "a"}}});
  const auto told = [&](auto change) -> std::string {
    auto options = options_of(2);
    options.handle_signals = false;
    change(options);
    return e2e::message_of([&] { run(session, options, {}); });
  };
  CHECK_THAT(told([](auto& o) {
               o.trainer_labels = {{"zone", "c"}};
             }),
             Catch::Contains("no node has the label zone=c"));
  CHECK_THAT(told([](auto& o) {
               o.trainer_resources = {{"fpga", 1}};
             }),
             Catch::Contains("no node has resource fpga"));
  CHECK_THAT(told([](auto& o) { o.trainer_memory = std::int64_t{1} << 47; }), Catch::Contains("memory"));
  CHECK_THAT(told([](auto& o) { o.trainer_memory = -1; }),
             Catch::StartsWith("cannot train: trainer_memory, trainer_resources, trainer_labels: memory"));
  CHECK_THAT(told([](auto& o) {
               o.trainer_resources = {{"cpu", 1}};
             }),
             Catch::Contains("cpu is no custom resource"));
  CHECK(told([](auto& o) {
          o.trainer_resources = {{"slot", 0.5}}, o.trainer_labels = {{"zone", "a"}};
        }) == "it did not throw");
}

}  // namespace training_together_test
