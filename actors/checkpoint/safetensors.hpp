/// The safetensors file format, which Python's `safetensors` package reads and writes:
///
/// ```
/// 8 bytes      length of the header, little-endian
/// header       JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
///              "__metadata__": {"key": "value", ...}}, padded with spaces to a multiple of 8
/// data         the tensors' elements, row-major, little-endian; offsets count from here
/// ```
/// The tensors tile the data: no gap, no overlap, nothing before, between or behind. Source: the format's
/// specification, github.com/huggingface/safetensors. Loading runs no code of the file's author, whatever the
/// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::checkpoint {

/// Element types, by the names the format gives them.
enum class DType {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

/// "F32", "I64", "BOOL", ...
std::string_view dtype_name(DType dtype);
/// The type of that name, if there is one.
std::optional<DType> dtype_from_name(std::string_view name);
/// Bytes an element: 1, 2, 4 or 8.
std::size_t dtype_bytes(DType dtype);

/// One tensor in memory, not owned: row-major, contiguous, little-endian.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::span<const std::byte> bytes;
};

using Metadata = std::map<std::string, std::string>;

/// Longest header that is written or read. Python's limit is 100 MB; 16 MiB names 100,000 tensors.
inline constexpr std::size_t kMaxHeaderBytes = std::size_t{16} << 20;

/// A file about to be written: `prefix` (length and header), then the bytes of `order`, one after the other.
struct SafetensorsLayout {
  std::string prefix;
  std::vector<TensorView> order;  ///< largest elements first, then by name, so that each tensor is aligned
  std::uint64_t total_bytes = 0;  ///< of the file
};

/// Lays a file out. Errors (kBadInput): a name that occurs twice, is "__metadata__" or is not UTF-8; a shape
/// whose size is not that of the bytes; a negative extent. kLimit: a header above kMaxHeaderBytes.
Result<SafetensorsLayout> lay_out_safetensors(std::span<const TensorView> tensors,
                                              const Metadata& metadata = {});

/// The file of a layout in one piece of memory.
std::vector<std::byte> write_safetensors(const SafetensorsLayout& layout);
/// Those of its bytes that begin at `offset`. REQUIRES: the file has so many.
void read_layout(const SafetensorsLayout& layout, std::uint64_t offset, std::span<std::byte> into);

/// A decoded file: views into the bytes it was decoded from, in the order of the data.
struct Safetensors {
  std::vector<TensorView> tensors;
  Metadata metadata;
  /// The tensor of that name, or nullptr.
  const TensorView* find(std::string_view name) const;
};

/// Decodes a whole file. Total: errors (kCorrupt) name `name`, what was expected and what was found, for
/// truncation, a header that is too long, JSON that is invalid, nested or has duplicate names, unknown keys
/// or dtypes, shapes whose product overflows, and offsets that overlap, leave gaps, run backwards or end
/// before or after the data.
Result<Safetensors> read_safetensors(std::string_view name, std::span<const std::byte> file);

/// The same of a file of `file_bytes` that is not in memory, from its first safetensors_prefix_bytes(): the
/// tensors have their sizes and no bytes.
Result<Safetensors> read_safetensors_header(std::string_view name, std::span<const std::byte> prefix,
                                            std::uint64_t file_bytes);
/// How many of the first bytes of a file read_safetensors_header() needs; `length`: at most its first 8.
std::uint64_t safetensors_prefix_bytes(std::span<const std::byte> length);

}  // namespace troupe::checkpoint
