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

PieceHashes hash_piece(std::span<const StatePart> parts, int piece) {
  const std::size_t from = kProvedBytes * static_cast<std::size_t>(piece);
  const std::size_t to = from + kProvedBytes;
  PieceHashes hashes;
  checkpoint::Xxh3 hash;
  std::size_t at = 0;
  for (const StatePart& part : parts) {
    const std::size_t begin = std::max(at, from) - at;
    const std::size_t end = std::min(at + part.bytes.size(), to) - std::min(at, to);
    at += part.bytes.size();
    if (begin >= end) continue;
    hash.reset();
    hash.update(part.bytes.subspan(begin, end - begin));
    const bool whole = end - begin == part.bytes.size();
    hashes.parts.push_back(
        {whole ? part.name : part.name + ", bytes " + std::to_string(begin) + " to " + std::to_string(end),
         hash.digest()});
  }
  hashes.last = at <= to;
  return hashes;
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

std::string hash_of_bytes(std::span<const std::byte> bytes, const WalkProgress& progress) {
  checkpoint::Xxh3 hash;
  in_pieces(bytes, progress, [&](auto piece) { hash.update(piece); });
  const auto digest = hash.digest();
  return to_hex(digest.high) + to_hex(digest.low);
}

std::string final_hash(std::span<const StatePart> parts, const WalkProgress& progress) {
  checkpoint::Sha256 hash;
  for (const StatePart& part : parts) {
    if (part.name.starts_with(kOptionPrefix)) continue;
    put_entry(hash, part);
    in_pieces(part.bytes, progress, [&](auto piece) { hash.update(piece); });
  }
  return hash.finish();
}

}  // namespace troupe::train
