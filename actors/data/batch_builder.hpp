/// From a dataset and a list of indices to a batch: what a loader does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/data/batch_layout.hpp"
#include "actors/data/dataset.hpp"

namespace troupe::data {

/// What a loader does beside each sample.
struct SampleHooks {
  std::function<void()> before{};             ///< tells that the loader makes progress
  std::function<void(std::uint64_t)> seed{};  ///< seeds other generators that get() and write() draw from
  std::function<void()> after{};              ///< the dataset's own code has returned
};

/// One batch under construction. What the dataset throws is thrown as an Error (kTaskFailed) that names the
/// sample, and samples or batches that do not fit together are one that names index, field and shapes.
/// Not thread-safe.
class BatchBuilder {
 public:
  /// Reads the samples, unless all have the same known fields: then the sizes are known and write() reads
  /// them straight into the batch. REQUIRES: `dataset` and `indices` outlive the builder; indices within the
  /// dataset, at least one.
  BatchBuilder(const Dataset& dataset, std::span<const std::int64_t> indices, RandomKey random,
               SampleHooks hooks = {});

  /// Bytes that write() needs.
  std::size_t total() const { return layout_->total(); }
  const BatchLayout& layout() const { return *layout_; }
  /// Constructs the batch. REQUIRES: `memory` aligned to kBatchAlignment, of total() bytes at least.
  void write(std::span<std::byte> memory, BatchKey key);

 private:
  Random begin_sample(std::int64_t index);
  void read_samples();
  void collate();
  void plan_stack();
  void write_samples(std::span<std::byte> memory);

  const Dataset& dataset_;
  std::span<const std::int64_t> indices_;
  RandomKey random_;
  SampleHooks hooks_;
  std::vector<Sample> samples_;     ///< where only get() knows the fields, until they are collated
  std::optional<Sample> collated_;  ///< where the dataset collates
  std::optional<BatchLayout> layout_;
};

}  // namespace troupe::data
