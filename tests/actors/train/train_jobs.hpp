/// Jobs, batches and forked ranks that the tests of the engine share.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/train/engine/numerics.hpp"
#include "actors/train/engine/step_engine.hpp"
#include "actors/train/job/batch.hpp"
#include "actors/train/job/model.hpp"
#include "collectives/process_group.hpp"
#include "examples/mnist/model.hpp"

namespace troupe::train::testing {

/// A small net with everything that makes bits move: BatchNorm, dropout and tanh.
struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl(int hidden, double dropout);
  torch::Tensor forward(const torch::Tensor& x);
  torch::nn::Linear in, out;
  torch::nn::BatchNorm1d norm;
  double dropout;
};
TORCH_MODULE(SmallNet);

struct SmallJob {
  SmallNet model() const { return SmallNet(24, dropout); }
  torch::optim::Adam optimizer(SmallNet& net) const {
    return torch::optim::Adam(net->parameters(), torch::optim::AdamOptions(0.01));
  }
  torch::Tensor loss(SmallNet& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }
  torch::optim::StepLR scheduler(torch::optim::Adam& optimizer) const { return {optimizer, 1, 0.5}; }

  double dropout = 0.3;
};

struct ConvJob {
  ConvNet model() const { return ConvNet(); }
  torch::optim::SGD optimizer(ConvNet& net) const {
    return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  }
  torch::Tensor loss(ConvNet& net, const data::Batch& batch) const {
    return torch::nn::functional::cross_entropy(net->forward(batch.input), batch.target);
  }

  double lr = 0.01;
};

/// 16 inputs and 4 classes for SmallNet; a function of its arguments.
data::Batch small_batch(std::uint64_t step, int leaf, int size = 6);
/// [size, 1, 28, 28] images for ConvNet, by the formula that golden/make_ddp_golden.py uses.
data::Batch image_batch(int step, int leaf, int size);

constexpr std::uint64_t kSeed = 7;
/// small_batch of six samples.
inline data::Batch small(std::uint64_t step, int leaf) {
  return small_batch(step, leaf);
}

/// An engine that computes `leaves` of the job's leaves in this process, whose numerics are set up.
template <class Job>
std::unique_ptr<StepEngine> engine_for(const Job& job, int leaves, const ReducerOptions& reducer = {},
                                       bool sharded = false) {
  set_up_numerics();
  return std::make_unique<StepEngine>(
      make_training_model(job, kSeed),
      EngineOptions{.logical_ranks = leaves, .seed = kSeed, .reducer = reducer, .shard_optimizer = sharded});
}

using BatchOf = std::function<data::Batch(std::uint64_t step, int leaf)>;
std::vector<LeafBatch> leaf_batches(const collectives::ProcessGroup& group, std::uint64_t step,
                                    const BatchOf& batch);

/// Runs `body` in a forked process a rank over a native group that deals `leaves` (one interval a rank);
/// returns what each body returned. A body that throws returns "threw: " and the message. Processes and not
/// threads, because LibTorch has one default generator a process.
using RankBody = std::function<std::string(std::shared_ptr<collectives::ProcessGroup> group)>;
/// `nodes`: the ranks of each host; empty: all on one.
std::vector<std::string> fork_ranks(const std::vector<collectives::LeafInterval>& leaves,
                                    const RankBody& body, const std::vector<std::vector<int>>& nodes = {});
/// As above with leaves dealt evenly.
std::vector<std::string> fork_ranks(int leaves, int ranks, const RankBody& body);

/// A group of this process alone, with `leaves` logical ranks.
std::shared_ptr<collectives::ProcessGroup> lone_group(int leaves);

/// Of the whole state, wherever its parts are. Collective where trainers have it in pieces.
std::string hash_of(StepEngine& engine);

}  // namespace troupe::train::testing
