/// How a batch lies in shared memory, between the loader that constructs it and the trainer that reads it.
///
/// ```
/// offset 0     BatchHeader, 64 bytes
/// offset 64    FieldHeader, 128 bytes each: name, dtype, shape, offset
/// aligned 64   the first field's elements
/// aligned 64   the second field's elements, ...
/// ```
/// Native byte order: both sides share the machine. The header carries what the ledger records, so that what
/// a trainer used is read from the batch and not recomputed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/data/tensor.hpp"
#include "runtime/core/result.hpp"

namespace troupe::data {

/// The place of a batch in the job.
struct BatchKey {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;  ///< within the epoch; of a test set: the piece
  std::uint32_t leaf = 0;  ///< logical rank
  bool operator==(const BatchKey&) const = default;
};

/// The first 64 bytes of a batch.
struct BatchHeader {
  std::uint64_t magic = 0;  ///< kBatchMagic
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  std::uint64_t index_hash = 0;  ///< of the dataset positions, in order (sampler.hpp)
  std::uint64_t total = 0;       ///< bytes, all of it
  std::uint32_t leaf = 0;
  std::uint32_t count = 0;   ///< samples
  std::uint32_t fields = 0;  ///< FieldHeaders that follow
  std::array<std::uint32_t, 3> reserved{};
};
static_assert(sizeof(BatchHeader) == 64);

/// One field of a batch.
struct FieldHeader {
  std::array<char, kMaxNameBytes + 1> name{};  ///< ends with a zero byte
  std::uint8_t dtype = 0;                      ///< DType
  std::uint8_t dimensions = 0;
  std::array<std::uint8_t, 6> reserved{};
  std::uint64_t offset = 0;  ///< from the batch's start; a multiple of kBatchAlignment
  std::array<std::int64_t, kMaxDimensions> shape{};
  std::uint64_t reserved_too = 0;
};
static_assert(sizeof(FieldHeader) == 128);

inline constexpr std::uint64_t kBatchMagic = 0x32686374'62707274;  // "trpbtch2"
inline constexpr std::size_t kBatchAlignment = 64;

/// Where a batch's fields lie, before there is memory for it.
class BatchLayout {
 public:
  /// `fields` are the batch's, with their whole shapes. Throws BadConfig for two of one name, none or too
  /// many, or a size above kMaxBatchBytes.
  explicit BatchLayout(std::vector<FieldSpec> fields);

  const std::vector<FieldSpec>& fields() const { return fields_; }
  /// Bytes of the batch: a multiple of kBatchAlignment, so that batches can follow each other.
  std::size_t total() const { return total_; }
  /// The place of a field's elements in a batch's memory. REQUIRES: total() bytes.
  std::span<std::byte> place(std::span<std::byte> memory, std::size_t field) const;
  /// Writes header and field headers: last, so that memory without them holds no batch.
  /// REQUIRES: memory aligned to kBatchAlignment, total() bytes.
  void seal(std::span<std::byte> memory, BatchKey key, std::span<const std::int64_t> indices) const;

 private:
  std::vector<FieldSpec> fields_;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> bytes_;
  std::size_t total_ = 0;
};

/// A field as a trainer sees it: no copy.
struct FieldView {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::span<std::byte> bytes;
};

/// A batch as a trainer sees it.
struct BatchView {
  BatchHeader header;  ///< a copy, checked once
  std::vector<FieldView> fields;
  BatchKey key() const { return {header.epoch, header.step, header.leaf}; }
  /// Null where there is no such field.
  const FieldView* find(std::string_view name) const;
};

/// Checks that `memory` holds a whole batch and points into it. Total: whatever the bytes are, the fields lie
/// in `memory`, aligned, one after another. Errors (kCorrupt) say what does not hold.
Result<BatchView> view_batch(std::span<std::byte> memory);

}  // namespace troupe::data
