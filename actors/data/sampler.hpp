/// Which samples a logical rank sees: pure functions of (seed, epoch, step, leaf).
///
/// The order is PyTorch's DistributedSampler (torch/utils/data/distributed.py), number for number, over the L
/// logical ranks: a job's data does not depend on how many trainers run it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::data {

/// torch.randperm(n) of a CPU generator seeded with `seed`: Fisher-Yates on the Mersenne Twister
/// (aten/src/ATen/native/TensorFactories.cpp, randperm_cpu). REQUIRES: 0 <= n <= kMaxDatasetSize.
std::vector<std::int64_t> randperm(std::int64_t n, std::uint64_t seed);

/// PyTorch draws 64-bit numbers above this size; we refuse such a dataset rather than give another order.
inline constexpr std::int64_t kMaxDatasetSize = 0xffffffffLL / 20 - 1;

/// torch.multinomial(weights, draws, replacement=True) of a CPU generator seeded with `seed`: number for
/// number (aten/src/ATen/native/cpu/MultinomialKernel.cpp). REQUIRES: weights that check_weights() passes.
std::vector<std::int64_t> multinomial(std::span<const double> weights, std::int64_t draws,
                                      std::uint64_t seed);

/// Which samples an epoch has, and in which order: what a job's `sampler()` returns. Part of the job's
/// identity.
struct Sampling {
  bool shuffle = true;  ///< false: 0, 1, 2, ...
  /// DistributedSampler's drop_last: cut the tail that does not divide by L, instead of repeating samples
  /// from the head of the order.
  bool drop_last = false;
  /// DataLoader's drop_last: leave out a leaf's last batch when it is short. Otherwise it is trained on
  /// short: all leaves of a step have equally many samples always, so the mean over leaves stays the mean
  /// over samples.
  bool drop_short_batch = false;
  /// One a sample: samples are drawn with replacement, each as often as its weight says. Empty: each once.
  std::vector<double> weights{};
  std::int64_t draws = 0;  ///< samples of an epoch that are drawn by weight; 0: as many as there are
};
/// PyTorch's SequentialSampler, dealt to the logical ranks.
Sampling sequential();
/// PyTorch's WeightedRandomSampler with replacement, dealt to the logical ranks.
Sampling weighted(std::vector<double> weights, std::int64_t draws = 0);

/// A hash of a job's sampling.
std::uint64_t sampling_hash(const Sampling& sampling);

/// What a sampler needs to know of a job. All of it is part of the job's identity.
struct SamplerOptions {
  std::int64_t dataset_size = 0;  ///< samples, 1 to kMaxDatasetSize
  int logical_ranks = 1;          ///< L
  std::int64_t batch = 1;         ///< samples a leaf a step
  std::uint64_t seed = 0;         ///< as PyTorch: the generator is seeded with seed + epoch
  Sampling sampling{};
};

/// The positions of one rank, as DistributedSampler's iterator yields them for `epoch`. REQUIRES: valid
/// options, 0 <= leaf < logical_ranks.
std::vector<std::int64_t> distributed_indices(const SamplerOptions& options, std::uint64_t epoch, int leaf);

/// The micro-batches of every leaf. Keeps the order of the last two epochs (a loader prefetches across their
/// border), so that a call costs the copy of its indices. Not thread-safe: each loader thread has its own.
class LeafSampler {
 public:
  /// Throws BadConfig for an empty or too large dataset, L or batch below 1, a batch of all leaves larger
  /// than an epoch, or weights that are not one a sample, negative, not finite or all zero.
  explicit LeafSampler(SamplerOptions options);

  const SamplerOptions& options() const { return options_; }
  /// Samples a leaf sees in an epoch: the same for all leaves.
  std::int64_t samples_per_leaf() const { return samples_per_leaf_; }
  /// Steps an epoch, at least 1.
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  /// Samples in each leaf's batch at `step` of an epoch: `batch`, less in a short last one.
  std::int64_t batch_size(std::int64_t step) const;
  /// The dataset positions that `leaf` trains on at `step` (counted from 0 in each epoch).
  /// REQUIRES: 0 <= step < steps_per_epoch(), 0 <= leaf < logical_ranks.
  std::vector<std::int64_t> indices(std::uint64_t epoch, std::int64_t step, int leaf);

 private:
  struct Order {
    bool valid = false;
    std::uint64_t epoch = 0;
    std::vector<std::int64_t> positions;
  };
  const std::vector<std::int64_t>& order(std::uint64_t epoch);

  SamplerOptions options_;
  std::int64_t samples_per_leaf_ = 0;
  std::int64_t steps_per_epoch_ = 0;
  std::array<Order, 2> cache_;  // an epoch lives in slot epoch % 2
};

/// A hash of a list of positions, in order: what the ledger records for a slot. Stable across versions.
std::uint64_t index_hash(std::span<const std::int64_t> indices);
/// The same of begin, begin + 1, ..., end - 1.
std::uint64_t index_hash_of_range(std::int64_t begin, std::int64_t end);

/// Positions [begin, end).
struct EvalInterval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const EvalInterval&) const = default;
};

/// The part of a test set that `rank` evaluates: contiguous, no padding, each sample exactly once over all
/// ranks; sizes differ by one at most, and are 0 for some where there are more ranks than samples. REQUIRES:
/// size >= 0, 0 <= rank < ranks.
EvalInterval eval_interval(std::int64_t size, int ranks, int rank);

}  // namespace troupe::data
