/// The parts of protobuf's encoding that TensorBoard's files need: a message is its fields, one behind the
/// other; a key is the field's number and how it is written.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace troupe::report::protobuf {

static_assert(std::endian::native == std::endian::little, "fixed fields are little endian");

enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

inline std::string key(int field, WireType type) {
  return varint(static_cast<std::uint64_t>(field) << 3 | type);
}

/// A string, or a message in the message.
inline std::string bytes_field(int field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}
inline std::string double_field(int field, double value) {
  return key(field, kFixed64) + raw(value);
}
inline std::string float_field(int field, float value) {
  return key(field, kFixed32) + raw(value);
}
/// An integer that is not negative, a bool, an enum.
inline std::string varint_field(int field, std::uint64_t value) {
  return key(field, kVarint) + varint(value);
}

}  // namespace troupe::report::protobuf
