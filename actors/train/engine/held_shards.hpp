/// A state that is in shards, on its way to who joins them: each trainer's as bytes, and the file that they
/// come to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "actors/train/engine/state_walk.hpp"
#include "runtime/core/result.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::train {

/// Where each part begins in the file of them.
std::vector<std::uint64_t> offsets_in_file(const std::vector<StatePart>& parts);

/// The elements that are held, one behind the other.
StatePart elements_of(const HeldPart& part);

/// The elements of `bytes`, of `size` bytes each, which have these `strides` (empty: row-major), in the order
/// of a file.
std::vector<std::byte> in_row_major(std::vector<std::byte> bytes, const std::vector<std::int64_t>& shape,
                                    const std::vector<std::int64_t>& strides, std::size_t size);

/// A safetensors file of these elements, in whose metadata is where they are in which shape.
checkpoint::SafetensorsLayout lay_out_shard(std::span<const HeldPart> parts);
wire::Bytes write_shard(std::span<const HeldPart> parts);

/// Of copies of shards, a part at a time in memory.
class JoinedWalk final : public StateWalk {
 public:
  /// Reads from the copy of a rank (ShardedState::copy_mine).
  using Read = std::function<void(std::size_t rank, std::uint64_t offset, std::span<std::byte> into)>;
  JoinedWalk(const ShardedState& of, Read read);
  const std::vector<StatePart>& parts() const override { return parts_; }
  std::span<const std::byte> bytes(std::size_t part) override;
  bool is_collective() const override { return false; }

 private:
  struct Piece {
    std::size_t rank = 0;
    std::uint64_t offset = 0;  ///< in the rank's copy
    std::size_t at = 0;        ///< in the part, in the order of memory
    std::size_t bytes = 0;
  };
  struct Pieces {
    std::vector<Piece> of;
    std::vector<std::int64_t> strides;  ///< empty: row-major
  };

  const std::vector<StatePart> parts_;
  const Read read_;
  std::vector<Pieces> pieces_;  ///< by part
  std::vector<std::byte> memory_;
};

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
