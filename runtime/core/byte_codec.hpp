/// Fixed layouts in bytes, little-endian: what small binary headers and files are written and read with.
/// (Messages with many fields go through the wire's serialization library instead.)
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/core/assert.hpp"

namespace troupe {

/// Reads from the front of `bytes`. Total: a read beyond the end returns false and leaves its argument alone.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T>
  requires std::is_unsigned_v<T>
  [[nodiscard]] bool read(T& out) {
    if (left_.size() < sizeof(T)) return false;
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(left_[i]) << (8 * i)));
    }
    out = value;
    left_ = left_.subspan(sizeof(T));
    return true;
  }
  [[nodiscard]] bool read(std::span<std::byte> out) {
    if (left_.size() < out.size()) return false;
    if (!out.empty()) std::memcpy(out.data(), left_.data(), out.size());
    left_ = left_.subspan(out.size());
    return true;
  }
  [[nodiscard]] bool read(std::string& out, std::size_t chars) {
    if (left_.size() < chars) return false;
    out.assign(reinterpret_cast<const char*>(left_.data()), chars);
    left_ = left_.subspan(chars);
    return true;
  }
  std::span<const std::byte> rest() const noexcept { return left_; }
  bool done() const noexcept { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

/// Appends to `out`, which must outlive it.
class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>& out) : out_(out) {}

  template <class T>
  requires std::is_unsigned_v<T> ByteWriter& write(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<std::byte>(value >> (8 * i)));
    return *this;
  }
  ByteWriter& write(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  ByteWriter& write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

 private:
  std::vector<std::byte>& out_;
};

/// An integer at its offset in a fixed layout. REQUIRES: all of it is there.
template <class T>
requires std::is_unsigned_v<T> T get_at(std::span<const std::byte> from, std::size_t at) {
  T value = 0;
  const bool is_within = at <= from.size() && ByteReader(from.subspan(at)).read(value);
  TROUPE_ASSERT(is_within, "a field is within its layout");
  return value;
}
template <class T>
requires std::is_unsigned_v<T>
void put_at(std::span<std::byte> to, std::size_t at, T value) {
  TROUPE_ASSERT(at <= to.size() && sizeof value <= to.size() - at, "a field is within its layout");
  for (std::size_t i = 0; i < sizeof(T); ++i) to[at + i] = static_cast<std::byte>(value >> (8 * i));
}

}  // namespace troupe
