/// How a batch lies in shared memory, between the loader that constructs it and the trainer that reads it.
///
/// ```
/// offset 0     BatchHeader, 64 bytes
/// offset 64    inputs   float32 [count, channels, height, width]
/// aligned 64   targets  int64   [count]
/// ```
/// Native byte order: both sides share the machine. The header carries what the ledger records, so that what
/// a trainer used is read from the batch and not recomputed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "actors/data/dataset.hpp"
#include "runtime/core/result.hpp"

namespace troupe::data {

/// The slot a batch belongs to.
struct BatchKey {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;  ///< within the epoch
  std::uint32_t leaf = 0;  ///< logical rank
  bool operator==(const BatchKey&) const = default;
};

/// The first 64 bytes of a batch.
struct BatchHeader {
  std::uint64_t magic = 0;  ///< kBatchMagic
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t index_hash = 0;  ///< of the dataset positions, in order (sampler.hpp)
  std::uint32_t leaf = 0;
  std::uint32_t count = 0;  ///< samples
  SampleShape shape;
  std::array<std::uint32_t, 3> reserved{};
};
static_assert(sizeof(BatchHeader) == 64);

inline constexpr std::uint64_t kBatchMagic = 0x31686374'62707274;  // "trpbtch1"
inline constexpr std::size_t kBatchAlignment = 64;

/// Offsets of a batch's parts, in bytes.
struct BatchOffsets {
  std::size_t inputs = 0;
  std::size_t targets = 0;
  std::size_t total = 0;  ///< a multiple of kBatchAlignment: batches can follow each other
};
/// REQUIRES: a shape and a count whose product fits memory.
BatchOffsets batch_offsets(std::int64_t count, SampleShape shape);

/// Constructs the batch of samples `indices` in `memory`. The header is written last.
/// REQUIRES: memory aligned to 64, memory.size() >= batch_offsets(indices.size(), dataset.shape()).total,
/// indices within the dataset. Thread-safe for distinct memory.
void fill_batch(std::span<std::byte> memory, BatchKey key, const Dataset& dataset,
                std::span<const std::int64_t> indices);

/// A batch as a trainer sees it: no copy.
struct BatchView {
  BatchHeader header;  ///< a copy, checked once
  std::span<float> inputs;
  std::span<std::int64_t> targets;
  BatchKey key() const { return {header.epoch, header.step, header.leaf}; }
};

/// Checks that `memory` holds a whole batch and points into it. Errors (kCorrupt): misaligned or short
/// memory, no magic, a shape or count that does not fit `memory`.
Result<BatchView> view_batch(std::span<std::byte> memory);

}  // namespace troupe::data
