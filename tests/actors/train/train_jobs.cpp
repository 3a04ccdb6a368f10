#include "tests/actors/train/train_jobs.hpp"

#include <cmath>

#include "actors/train/engine/numerics.hpp"
#include "collectives/native/native_group.hpp"
#include "runtime/core/random.hpp"
#include "tests/collectives/ranks.hpp"

namespace troupe::train::testing {
namespace {

constexpr std::size_t kTree_bytes = std::size_t{8} << 20;

}  // namespace

SmallNetImpl::SmallNetImpl(int hidden, double dropout_rate)
    : in(16, hidden), out(hidden, 4), norm(hidden), dropout(dropout_rate) {
  register_module("in", in);
  register_module("norm", norm);
  register_module("out", out);
}

torch::Tensor SmallNetImpl::forward(const torch::Tensor& x) {
  torch::Tensor hidden = torch::tanh(norm->forward(in->forward(x)));
  if (dropout > 0) hidden = torch::dropout(hidden, dropout, is_training());
  return out->forward(hidden);
}

data::Batch small_batch(std::uint64_t step, int leaf, int size) {
  SeededRandom random(mix(mix(99, step), static_cast<std::uint64_t>(leaf)));
  data::Batch batch{torch::empty({size, 16}), torch::empty({size}, torch::kInt64)};
  for (int i = 0; i < size * 16; ++i)
    batch.input.data_ptr<float>()[i] = static_cast<float>(random.uniform() - 0.5);
  for (int i = 0; i < size; ++i)
    batch.target.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random.below(4));
  return batch;
}

data::Batch image_batch(int step, int leaf, int size) {
  data::Batch batch{torch::empty({size, 1, 28, 28}), torch::empty({size}, torch::kInt64)};
  for (int i = 0; i < size; ++i) {
    const int label = (step * 7 + leaf * 3 + i) % 10;
    batch.target.data_ptr<std::int64_t>()[i] = label;
    float* pixels = batch.input.data_ptr<float>() + static_cast<std::ptrdiff_t>(i) * 28 * 28;
    for (int y = 0; y < 28; ++y) {
      for (int x = 0; x < 28; ++x) {
        const int noise = (x * 31 + y * 17 + step * 13 + leaf * 5 + i * 11) % 23;
        pixels[y * 28 + x] =
            static_cast<float>(std::sin(0.11 * (label + 1) * x + 0.23 * y) + noise / 23.0 - 0.5);
      }
    }
  }
  return batch;
}

std::vector<LeafBatch> leaf_batches(const collectives::ProcessGroup& group, std::uint64_t step,
                                    const BatchOf& batch) {
  std::vector<LeafBatch> batches;
  for (int leaf = group.leaves().begin; leaf < group.leaves().end; ++leaf) {
    batches.push_back({leaf, batch(step, leaf)});
  }
  return batches;
}

std::vector<std::string> fork_ranks(const std::vector<collectives::LeafInterval>& leaves,
                                    const RankBody& body, const std::vector<std::vector<int>>& nodes) {
  set_up_numerics();  // one thread, so that a forked child has what it needs
  collectives::testing::Layout layout;
  layout.leaves = leaves;
  layout.nodes = nodes;
  layout.data_bytes = kTree_bytes;
  return collectives::testing::run_forked(
      collectives::testing::options_of(static_cast<int>(leaves.size()), layout), body);
}

std::vector<std::string> fork_ranks(int leaves, int ranks, const RankBody& body) {
  return fork_ranks(collectives::deal_leaves(leaves, ranks), body);
}

std::shared_ptr<collectives::ProcessGroup> lone_group(int leaves) {
  collectives::testing::Layout layout;
  layout.leaves = {{0, leaves}};
  layout.data_bytes = kTree_bytes;
  return collectives::make_native_group(std::move(collectives::testing::options_of(1, layout)[0]));
}

std::string hash_of(StepEngine& engine) {
  ParameterShards* pieces = engine.pieces();
  if (pieces == nullptr) return engine.state().hash();
  FinalHash hash;
  const auto walk = pieces->walk(-1);
  for (std::size_t i = 0; i < walk->parts().size(); ++i) {
    StatePart part = walk->parts()[i];
    part.bytes = walk->bytes(i);
    hash.add(part);
  }
  return hash.finish();
}

}  // namespace troupe::train::testing
