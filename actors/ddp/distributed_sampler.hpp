/// PyTorch's DistributedSampler, number for number: which samples a rank sees in an epoch. (LibTorch's own
/// DistributedRandomSampler gives others.)
///
///   troupe::train::DistributedSampler sampler(dataset.size().value(), *group);
///   auto loader = torch::data::make_data_loader(dataset, sampler, 100);
///   for (int epoch = 0; epoch < 3; ++epoch) {
///     sampler.set_epoch(epoch);  // another order; the loader's copy follows
///     for (auto& batch : *loader) ...
///   }
#pragma once

#include <torch/data/samplers/distributed.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::train {

struct DistributedSamplerOptions {
  bool shuffle = true;     ///< false: 0, 1, 2, ...
  std::uint64_t seed = 0;  ///< the order is that of seed + epoch; the same on every rank
  bool drop_last = false;  ///< cut the tail that does not divide by the ranks, instead of repeating samples
};

namespace detail {
/// LibTorch's optional: c10's in 1.13, the standard library's in 2.x.
template <class Optional, class T>
struct OptionalOf;
template <template <class> class Optional, class U, class T>
struct OptionalOf<Optional<U>, T> {
  using type = Optional<T>;
};
}  // namespace detail

/// Copies share the epoch: a data loader keeps one. Not thread-safe.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  using OptionalBatch = decltype(std::declval<torch::data::samplers::Sampler<>&>().next(1));
  using OptionalSize = detail::OptionalOf<OptionalBatch, std::size_t>::type;

  /// Throws BadConfig for an empty or too large dataset, and for a rank that there is not.
  DistributedSampler(std::size_t size, int ranks, int rank, const DistributedSamplerOptions& options = {});
  DistributedSampler(std::size_t size, const collectives::ProcessGroup& group,
                     const DistributedSamplerOptions& options = {})
      : DistributedSampler(size, group.size(), group.rank(), options) {}

  /// From the next pass over the data on.
  void set_epoch(std::uint64_t epoch) { *epoch_ = epoch; }
  std::uint64_t epoch() const { return *epoch_; }
  /// Samples that a rank sees in an epoch: the same on all.
  std::size_t size() const;
  /// All of this rank's positions in the epoch, in order.
  std::vector<std::int64_t> indices() const;

  // For LibTorch's data loaders.
  void reset(OptionalSize new_size = {}) override;
  OptionalBatch next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::size_t size_;
  int ranks_;
  int rank_;
  DistributedSamplerOptions options_;
  std::shared_ptr<std::uint64_t> epoch_ = std::make_shared<std::uint64_t>(0);
  std::vector<std::int64_t> order_;  ///< of the pass under way
  std::size_t at_ = 0;
};

}  // namespace troupe::train
