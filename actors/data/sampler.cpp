#include "actors/data/sampler.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/random.hpp"

namespace troupe::data {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Samples of an epoch before they are dealt.
std::int64_t epoch_size(const SamplerOptions& options) {
  const Sampling& sampling = options.sampling;
  return sampling.weights.empty() || sampling.draws == 0 ? options.dataset_size : sampling.draws;
}

std::int64_t samples_each(const SamplerOptions& options) {
  const std::int64_t ranks = options.logical_ranks;
  return options.sampling.drop_last ? epoch_size(options) / ranks : ceil_div(epoch_size(options), ranks);
}

/// The whole order of an epoch, padded or cut to L * samples_each.
std::vector<std::int64_t> epoch_order(const SamplerOptions& options, std::uint64_t epoch) {
  std::vector<std::int64_t> order;
  if (!options.sampling.weights.empty()) {
    order = multinomial(options.sampling.weights, epoch_size(options), options.seed + epoch);
  } else if (options.sampling.shuffle) {
    order = randperm(options.dataset_size, options.seed + epoch);
  } else {
    order.resize(static_cast<std::size_t>(options.dataset_size));
    std::iota(order.begin(), order.end(), 0);
  }
  const auto total = static_cast<std::size_t>(samples_each(options) * options.logical_ranks);
  const std::size_t size = order.size();
  order.resize(total);
  for (std::size_t i = size; i < total; ++i) order[i] = order[i - size];
  return order;
}

void check_weights(const SamplerOptions& options) {
  const auto& weights = options.sampling.weights;
  const auto refuse = [](std::string why) {
    throw BadConfig("cannot draw samples by weight", std::move(why),
                    "give each sample a weight of 0 or more");
  };
  if (options.sampling.draws < 0 || options.sampling.draws > kMaxDatasetSize)
    refuse(std::to_string(options.sampling.draws) + " draws an epoch");
  if (weights.empty()) return;
  if (static_cast<std::int64_t>(weights.size()) != options.dataset_size) {
    refuse("there are " + std::to_string(weights.size()) + " weights for " +
           std::to_string(options.dataset_size) + " samples");
  }
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0)
      refuse("the weight of sample " + std::to_string(i) + " is " + std::to_string(weights[i]));
    sum += weights[i];
  }
  if (!std::isfinite(sum) || sum <= 0) refuse("their sum is " + std::to_string(sum));
}

void check(const SamplerOptions& options) {
  const auto size = std::to_string(options.dataset_size);
  if (options.dataset_size < 1) {
    throw BadConfig("cannot sample an empty dataset", "it has " + size + " samples", "check the data folder");
  }
  if (options.dataset_size > kMaxDatasetSize) {
    throw BadConfig("cannot sample a dataset of " + size + " samples",
                    "the order is defined up to " + std::to_string(kMaxDatasetSize), "split the dataset");
  }
  if (options.logical_ranks < 1) {
    throw BadConfig("logical ranks must be at least 1", "got " + std::to_string(options.logical_ranks), "");
  }
  if (options.batch < 1) {
    throw BadConfig("batch must be at least 1", "got " + std::to_string(options.batch), "");
  }
  check_weights(options);
  if (options.batch > epoch_size(options) / options.logical_ranks) {
    throw BadConfig("batch is larger than the dataset",
                    std::to_string(options.logical_ranks) + " logical ranks of " +
                        std::to_string(options.batch) + " samples each need more than the " +
                        std::to_string(epoch_size(options)) + " there are",
                    "use a smaller batch or fewer logical ranks");
  }
}

}  // namespace

std::vector<std::int64_t> randperm(std::int64_t n, std::uint64_t seed) {
  TROUPE_ASSERT(n >= 0 && n <= kMaxDatasetSize, "a permutation that 32-bit draws define");
  // PyTorch's generator takes a 64-bit seed and uses its lower half.
  std::mt19937 generator(static_cast<std::uint32_t>(seed));
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    std::swap(order[i], order[i + generator() % (order.size() - i)]);
  }
  return order;
}

std::vector<std::int64_t> distributed_indices(const SamplerOptions& options, std::uint64_t epoch, int leaf) {
  TROUPE_ASSERT(leaf >= 0 && leaf < options.logical_ranks, "a leaf of this job");
  const auto order = epoch_order(options, epoch);
  std::vector<std::int64_t> mine;
  const auto stride = static_cast<std::size_t>(options.logical_ranks);
  for (auto at = static_cast<std::size_t>(leaf); at < order.size(); at += stride) mine.push_back(order[at]);
  return mine;
}

std::vector<std::int64_t> multinomial(std::span<const double> weights, std::int64_t draws,
                                      std::uint64_t seed) {
  std::vector<double> cumulative;
  cumulative.reserve(weights.size());
  double sum = 0;
  for (const double weight : weights) cumulative.push_back(sum += weight);
  for (double& up_to : cumulative) up_to /= sum;
  cumulative.back() = 1;
  std::mt19937 generator(static_cast<std::uint32_t>(seed));
  std::vector<std::int64_t> drawn(static_cast<std::size_t>(draws));
  for (auto& index : drawn) {
    const std::uint64_t high = generator();
    const std::uint64_t bits = high << 32 | generator();
    const double uniform = static_cast<double>(bits & ((std::uint64_t{1} << 53) - 1)) * 0x1.0p-53;
    index = std::lower_bound(cumulative.begin(), cumulative.end(), uniform) - cumulative.begin();
  }
  return drawn;
}

Sampling sequential() {
  Sampling sampling;
  sampling.shuffle = false;
  return sampling;
}

Sampling weighted(std::vector<double> weights, std::int64_t draws) {
  Sampling sampling;
  sampling.weights = std::move(weights);
  sampling.draws = draws;
  return sampling;
}

std::uint64_t sampling_hash(const Sampling& sampling) {
  std::uint64_t hash = mix(0x73616d706c65, sampling.weights.size());
  for (const double weight : sampling.weights) hash = mix(hash, std::bit_cast<std::uint64_t>(weight));
  hash = mix(hash, static_cast<std::uint64_t>(sampling.draws));
  return mix(hash, (sampling.shuffle ? 1U : 0U) | (sampling.drop_last ? 2U : 0U) |
                       (sampling.drop_short_batch ? 4U : 0U));
}

LeafSampler::LeafSampler(SamplerOptions options) : options_(std::move(options)) {
  check(options_);
  samples_per_leaf_ = samples_each(options_);
  steps_per_epoch_ = options_.sampling.drop_short_batch ? samples_per_leaf_ / options_.batch
                                                        : ceil_div(samples_per_leaf_, options_.batch);
}

std::int64_t LeafSampler::batch_size(std::int64_t step) const {
  TROUPE_ASSERT(step >= 0 && step < steps_per_epoch_, "a step of the epoch");
  return std::min(options_.batch, samples_per_leaf_ - step * options_.batch);
}

std::vector<std::int64_t> LeafSampler::indices(std::uint64_t epoch, std::int64_t step, int leaf) {
  TROUPE_ASSERT(leaf >= 0 && leaf < options_.logical_ranks, "a leaf of this job");
  const auto count = batch_size(step);
  const auto& positions = order(epoch);
  std::vector<std::int64_t> batch(static_cast<std::size_t>(count));
  auto at = static_cast<std::size_t>(step * options_.batch * options_.logical_ranks + leaf);
  for (auto& index : batch) {
    index = positions[at];
    at += static_cast<std::size_t>(options_.logical_ranks);
  }
  return batch;
}

const std::vector<std::int64_t>& LeafSampler::order(std::uint64_t epoch) {
  Order& slot = cache_[epoch % cache_.size()];
  if (!slot.valid || slot.epoch != epoch) slot = {true, epoch, epoch_order(options_, epoch)};
  return slot.positions;
}

std::uint64_t index_hash(std::span<const std::int64_t> indices) {
  std::uint64_t hash = mix(0x74726f757065, indices.size());
  for (const auto index : indices) hash = mix(hash, static_cast<std::uint64_t>(index));
  return hash;
}

std::uint64_t index_hash_of_range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return index_hash(indices);
}

EvalInterval eval_interval(std::int64_t size, int ranks, int rank) {
  TROUPE_ASSERT(size >= 0 && rank >= 0 && rank < ranks, "a rank of the group");
  const std::int64_t least = size / ranks;
  const std::int64_t larger = size % ranks;  // the first ranks have one more
  const std::int64_t begin = rank * least + std::min<std::int64_t>(rank, larger);
  return {begin, begin + least + (rank < larger ? 1 : 0)};
}

}  // namespace troupe::data
