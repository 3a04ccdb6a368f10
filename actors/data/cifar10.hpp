/// CIFAR-10 from a folder of its binary files.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/data/dataset.hpp"
#include "runtime/core/result.hpp"

namespace troupe::data {

/// Images and classes of one split, in memory (184 MB for the training set). Copies share the memory.
/// Thread-safe. "input": uint8 [3, 32, 32], planes R, G, B; "target": int64, 0 to 9. To floats by
/// normalize().
class Cifar10 final : public FixedDataset {
 public:
  static constexpr std::int64_t kSide = 32;
  static constexpr std::size_t kPixels = 3 * 32 * 32;

  /// Reads `data_batch_1.bin` to `data_batch_5.bin`, as many as there are, or `test_batch.bin`; also `.gz`,
  /// where the plain file wins. Throws IoError (the first one is missing, unreadable), Error with kCorrupt
  /// (damaged, a class above 9, no samples; a file missing before one that is there).
  Cifar10(const std::string& folder, Split split);

  std::int64_t size() const override { return static_cast<std::int64_t>(records_->size() / kRecord); }
  std::vector<FieldSpec> fields() const override;
  bool uses_random_alone() const override { return true; }
  void write(std::int64_t index, Random& random, std::span<const std::span<std::byte>> places) const override;
  void prefetch(std::int64_t index) const override;

 private:
  static constexpr std::size_t kRecord = 1 + kPixels;
  std::span<const std::uint8_t> record(std::int64_t index) const;
  std::shared_ptr<const std::vector<std::uint8_t>> records_;
};

/// The records of a file, plain or gzip: a class of one byte and 3,072 pixels each. `name` is how messages
/// call it. Errors: kCorrupt.
Result<std::vector<std::uint8_t>> decode_cifar10(std::string_view name, std::span<const std::byte> bytes);

}  // namespace troupe::data
