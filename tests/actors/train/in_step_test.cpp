// SyncBatchNorm in a job: layers over all leaves of a step, whoever computes them.
#include <catch2/catch.hpp>
#include <sstream>

#include "actors/ddp/sync_batch_norm.hpp"
#include "actors/train/engine/leaf_relay.hpp"
#include "actors/train/engine/numerics.hpp"
#include "runtime/core/error.hpp"
#include "tests/actors/train/train_jobs.hpp"

namespace troupe::train::testing {
namespace {

/// Two norms, dropout between, and a parameter that lies in two segments of the backward.
struct DeepNetImpl : torch::nn::Module {
  explicit DeepNetImpl(double dropout_rate) : dropout(dropout_rate) {
    register_module("in", in);
    register_module("first", first);
    register_module("middle", middle);
    register_module("second", second);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = torch::tanh(first->forward(in->forward(x)));
    if (dropout > 0) y = torch::dropout(y, dropout, is_training());
    y = middle->forward(torch::tanh(second->forward(middle->forward(y))));
    return out->forward(y);
  }
  torch::nn::Linear in{16, 12}, middle{12, 12}, out{12, 4};
  torch::nn::BatchNorm1d first{12}, second{12};
  double dropout;
};
TORCH_MODULE(DeepNet);

struct SyncJob {
  double dropout = 0.3;
  bool converts = true;

  DeepNet model() const { return converts ? convert_sync_batchnorm(DeepNet(dropout)) : DeepNet(dropout); }
  torch::optim::SGD optimizer(DeepNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  torch::Tensor loss(DeepNet& net, const data::Batch& batch, Leaf& at) const {
    at.weight(static_cast<double>(batch.size()));
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
};

/// Leaves have 6, 3, 5, 2 samples.
data::Batch uneven(std::uint64_t step, int leaf) {
  constexpr int kSizes[] = {6, 3, 5, 2};
  return small_batch(step, leaf, kSizes[leaf % 4]);
}
double samples_of(int leaves) {
  double samples = 0;
  for (int leaf = 0; leaf < leaves; ++leaf) samples += static_cast<double>(uneven(0, leaf).size());
  return samples;
}

ReducerOptions small_buckets(bool allow_unused = false) {
  ReducerOptions reducer;
  reducer.allow_unused = allow_unused;
  reducer.buckets = {.cap_bytes = 1024, .first_cap_bytes = 256};
  return reducer;
}

void step(StepEngine& engine, const collectives::ProcessGroup& group, std::uint64_t number, int leaves) {
  engine.run_step(number, leaf_batches(group, number, uneven));
  engine.apply(false, samples_of(leaves));
}

TEST_CASE("SyncBatchNorm in a job is BatchNorm on the batches of all leaves, which may be of unlike sizes") {
  const int leaves = 4;
  auto engine = engine_for(SyncJob{.dropout = 0}, leaves, small_buckets());
  const auto group = lone_group(leaves);
  engine->attach(group);
  const auto golden = make_training_model(SyncJob{.dropout = 0, .converts = false}, kSeed);
  for (std::uint64_t number = 0; number < 100; ++number) {
    step(*engine, *group, number, leaves);
    std::vector<torch::Tensor> inputs, targets;
    for (int leaf = 0; leaf < leaves; ++leaf) {
      inputs.push_back(uneven(number, leaf).input);
      targets.push_back(uneven(number, leaf).target);
    }
    Leaf at({}, 0);
    golden->loss({torch::cat(inputs), torch::cat(targets)}, at).backward();
    golden->optimizers()[0].optimizer->step();
    golden->optimizers()[0].optimizer->zero_grad();
  }
  const auto compare = [](const auto& ours, const auto& theirs) {
    REQUIRE(ours.size() == theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      INFO(ours[i].name << ": " << ours[i].tensor << " but should be " << theirs[i].tensor);
      CHECK(torch::allclose(ours[i].tensor.to(torch::kDouble), theirs[i].tensor.to(torch::kDouble), 1e-5,
                            1e-5));
    }
  };
  compare(engine->model().parameters(), golden->parameters());
  compare(engine->model().buffers(), golden->buffers());
}

std::string train(StepEngine& engine, const std::shared_ptr<collectives::ProcessGroup>& group, int leaves) {
  engine.attach(group);
  for (std::uint64_t number = 0; number < 8; ++number) step(engine, *group, number, leaves);
  return engine.state().hash();
}

TEST_CASE("a job with SyncBatchNorm ends with one hash for every dealing of leaves over trainers") {
  const int leaves = 4;
  const bool allow_unused = GENERATE(false, true);
  const auto body = [&](auto group) {
    return train(*engine_for(SyncJob{}, leaves, small_buckets(allow_unused)), group, leaves);
  };
  const auto one = fork_ranks(leaves, 1, body);
  CHECK(one[0].size() == 64);
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(allow_unused, ranks);
    for (const std::string& hash : fork_ranks(leaves, ranks, body)) CHECK(hash == one[0]);
  }
  for (const std::string& hash : fork_ranks({{0, 1}, {1, 4}}, body)) CHECK(hash == one[0]);
  const auto plain = fork_ranks(leaves, 1, [&](auto group) {
    return train(*engine_for(SyncJob{.converts = false}, leaves, small_buckets()), group, leaves);
  });
  CHECK(plain[0] != one[0]);
}

/// Aborts the group in the loss of the leaf at the step where `dies` says so: the others wait in a layer
/// then.
struct DyingJob : SyncJob {
  static inline std::function<void(const Leaf&)> dies = [](const Leaf&) {};
  torch::Tensor loss(DeepNet& net, const data::Batch& batch, Leaf& at) const {
    dies(at);
    return SyncJob::loss(net, batch, at);
  }
};

TEST_CASE(
    "a step that was aborted inside a layer leaves the state untouched, and runs again with the same bits") {
  const int leaves = 4;
  const auto undisturbed = fork_ranks(leaves, 1, [&](auto group) {
    return train(*engine_for(DyingJob{}, leaves, small_buckets()), group, leaves);
  });
  const int at_leaf = GENERATE(2, 3);
  const auto disturbed = fork_ranks(leaves, 2, [&](auto group) -> std::string {
    auto engine = engine_for(DyingJob{}, leaves, small_buckets());
    engine->attach(group);
    int aborted = 0;
    if (group->rank() == 1) {
      DyingJob::dies = [&](const Leaf& at) {
        if (at.step == 3 && at.rank == at_leaf && aborted == 0) group->abort("a test ends this group");
      };
    }
    for (std::uint64_t number = 0; number < 8; ++number) {
      const std::string before = engine->state().hash();
      try {
        step(*engine, *group, number, leaves);
      } catch (const CollectiveAborted&) {
        ++aborted;
        if (engine->state().hash() != before) return "the aborted step changed the state";
        group = lone_group(leaves);
        engine->attach(group);
        step(*engine, *group, number, leaves);
      }
    }
    return aborted == 1 ? engine->state().hash() : "no step was aborted";
  });
  CAPTURE(at_leaf);
  for (const std::string& hash : disturbed) CHECK(hash == undisturbed[0]);
}

TEST_CASE("a copy of the state computes a leaf again with what was gathered") {
  const auto said = fork_ranks(4, 2, [](auto group) -> std::string {
    auto engine = engine_for(SyncJob{}, 4, small_buckets());
    auto plain = engine_for(SyncJob{}, 4, small_buckets());
    engine->attach(group);
    for (std::uint64_t number = 0; number < 3; ++number) {
      if (number > 0) engine->rehearse(make_training_model(SyncJob{}, kSeed));
      step(*engine, *group, number, 4);
    }
    return engine->state().hash();
  });
  CHECK(said[0].size() == 64);
  CHECK(said[0] == said[1]);
}

/// Leaves of one trainer that do not go through the same layers.
struct UnlikeJob : SyncJob {
  torch::Tensor loss(DeepNet& net, const data::Batch& batch, Leaf& at) const {
    if (at.rank == 1) return net->out->forward(net->in->forward(batch.input)).square().mean();
    return SyncJob::loss(net, batch, at);
  }
};

TEST_CASE("leaves that do not wait for each other, and more than one on a GPU, are errors with words") {
  auto engine = engine_for(UnlikeJob{}, 2, small_buckets(/*allow_unused=*/true));
  const auto group = lone_group(2);
  engine->attach(group);
  CHECK_THROWS_WITH(engine->run_step(0, leaf_batches(*group, 0, uneven)),
                    Catch::Contains("do not go through the same SyncBatchNorm layers"));
  CHECK_NOTHROW(check_leaves_in_step(torch::kCUDA, 1));
  CHECK_NOTHROW(check_leaves_in_step(torch::kCPU, 4));
  CHECK_THROWS_WITH(check_leaves_in_step(torch::kCUDA, 2), Catch::Contains("cannot compute 2 leaves"));
}

TEST_CASE("leaves take turns in their order, and what one throws ends the others") {
  std::string told;
  const auto calls = [&] {
    return LeafRelay::Calls{.enter = [&](std::size_t leaf) { told += " +" + std::to_string(leaf); },
                            .leave = [&](std::size_t leaf) { told += " -" + std::to_string(leaf); },
                            .exchange =
                                [&](const auto& rows) {
                                  told += " all";
                                  return torch::stack(rows);
                                }};
  };
  LeafRelay relay(3, calls());
  relay.run([&](std::size_t leaf) {
    for (int time = 0; time < 2; ++time) {
      const torch::Tensor all = relay.gather(leaf, torch::full({1}, static_cast<double>(leaf)));
      told += all.sum().item<double>() == 3 ? " =" : " ?";
    }
  });
  CHECK(told == " +0 -0 +1 -1 +2 -2 all +0 = -0 +1 = -1 +2 = -2 all +0 = +1 = +2 =");

  LeafRelay failing(3, calls());
  std::atomic<int> returned{0};
  CHECK_THROWS_WITH(failing.run([&](std::size_t leaf) {
    failing.gather(leaf, torch::zeros({1}));
    if (leaf == 1) throw std::runtime_error("leaf 1 is tired");
    failing.gather(leaf, torch::zeros({1}));
    ++returned;
  }),
                    "leaf 1 is tired");
  CHECK(returned == 0);
}

}  // namespace
}  // namespace troupe::train::testing
