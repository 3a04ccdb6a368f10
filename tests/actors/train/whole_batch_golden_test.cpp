// The losses of PyTorch, in one process with the whole batch, from a job whose trainers share out nothing,
// what optimizers keep (ZeRO-1), gradients (ZeRO-2) or parameters (ZeRO-3), and have one leaf or accumulate
// several; and from one whose BatchNorm is over all leaves.
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>
#include <sstream>

#include "actors/ddp/sync_batch_norm.hpp"
#include "tests/actors/ddp/golden_losses.hpp"
#include "tests/actors/ddp/normed_net.hpp"
#include "tests/actors/ddp/tower.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

constexpr int kZeroLeaves = 4;
constexpr double kZeroTolerance = 1e-5;

struct TowerJob {
  bool adam = false;

  fsdp::Tower setup(Setup& s) const {
    auto net = s.module("", fsdp::Tower());
    if (adam) {
      s.optimizer<torch::optim::AdamW>("all", net->parameters(),
                                       torch::optim::AdamWOptions(0.001).weight_decay(0.05));
    } else {
      s.optimizer<torch::optim::SGD>("all", net->parameters(),
                                     torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.01));
    }
    return net;
  }
  torch::Tensor loss(fsdp::Tower& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
};

struct Zero {
  const char* name;
  bool optimizer;
  std::optional<ShardingStrategy> parameters;
};

/// The largest difference of a step's loss, as text.
std::string apart(const std::shared_ptr<collectives::ProcessGroup>& group, bool adam, const Zero& zero,
                  const std::vector<double>& golden) {
  set_up_numerics();
  EngineOptions options{.logical_ranks = kZeroLeaves, .seed = kSeed, .shard_optimizer = zero.optimizer};
  if (zero.parameters)
    options.shard_parameters = FsdpOptions{.units = fsdp::kUnits, .sharding_strategy = *zero.parameters};
  StepEngine engine(make_training_model(TowerJob{adam}, kSeed), options);
  engine.attach(group);
  double most = 0;
  for (std::uint64_t step = 0; step < golden.size(); ++step) {
    const auto batches = leaf_batches(*group, step, [](std::uint64_t s, int leaf) {
      const fsdp::Batch batch = fsdp::batch_of(static_cast<int>(s), leaf, kZeroLeaves);
      return data::Batch{batch.x, batch.y};
    });
    std::vector<double> loss{0};
    for (const double one : engine.run_step(step, batches)) loss[0] += one / kZeroLeaves;
    group->all_reduce(loss)->wait();
    engine.apply();
    most = std::max(most, std::isnan(loss[0]) ? INFINITY : std::abs(loss[0] - golden[step]));
  }
  return std::to_string(most);
}

TEST_CASE("100 steps of a job have PyTorch's losses to 1e-5, with ZeRO-1, 2 and 3, and accumulated") {
  const auto golden = golden_losses(TROUPE_DDP_GOLDEN_DIR "/fsdp_golden.txt");
  const Zero zero = GENERATE(values<Zero>({{"whole", false, {}},
                                           {"ZeRO-1", true, {}},
                                           {"ZeRO-2", false, ShardingStrategy::kShardGradOp},
                                           {"ZeRO-3", false, ShardingStrategy::kFullShard}}));
  const bool adam = GENERATE(false, true);
  const int ranks = GENERATE(1, 2, 4);
  const auto& losses = golden.at(adam ? "adamw" : "sgd");
  REQUIRE(losses.size() == 100);
  for (const std::string& said :
       fork_ranks(kZeroLeaves, ranks, [&](const auto& group) { return apart(group, adam, zero, losses); })) {
    CAPTURE(zero.name, adam, ranks, said);
    REQUIRE(said.find("threw") == std::string::npos);
    CHECK(std::stod(said) < kZeroTolerance);
  }
}

struct NormedJob {
  std::string kind;

  normed::NormedNet model() const { return convert_sync_batchnorm(normed::NormedNet(kind)); }
  torch::optim::SGD optimizer(normed::NormedNet& net) const { return normed::optimizer_of(net); }
  torch::Tensor loss(normed::NormedNet& net, const data::Batch& batch, Leaf& at) const {
    at.weight(static_cast<double>(batch.size()));
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
};

/// The loss of each step, of the samples of all leaves, and one in evaluation mode.
std::string normed_losses(const std::shared_ptr<collectives::ProcessGroup>& group, const std::string& kind) {
  auto engine = engine_for(NormedJob{kind}, kZeroLeaves);
  engine->attach(group);
  const auto part = [&](std::uint64_t step, int leaf) {
    const auto batch = normed::part_of_batch(kind, static_cast<int>(step), leaf, kZeroLeaves);
    return data::Batch{batch.x, batch.y};
  };
  std::ostringstream text;
  text.precision(10);
  for (std::uint64_t step = 0; step < 100; ++step) {
    const auto batches = leaf_batches(*group, step, part);
    const std::vector<double> losses = engine->run_step(step, batches);
    std::vector<double> mean{0};
    for (std::size_t i = 0; i < batches.size(); ++i)
      mean[0] += losses[i] * static_cast<double>(batches[i].batch.size()) / normed::kBatch;
    group->all_reduce(mean)->wait();
    engine->apply(false, normed::kBatch);
    text << mean[0] << ' ';
  }
  const auto last = normed::whole_batch(kind, 5000);
  for (const Figure& figure : engine->evaluate(0, 0, {last.x, last.y}))
    if (figure.name == "loss") text << figure.value();
  return text.str();
}

TEST_CASE("100 steps of a job with SyncBatchNorm have PyTorch's losses, of BatchNorm on the whole batch") {
  const std::string kind = GENERATE(as<std::string>(), "flat", "1d", "2d", "3d");
  const int ranks = GENERATE(1, 2, 4);
  const auto golden = golden_losses(TROUPE_DDP_GOLDEN_DIR "/sync_batch_norm_golden.txt").at(kind);
  REQUIRE(golden.size() == 101);
  for (const std::string& said :
       fork_ranks(kZeroLeaves, ranks, [&](const auto& group) { return normed_losses(group, kind); })) {
    std::istringstream words(said);
    for (std::size_t step = 0; step < golden.size(); ++step) {
      double loss = NAN;
      words >> loss;
      CAPTURE(kind, ranks, step, loss, golden[step], said);
      REQUIRE(std::abs(loss - golden[step]) < kZeroTolerance);
    }
  }
}

}  // namespace
}  // namespace troupe::train::testing
