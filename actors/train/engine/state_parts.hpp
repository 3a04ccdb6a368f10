/// A TrainState as a walk over its parts: named tensors, laid out in memory, on the wire and on disk as
/// safetensors lays them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/part_hash.hpp"
#include "actors/checkpoint/safetensors.hpp"
#include "actors/checkpoint/sha256.hpp"

namespace troupe::train {

/// One part; `bytes` is a view of somebody else's memory. What is bytes and no tensor is of dtype U8.
using StatePart = checkpoint::TensorView;
using checkpoint::PartHash;

/// Called about every 16 MiB of a walk, from the thread that walks. What it throws ends the walk.
using WalkProgress = std::function<void()>;

/// Gives the bytes of a part that is not in memory, until the next call.
using PartBytes = std::function<std::span<const std::byte>(const StatePart&)>;

/// The names of an optimizer's options begin so, but for its learning rates.
inline constexpr const char* kOptionPrefix = "optimizer_options";

/// XXH3-128 of each part, in order.
std::vector<PartHash> hash_parts(std::span<const StatePart> parts, const WalkProgress& progress = {});

/// The same of a piece of the state of kProvedBytes, so that telling all of a large one takes several steps.
struct PieceHashes {
  std::vector<PartHash> parts;  ///< of parts that the piece has in part: "w, bytes 16777216 to 33554432"
  bool last = false;
};
inline constexpr std::size_t kProvedBytes = std::size_t{16} << 20;
PieceHashes hash_piece(std::span<const StatePart> parts, int piece);

/// hash_piece() part by part, for a state that is not at hand as a whole. Not thread-safe.
class PieceWalk {
 public:
  explicit PieceWalk(int piece);
  /// The next part. Calls `read` for those of its bytes that are in the piece, if there are any.
  void part(const std::string& name, std::size_t bytes,
            const std::function<std::span<const std::byte>(std::size_t begin, std::size_t end)>& read);
  /// Behind the last part.
  PieceHashes finish();

 private:
  const std::size_t from_;
  const std::size_t to_;
  std::size_t at_ = 0;
  PieceHashes hashes_;
};

/// The same of each part's type and shape, without a look at its bytes.
std::vector<PartHash> hash_layout(std::span<const StatePart> parts);

std::string hash_text(const checkpoint::Digest128& digest);
/// XXH3-128 of a whole file's bytes, as text.
std::string hash_of_bytes(std::span<const std::byte> bytes, const WalkProgress& progress = {});

/// final_hash() part by part. Not thread-safe.
class FinalHash {
 public:
  void add(const StatePart& part, const WalkProgress& progress = {});
  std::string finish() { return hash_.finish(); }

 private:
  checkpoint::Sha256 hash_;
};

/// The hash of a job's last line, by which runs are compared: SHA-256 over names, dtypes, shapes and bytes,
/// in order; 64 lower-case hexadecimal characters. Optimizer options are left out: the job's struct has them.
std::string final_hash(std::span<const StatePart> parts, const WalkProgress& progress = {});

/// An optimizer's options and learning rates in `parts` become those of `from`, found by name. The views do.
void take_options(std::span<StatePart> parts, std::span<const StatePart> from);

/// `consume(piece)` for each piece of `bytes`, with `progress` after it.
void in_pieces(std::span<const std::byte> bytes, const WalkProgress& progress,
               const std::function<void(std::span<const std::byte>)>& consume);

}  // namespace troupe::train
