#include "actors/train/state_bytes.hpp"

#include <sodium.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::train {
namespace {

static_assert(std::endian::native == std::endian::little, "states are little-endian");

constexpr std::string_view kMagic = "TRPSTATE";
constexpr std::size_t kAlignment_bytes = 64;
constexpr std::size_t kDimensions_max = 64;
/// The least a tensor's entry takes: empty name and dtype, no dimension.
constexpr std::size_t kEntryMin_bytes = 2 + 1 + 1 + 8;

std::size_t aligned(std::size_t offset) {
  return (offset + kAlignment_bytes - 1) / kAlignment_bytes * kAlignment_bytes;
}

class Writer {
 public:
  template <class T>
  void number(T value) {
    raw(&value, sizeof value);
  }
  void raw(const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    out.insert(out.end(), first, first + size);
  }
  std::vector<std::byte> out;
};

void write_entry(Writer& writer, const StateTensor& tensor) {
  TROUPE_ASSERT(tensor.name.size() <= std::numeric_limits<std::uint16_t>::max(), "a tensor's name is short");
  TROUPE_ASSERT(tensor.shape.size() <= kDimensions_max, "a tensor has few dimensions");
  writer.number(static_cast<std::uint16_t>(tensor.name.size()));
  writer.raw(tensor.name.data(), tensor.name.size());
  writer.number(static_cast<std::uint8_t>(tensor.dtype.size()));
  writer.raw(tensor.dtype.data(), tensor.dtype.size());
  writer.number(static_cast<std::uint8_t>(tensor.shape.size()));
  for (const std::int64_t extent : tensor.shape) writer.number(extent);
  writer.number(static_cast<std::uint64_t>(tensor.bytes.size()));
}

/// Reads from outside bytes; after the first failure everything fails.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  bool number(T& value) {
    std::span<const std::byte> raw;
    if (!take(sizeof value, raw)) return false;
    std::memcpy(&value, raw.data(), sizeof value);
    return true;
  }
  bool text(std::size_t size, std::string& value) {
    std::span<const std::byte> raw;
    if (!take(size, raw)) return false;
    value.assign(reinterpret_cast<const char*>(raw.data()), raw.size());
    return true;
  }
  bool take(std::size_t size, std::span<const std::byte>& raw) {
    if (size > left()) return false;
    raw = bytes_.subspan(at_, size);
    at_ += size;
    return true;
  }
  bool padding() {
    const std::size_t size = aligned(at_) - at_;
    std::span<const std::byte> zeros;
    if (!take(size, zeros)) return false;
    for (const std::byte zero : zeros) {
      if (zero != std::byte{0}) return false;
    }
    return true;
  }
  std::size_t left() const { return bytes_.size() - at_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

ErrorInfo malformed(const std::string& why) {
  return {ErrorCode::kBadInput, "a training state does not decode", why,
          "the sender runs another release, or the bytes were cut on their way"};
}

/// Whether `bytes` is what `shape` elements of the dtype take, without overflow.
bool size_fits(const StateTensor& tensor, std::uint64_t bytes) {
  std::uint64_t size = state_dtype_size_bytes(tensor.dtype);
  if (size == 0) return false;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0) return false;
    if (extent != 0 &&
        size > std::numeric_limits<std::uint64_t>::max() / static_cast<std::uint64_t>(extent)) {
      return false;
    }
    size *= static_cast<std::uint64_t>(extent);
  }
  return size == bytes;
}

bool read_entry(Reader& reader, StateTensor& tensor, std::uint64_t& bytes) {
  std::uint16_t name_size = 0;
  std::uint8_t dtype_size = 0;
  std::uint8_t dimensions = 0;
  if (!reader.number(name_size) || !reader.text(name_size, tensor.name)) return false;
  if (!reader.number(dtype_size) || !reader.text(dtype_size, tensor.dtype)) return false;
  if (!reader.number(dimensions) || dimensions > kDimensions_max) return false;
  tensor.shape.resize(dimensions);
  for (std::int64_t& extent : tensor.shape) {
    if (!reader.number(extent)) return false;
  }
  return reader.number(bytes) && size_fits(tensor, bytes);
}

void hash_bytes(crypto_hash_sha256_state& state, const void* data, std::size_t size) {
  crypto_hash_sha256_update(&state, static_cast<const unsigned char*>(data), size);
}

}  // namespace

std::size_t state_dtype_size_bytes(const std::string& dtype) {
  static constexpr std::array<std::pair<std::string_view, std::size_t>, 10> kSizes{{{"F64", 8},
                                                                                    {"F32", 4},
                                                                                    {"F16", 2},
                                                                                    {"BF16", 2},
                                                                                    {"I64", 8},
                                                                                    {"I32", 4},
                                                                                    {"I16", 2},
                                                                                    {"I8", 1},
                                                                                    {"U8", 1},
                                                                                    {"BOOL", 1}}};
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) return size;
  }
  return 0;
}

std::string state_hash(std::span<const StateTensor> tensors) {
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  for (const StateTensor& tensor : tensors) {
    Writer entry;
    write_entry(entry, tensor);
    hash_bytes(state, entry.out.data(), entry.out.size());
    hash_bytes(state, tensor.bytes.data(), tensor.bytes.size());
  }
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest{};
  crypto_hash_sha256_final(&state, digest.data());
  std::array<char, 2 * crypto_hash_sha256_BYTES + 1> text{};
  sodium_bin2hex(text.data(), text.size(), digest.data(), digest.size());
  return text.data();
}

std::vector<std::byte> encode_state(std::span<const StateTensor> tensors) {
  Writer writer;
  writer.raw(kMagic.data(), kMagic.size());
  writer.number(static_cast<std::uint32_t>(tensors.size()));
  for (const StateTensor& tensor : tensors) write_entry(writer, tensor);
  std::size_t total = writer.out.size();
  for (const StateTensor& tensor : tensors) total = aligned(total) + tensor.bytes.size();
  writer.out.reserve(total);
  for (const StateTensor& tensor : tensors) {
    writer.out.resize(aligned(writer.out.size()));
    writer.raw(tensor.bytes.data(), tensor.bytes.size());
  }
  return std::move(writer.out);
}

Result<std::vector<StateTensor>> decode_state(std::span<const std::byte> buffer) {
  Reader reader(buffer);
  std::string magic;
  std::uint32_t count = 0;
  if (!reader.text(kMagic.size(), magic) || magic != kMagic) return malformed("it does not start as one");
  if (!reader.number(count) || count > reader.left() / kEntryMin_bytes) {
    return malformed("it names more tensors than it has room for");
  }
  std::vector<StateTensor> tensors(count);
  std::vector<std::uint64_t> sizes_bytes(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!read_entry(reader, tensors[i], sizes_bytes[i])) {
      return malformed("the entry of tensor " + std::to_string(i) + " makes no sense");
    }
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!reader.padding() || !reader.take(sizes_bytes[i], tensors[i].bytes)) {
      return malformed("the bytes of tensor " + tensors[i].name + " are missing");
    }
  }
  if (reader.left() != 0) return malformed("there are bytes after its end");
  return tensors;
}

}  // namespace troupe::train
