#include "actors/train/engine/state_parts.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "actors/checkpoint/sha256.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/ids.hpp"

namespace troupe::train {
namespace {

static_assert(std::endian::native == std::endian::little, "states are little-endian");

constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

template <class T>
void put(checkpoint::Sha256& into, T number) {
  into.update(std::as_bytes(std::span(&number, 1)));
}

/// u16 n, name | u8 n, dtype | u8 dimensions, i64 each | u64 bytes
void put_entry(checkpoint::Sha256& into, const StatePart& part) {
  TROUPE_ASSERT(part.name.size() <= std::numeric_limits<std::uint16_t>::max(), "a part's name is short");
  TROUPE_ASSERT(part.shape.size() <= std::numeric_limits<std::uint8_t>::max(), "a part has few dimensions");
  const std::string_view dtype = checkpoint::dtype_name(part.dtype);
  put(into, static_cast<std::uint16_t>(part.name.size()));
  into.update(std::as_bytes(std::span(part.name)));
  put(into, static_cast<std::uint8_t>(dtype.size()));
  into.update(std::as_bytes(std::span(dtype)));
  put(into, static_cast<std::uint8_t>(part.shape.size()));
  for (const std::int64_t extent : part.shape) put(into, extent);
  put(into, static_cast<std::uint64_t>(part.bytes.size()));
}

}  // namespace

void in_pieces(std::span<const std::byte> bytes, const WalkProgress& progress,
               const std::function<void(std::span<const std::byte>)>& consume) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kPieceBytes))) {
    consume(bytes.first(std::min(bytes.size(), kPieceBytes)));
    if (progress) progress();
  }
}

void take_options(std::span<StatePart> parts, std::span<const StatePart> from) {
  for (StatePart& part : parts) {
    const bool rates = part.name.starts_with("optimizer") && part.name.ends_with("/learning_rates");
    if (!rates && !part.name.starts_with(kOptionPrefix)) continue;
    const auto own = std::find_if(from.begin(), from.end(),
                                  [&](const StatePart& other) { return other.name == part.name; });
    if (own != from.end()) part = *own;
  }
}

PieceWalk::PieceWalk(int piece)
    : from_(kProvedBytes * static_cast<std::size_t>(piece)), to_(from_ + kProvedBytes) {}

void PieceWalk::part(
    const std::string& name, std::size_t bytes,
    const std::function<std::span<const std::byte>(std::size_t begin, std::size_t end)>& read) {
  const std::size_t begin = std::max(at_, from_) - at_;
  const std::size_t end = std::min(at_ + bytes, to_) - std::min(at_, to_);
  at_ += bytes;
  if (begin >= end) return;
  checkpoint::Xxh3 hash;
  hash.update(read(begin, end));
  const bool whole = end - begin == bytes;
  hashes_.parts.push_back(
      {whole ? name : name + ", bytes " + std::to_string(begin) + " to " + std::to_string(end),
       hash.digest()});
}

PieceHashes PieceWalk::finish() {
  hashes_.last = at_ <= to_;
  return std::move(hashes_);
}

PieceHashes hash_piece(std::span<const StatePart> parts, int piece) {
  PieceWalk walk(piece);
  for (const StatePart& part : parts) {
    walk.part(part.name, part.bytes.size(),
              [&](std::size_t begin, std::size_t end) { return part.bytes.subspan(begin, end - begin); });
  }
  return walk.finish();
}

std::vector<PartHash> hash_layout(std::span<const StatePart> parts) {
  std::vector<PartHash> hashes;
  hashes.reserve(parts.size());
  checkpoint::Xxh3 hash;
  for (const StatePart& part : parts) {
    hash.reset();
    hash.update(std::as_bytes(std::span(checkpoint::dtype_name(part.dtype))));
    hash.update(std::as_bytes(std::span(part.shape)));
    hashes.push_back({part.name, hash.digest()});
  }
  return hashes;
}

std::vector<PartHash> hash_parts(std::span<const StatePart> parts, const WalkProgress& progress) {
  std::vector<PartHash> hashes;
  hashes.reserve(parts.size());
  checkpoint::Xxh3 hash;
  for (const StatePart& part : parts) {
    hash.reset();
    in_pieces(part.bytes, progress, [&](auto piece) { hash.update(piece); });
    hashes.push_back({part.name, hash.digest()});
  }
  return hashes;
}

std::string hash_text(const checkpoint::Digest128& digest) {
  return to_hex(digest.high) + to_hex(digest.low);
}

std::string hash_of_bytes(std::span<const std::byte> bytes, const WalkProgress& progress) {
  checkpoint::Xxh3 hash;
  in_pieces(bytes, progress, [&](auto piece) { hash.update(piece); });
  return hash_text(hash.digest());
}

void FinalHash::add(const StatePart& part, const WalkProgress& progress) {
  if (part.name.starts_with(kOptionPrefix)) return;
  put_entry(hash_, part);
  in_pieces(part.bytes, progress, [&](auto piece) { hash_.update(piece); });
}

std::string final_hash(std::span<const StatePart> parts, const WalkProgress& progress) {
  FinalHash hash;
  for (const StatePart& part : parts) hash.add(part, progress);
  return hash.finish();
}

}  // namespace troupe::train
