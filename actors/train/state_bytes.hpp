/// A TrainState as named bytes: its hash, and one contiguous buffer to send to a peer.
///
/// The buffer, little-endian (README.md has a picture):
///   8 bytes   magic "TRPSTATE"
///   u32       number of tensors
///   per tensor: u16 name length, name, u8 dtype length, dtype, u8 dimensions, i64 per dimension, u64 bytes
///   per tensor, in the same order: zero padding to 64 bytes, then the bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::train {

/// One tensor of a state; `bytes` is a view of somebody else's memory.
struct StateTensor {
  std::string name;                 ///< "fc.weight", "optimizer/fc.weight/momentum_buffer"
  std::string dtype;                ///< as safetensors names it: "F32", "I64"
  std::vector<std::int64_t> shape;  ///< empty for a scalar
  std::span<const std::byte> bytes;
};

/// SHA-256 over names, dtypes, shapes and bytes, in order: 64 lower-case hexadecimal characters.
std::string state_hash(std::span<const StateTensor> tensors);

/// One contiguous buffer with everything.
std::vector<std::byte> encode_state(std::span<const StateTensor> tensors);

/// The tensors in `buffer`, as views of it. Errors: kBadInput for anything that encode_state would not write.
Result<std::vector<StateTensor>> decode_state(std::span<const std::byte> buffer);

/// Bytes of one element, or 0 for a dtype that does not exist here.
std::size_t state_dtype_size_bytes(const std::string& dtype);

}  // namespace troupe::train
