/// Decoder of IDX files, the format of MNIST: a big-endian magic (2051 for images, 2049 for labels), one
/// big-endian 32-bit count a dimension, then unsigned bytes. Plain or gzip.
///
/// Total: whatever the bytes are, the answer is a value or an error that names the file, what was expected
/// and what was found. Memory is bounded by what the header says, and the header is believed only as far as
/// the size of the file can justify (deflate expands 1032 times at most). Source of the format: "The MNIST
/// database of handwritten digits", LeCun, Cortes, Burges.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::data {

/// Which of the two kinds of file is expected.
enum class IdxKind : std::uint32_t {
  kLabels = 2049,  ///< dimensions: count
  kImages = 2051,  ///< dimensions: count, rows, columns
};

/// A decoded file: data.size() == count * rows * columns.
struct IdxArray {
  std::uint32_t count = 0;
  std::uint32_t rows = 1;     ///< 1 for labels
  std::uint32_t columns = 1;  ///< 1 for labels
  std::vector<std::uint8_t> data;
};

/// Decodes `bytes`; `name` is how messages call them. Errors: kCorrupt.
Result<IdxArray> decode_idx(std::string_view name, std::span<const std::byte> bytes, IdxKind kind);

/// Reads and decodes a file. Errors: kIo (missing, unreadable, not a regular file), kLimit, kCorrupt.
Result<IdxArray> read_idx(const std::string& path, IdxKind kind);

}  // namespace troupe::data
