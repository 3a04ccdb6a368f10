/// A state that is in shards, on its way to who joins them: each trainer's as bytes, and the file that they
/// come to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "runtime/core/result.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::train {

/// A safetensors file of these elements, in whose metadata is where they are in which shape.
wire::Bytes write_shard(std::span<const HeldPart> parts);

/// Not thread-safe.
class JoinedShards {
 public:
  /// Errors: kCorrupt for what write_shard() did not write, and for shards of unlike states.
  Result<void> add(wire::ByteView shard);
  /// All of it as a safetensors file. kCorrupt where an element is missing.
  Result<wire::Bytes> finish();

 private:
  struct Part {
    checkpoint::DType dtype{};
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    std::vector<std::byte> bytes;  ///< of the whole, in the order of `strides`
    std::size_t filled = 0;        ///< of these
  };
  std::map<std::string, Part> parts_;
};

}  // namespace troupe::train
