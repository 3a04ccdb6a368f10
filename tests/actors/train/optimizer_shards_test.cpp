// ZeRO-1: sharded optimizers, with the bits of whole ones.
#include "actors/train/engine/optimizer_shards.hpp"

#include <catch2/catch.hpp>

#include "actors/train/engine/numerics.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

constexpr int kShards = 4;

enum class Kind { kSgd, kAdam, kAdamW, kRmsProp, kAdagrad, kOwn };

/// Not one of LibTorch's.
struct OwnOptimizer : torch::optim::SGD {
  using torch::optim::SGD::SGD;
};

/// SmallJob's net under any optimizer, in two groups of options; clipped by the global norm.
struct AnyJob {
  Kind kind = Kind::kSgd;
  bool direct = false;  ///< steps the optimizer itself, not through Apply
  int hidden = 24;

  SmallNet setup(Setup& s) const {
    auto net = s.module("", SmallNet(hidden, 0.3));
    const auto make = [&](const std::string& name, std::vector<torch::Tensor> parameters) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<torch::Tensor>(parameters.begin() + 1, parameters.end()));
      groups.emplace_back(std::vector<torch::Tensor>(parameters.begin(), parameters.begin() + 1));
      using namespace torch::optim;
      if (kind == Kind::kSgd) s.optimizer<SGD>(name, groups, SGDOptions(0.05).momentum(0.9));
      if (kind == Kind::kAdam) s.optimizer<Adam>(name, groups, AdamOptions(0.01).amsgrad(true));
      if (kind == Kind::kAdamW) s.optimizer<AdamW>(name, groups, AdamWOptions(0.01));
      if (kind == Kind::kRmsProp) s.optimizer<RMSprop>(name, groups, RMSpropOptions(0.01).momentum(0.5));
      if (kind == Kind::kAdagrad) s.optimizer<Adagrad>(name, groups, AdagradOptions(0.05));
      if (kind == Kind::kOwn) s.optimizer<OwnOptimizer>(name, groups, SGDOptions(0.05));
    };
    std::vector<torch::Tensor> lower = net->in->parameters();
    for (const auto& parameter : net->norm->parameters()) lower.push_back(parameter);
    make("lower", lower);
    make("upper", net->out->parameters());
    return net;
  }
  torch::Tensor loss(SmallNet& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  void apply(Apply& a) const {
    a.clip_grad_norm(0.1);
    if (direct) {
      a.optimizer("lower").step();
      a.count_parameters();
    } else {
      a.step("lower");
    }
    if (a.step_number % 2 == 1) a.step("upper");
  }
};

std::size_t optimizer_bytes(StepEngine& engine) {
  std::size_t bytes = 0;
  for (const StatePart& part : engine.state().view().parts) {
    if (part.name.starts_with("optimizer[") && part.name.find("/learning_rates") == std::string::npos)
      bytes += part.bytes.size();
  }
  return bytes;
}

std::string train(StepEngine& engine, const std::shared_ptr<collectives::ProcessGroup>& group,
                  const AnyJob& job) {
  engine.attach(group);
  StepValues values;
  for (std::uint64_t number = 0; number < 6; ++number) {
    if (number == 2 || number == 5) engine.rehearse(make_training_model(job, kSeed));
    engine.run_step(number, leaf_batches(*group, number, [](std::uint64_t step, int leaf) {
                      return small_batch(step, leaf);
                    }));
    values = engine.apply();
  }
  const std::size_t kept = optimizer_bytes(engine);
  std::string walked;
  if (const auto walk = engine.walk_optimizer()) {
    FinalHash parts;
    for (std::size_t i = 0; i < walk->parts().size(); ++i) {
      StatePart part = walk->parts()[i];
      part.bytes = walk->bytes(i);
      parts.add(part);
    }
    walked = parts.finish();
    if (optimizer_bytes(engine) != kept) return "a walk keeps more than before";
  }
  engine.gather_state(-1);
  const std::size_t whole = optimizer_bytes(engine);
  const std::string hash = engine.state().hash();
  if (!walked.empty() && walked != hash) return "a walk sees another state";
  engine.begin_step(6);
  if (optimizer_bytes(engine) != kept) return "more is kept than before it was gathered";
  engine.abandon_step();
  return hash + " " + (job.direct ? std::to_string(values.at("parameter_norm")) + " " : "") +
         std::to_string(kept) + " " + std::to_string(whole);
}

TEST_CASE(
    "a sharded optimizer has the bits of a whole one, on any number of trainers, and a share of its state") {
  const AnyJob job{GENERATE(Kind::kSgd, Kind::kAdam, Kind::kAdamW, Kind::kRmsProp, Kind::kAdagrad)};
  CAPTURE(static_cast<int>(job.kind));
  const auto whole = fork_ranks(
      kShards, 1, [&](auto group) { return train(*engine_for(job, kShards, {}, false), group, job); });
  const std::string hash = whole[0].substr(0, 64);
  const std::size_t bytes = std::stoul(whole[0].substr(whole[0].rfind(' ') + 1));
  REQUIRE(hash.find(' ') == std::string::npos);
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    std::size_t kept = 0;
    for (const auto& said : fork_ranks(kShards, ranks, [&](auto group) {
           return train(*engine_for(job, kShards, {}, true), group, job);
         })) {
      CAPTURE(said);
      CHECK(said.substr(0, 64) == hash);
      REQUIRE(said.size() > 66);
      CHECK(std::stoul(said.substr(said.rfind(' ') + 1)) == bytes);
      kept += std::stoul(said.substr(65));
    }
    CHECK(kept == bytes);
  }
}

// Its norms were of the weights that the others had stepped and this trainer did not have.
TEST_CASE("an optimizer that the job steps by itself is sharded, too, and counted as it is then") {
  const AnyJob job{.kind = Kind::kAdam, .direct = true};
  const auto whole = fork_ranks(
      kShards, 1, [&](auto group) { return train(*engine_for(job, kShards, {}, false), group, job); });
  for (const auto& said : fork_ranks(
           kShards, 2, [&](auto group) { return train(*engine_for(job, kShards, {}, true), group, job); }))
    CHECK(said.substr(0, 66 + 8) == whole[0].substr(0, 66 + 8));  // the norm, too
}

TEST_CASE("large parameters, which go from where they lie, have the same bits") {
  const AnyJob job{.kind = Kind::kAdamW, .hidden = 8192};  // one of 512 KiB
  const auto whole = fork_ranks(
      kShards, 1, [&](auto group) { return train(*engine_for(job, kShards, {}, false), group, job); });
  for (const auto& said : fork_ranks(
           kShards, 2, [&](auto group) { return train(*engine_for(job, kShards, {}, true), group, job); }))
    CHECK(said.substr(0, 64) == whole[0].substr(0, 64));
}

TEST_CASE("state gathers on one trainer alone where that is asked for") {
  const AnyJob job{.kind = Kind::kAdam};
  const auto said = fork_ranks(kShards, 2, [&](auto group) -> std::string {
    auto engine = engine_for(job, kShards, {}, true);
    train(*engine, group, job);
    engine->gather_state(0);
    return std::to_string(optimizer_bytes(*engine));
  });
  CHECK(std::stoul(said[0]) > std::stoul(said[1]));
}

TEST_CASE("shards are dealt as ZeroRedundancyOptimizer deals them") {
  // The largest first, to the least filled; sizes go on from group to group.
  CHECK((deal_shards({{10, 400, 20, 300}, {500, 5}}, 2) ==
         std::vector<std::vector<int>>{{1, 0, 1, 1}, {1, 0}}));
  CHECK((deal_shards({{7, 7, 7}}, 2) == std::vector<std::vector<int>>{{0, 1, 0}}));
  CHECK((deal_shards({{3}}, 4) == std::vector<std::vector<int>>{{0}}));
}

TEST_CASE("an optimizer of the job's own is not sharded, and the error says what to do") {
  CHECK_THROWS_WITH(engine_for(AnyJob{.kind = Kind::kOwn}, kShards, {}, true),
                    Catch::Contains("the optimizer 'lower' cannot be sharded") && Catch::Contains(".shard"));
  CHECK_NOTHROW(engine_for(AnyJob{.kind = Kind::kOwn}, kShards, {}, false));
}

}  // namespace
}  // namespace troupe::train::testing
