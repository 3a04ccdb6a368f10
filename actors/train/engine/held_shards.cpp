#include "actors/train/engine/held_shards.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::train {
namespace {

/// Where a part's elements are.
struct Place {
  std::int64_t begin = 0;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< empty: row-major
};

/// "begin dimensions extents... strides..."
std::string text_of_place(const HeldPart& part) {
  std::string text = std::to_string(part.begin) + ' ' + std::to_string(part.part.shape.size());
  for (const auto& numbers : {part.part.shape, part.strides}) {
    for (const std::int64_t number : numbers) text += ' ' + std::to_string(number);
  }
  return text;
}

std::optional<Place> place_in(const std::string& text) {
  std::istringstream words(text);
  Place place;
  std::size_t dimensions = 0;
  if (!(words >> place.begin >> dimensions)) return std::nullopt;
  for (std::int64_t number = 0; words >> number;)
    (place.shape.size() < dimensions ? place.shape : place.strides).push_back(number);
  if (!words.eof() || place.shape.size() != dimensions) return std::nullopt;
  return place;
}

ErrorInfo bad_shard(const std::string& why) {
  return {ErrorCode::kCorrupt, "the state that came from the trainers' shards is not whole", why, ""};
}

/// Bytes of all elements; none for a shape that no memory has, or strides that leave it.
std::optional<std::size_t> whole_bytes(const Place& of, std::size_t size) {
  std::int64_t elements = 1, last = 0;
  const bool has_strides = !of.strides.empty();
  if (has_strides && of.strides.size() != of.shape.size()) return std::nullopt;
  for (std::size_t i = 0; i < of.shape.size(); ++i) {
    if (of.shape[i] < 0 || __builtin_mul_overflow(elements, of.shape[i], &elements)) return std::nullopt;
    std::int64_t step = 0;
    if (has_strides && (of.strides[i] < 0 || __builtin_mul_overflow(of.shape[i] - 1, of.strides[i], &step) ||
                        __builtin_add_overflow(last, step, &last)))
      return std::nullopt;
  }
  if (elements > 0 && last >= elements) return std::nullopt;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(elements), size, &bytes)) return std::nullopt;
  return bytes;
}

}  // namespace

std::vector<std::byte> in_row_major(std::vector<std::byte> bytes, const std::vector<std::int64_t>& shape,
                                    const std::vector<std::int64_t>& strides, std::size_t size) {
  std::int64_t of_row = 1;
  bool is_so = true;
  for (std::size_t i = strides.size(); i > 0; --i) {
    is_so = is_so && strides[i - 1] == of_row;
    of_row *= shape[i - 1];
  }
  if (is_so || bytes.empty()) return bytes;
  std::vector<std::byte> ordered(bytes.size());
  std::vector<std::int64_t> at(shape.size(), 0);
  for (std::size_t to = 0; to < ordered.size(); to += size) {
    std::int64_t from = 0;
    for (std::size_t i = 0; i < at.size(); ++i) from += at[i] * strides[i];
    std::memcpy(&ordered[to], &bytes[static_cast<std::size_t>(from) * size], size);
    for (std::size_t i = at.size(); i > 0 && ++at[i - 1] == shape[i - 1]; --i) at[i - 1] = 0;
  }
  return ordered;
}

std::vector<std::uint64_t> offsets_in_file(const std::vector<StatePart>& parts) {
  const auto layout = checkpoint::lay_out_safetensors(parts).value();
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < parts.size(); ++i) places.emplace(parts[i].name, i);
  std::vector<std::uint64_t> offsets(parts.size());
  std::uint64_t at = layout.prefix.size();
  for (const StatePart& part : layout.order) {
    offsets[places.at(part.name)] = at;
    at += part.bytes.size();
  }
  return offsets;
}

StatePart elements_of(const HeldPart& part) {
  const std::size_t count = part.part.bytes.size() / checkpoint::dtype_bytes(part.part.dtype);
  return {part.part.name, part.part.dtype, {static_cast<std::int64_t>(count)}, part.part.bytes};
}

checkpoint::SafetensorsLayout lay_out_shard(std::span<const HeldPart> parts) {
  std::vector<StatePart> elements;
  checkpoint::Metadata places;
  for (const HeldPart& one : parts) {
    elements.push_back(elements_of(one));
    places.emplace(one.part.name, text_of_place(one));
  }
  return checkpoint::lay_out_safetensors(elements, places).value();
}

wire::Bytes write_shard(std::span<const HeldPart> parts) {
  return checkpoint::write_safetensors(lay_out_shard(parts));
}

JoinedWalk::JoinedWalk(const ShardedState& of, Read read)
    : parts_(of.parts), read_(std::move(read)), pieces_(of.parts.size()) {
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < parts_.size(); ++i) places.emplace(parts_[i].name, i);
  for (std::size_t rank = 0; rank < of.held.size(); ++rank) {
    std::vector<StatePart> elements;
    for (const HeldPart& one : of.held[rank]) elements.push_back(elements_of(one));
    const auto offsets = offsets_in_file(elements);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const HeldPart& one = of.held[rank][i];
      Pieces& pieces = pieces_[places.at(one.part.name)];
      const std::size_t at = static_cast<std::size_t>(one.begin) * checkpoint::dtype_bytes(one.part.dtype);
      pieces.of.push_back({rank, offsets[i], at, one.part.bytes.size()});
      pieces.strides = one.strides;
    }
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    std::size_t all = 0;
    for (const Piece& piece : pieces_[i].of) all += piece.bytes;
    TROUPE_ASSERT(all == parts_[i].bytes.size(), "the trainers give all of a part, once");
  }
}

std::span<const std::byte> JoinedWalk::bytes(std::size_t part) {
  const StatePart& is = parts_[part];
  memory_.resize(is.bytes.size());
  for (const Piece& piece : pieces_[part].of)
    read_(piece.rank, piece.offset, std::span(memory_).subspan(piece.at, piece.bytes));
  memory_ =
      in_row_major(std::move(memory_), is.shape, pieces_[part].strides, checkpoint::dtype_bytes(is.dtype));
  return memory_;
}

Result<void> JoinedShards::add(wire::ByteView shard) {
  const auto file = checkpoint::read_safetensors("a trainer's shard", shard);
  if (!file) return file.error();
  for (const StatePart& one : file->tensors) {
    const auto told = file->metadata.find(one.name);
    const auto place = told == file->metadata.end() ? std::nullopt : place_in(told->second);
    const std::size_t size = checkpoint::dtype_bytes(one.dtype);
    const auto whole = place ? whole_bytes(*place, size) : std::nullopt;
    if (!whole) return bad_shard("'" + one.name + "' has no such size");
    const auto [found, is_new] = parts_.try_emplace(one.name);
    Part& part = found->second;
    if (is_new) part = {one.dtype, place->shape, place->strides, std::vector<std::byte>(*whole), 0};
    if (part.dtype != one.dtype || part.shape != place->shape || part.strides != place->strides)
      return bad_shard("trainers have unlike '" + one.name + "'");
    if (!is_new && part.filled == part.bytes.size()) continue;  // all trainers have it
    std::size_t at = 0;
    if (place->begin < 0 || __builtin_mul_overflow(static_cast<std::size_t>(place->begin), size, &at) ||
        at > part.bytes.size() || one.bytes.size() > part.bytes.size() - at ||
        one.bytes.size() > part.bytes.size() - part.filled)
      return bad_shard("'" + one.name + "' has more elements than it should");
    std::copy(one.bytes.begin(), one.bytes.end(), part.bytes.begin() + static_cast<std::ptrdiff_t>(at));
    part.filled += one.bytes.size();
  }
  return {};
}

Result<wire::Bytes> JoinedShards::finish() {
  std::vector<StatePart> all;
  for (auto& [name, part] : parts_) {
    if (part.filled != part.bytes.size()) return bad_shard("elements of '" + name + "' are missing");
    part.bytes =
        in_row_major(std::move(part.bytes), part.shape, part.strides, checkpoint::dtype_bytes(part.dtype));
    all.push_back({name, part.dtype, part.shape, part.bytes});
  }
  const auto layout = checkpoint::lay_out_safetensors(all);
  if (!layout) return layout.error();
  return checkpoint::write_safetensors(*layout);
}

}  // namespace troupe::train
