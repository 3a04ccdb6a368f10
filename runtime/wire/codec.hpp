/// Values to bytes and back: call arguments, results and control messages, in MessagePack.
///
/// What crosses processes is data: numbers, enums, strings, vectors, maps, optionals, pairs and aggregates of these.
/// A type of another shape gets a specialisation of Codec<T> or a `troupe_fields()` member. Decoding is total: bytes
/// from outside give a value or an error, with bounded depth, and allocate no more than they justify.
#pragma once

#ifndef MSGPACK_NO_BOOST
#define MSGPACK_NO_BOOST
#endif
#include <bit>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <msgpack.hpp>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/core/result.hpp"
#include "runtime/wire/reflect.hpp"

namespace troupe::wire {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

/// Where encoders append.
class Writer {
 public:
  void write(const char* data, std::size_t size) {  // the interface msgpack::packer asks for
    const auto* from = reinterpret_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};
using Packer = msgpack::packer<Writer>;

/// How T is encoded. `decode` returns false for an object of another shape or range.
template <class T>
struct Codec;

template <class T>
void pack(Packer& packer, const T& value) {
  Codec<std::remove_cv_t<T>>::encode(packer, value);
}
template <class T>
bool unpack(const msgpack::object& object, T& value) {
  return Codec<T>::decode(object, value);
}

template <class T>
concept Number = std::is_integral_v<T> && !std::is_same_v<T, bool>;

template <Number T>
struct Codec<T> {
  static void encode(Packer& p, T value) { p.pack(value); }
  static bool decode(const msgpack::object& o, T& value) {
    if (o.type == msgpack::type::POSITIVE_INTEGER) {
      if (o.via.u64 > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) return false;
      value = static_cast<T>(o.via.u64);
      return true;
    } else if (o.type == msgpack::type::NEGATIVE_INTEGER) {
      if (!std::is_signed_v<T> || o.via.i64 < static_cast<std::int64_t>(std::numeric_limits<T>::min())) return false;
      value = static_cast<T>(o.via.i64);
      return true;
    }
    return false;
  }
};

/// Floating point crosses as its bits: the library would turn 2.0 into the integer 2 and lose the sign of -0.0.
template <std::floating_point T>
  requires(sizeof(T) <= 8)
struct Codec<T> {
  using U = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static void encode(Packer& p, T value) { pack(p, std::bit_cast<U>(value)); }
  static bool decode(const msgpack::object& o, T& value) {
    U bits = 0;
    if (!unpack(o, bits)) return false;
    value = std::bit_cast<T>(bits);
    return true;
  }
};

template <>
struct Codec<bool> {
  static void encode(Packer& p, bool value) { p.pack(value); }
  static bool decode(const msgpack::object& o, bool& value) {
    if (o.type != msgpack::type::BOOLEAN) return false;
    value = o.via.boolean;
    return true;
  }
};

template <class T>
  requires std::is_enum_v<T>
struct Codec<T> {
  using U = std::underlying_type_t<T>;
  static void encode(Packer& p, T value) { pack(p, static_cast<U>(value)); }
  static bool decode(const msgpack::object& o, T& value) {
    U number{};
    if (!unpack(o, number)) return false;
    value = static_cast<T>(number);
    return true;
  }
};

template <>
struct Codec<std::string> {
  static void encode(Packer& p, const std::string& value) {
    p.pack_str(static_cast<std::uint32_t>(value.size()));
    p.pack_str_body(value.data(), static_cast<std::uint32_t>(value.size()));
  }
  static bool decode(const msgpack::object& o, std::string& value) {
    if (o.type != msgpack::type::STR) return false;
    value.assign(o.via.str.ptr, o.via.str.size);
    return true;
  }
};

/// Bytes travel as one blob.
template <>
struct Codec<Bytes> {
  static void encode(Packer& p, const Bytes& value) {
    p.pack_bin(static_cast<std::uint32_t>(value.size()));
    p.pack_bin_body(reinterpret_cast<const char*>(value.data()), static_cast<std::uint32_t>(value.size()));
  }
  static bool decode(const msgpack::object& o, Bytes& value) {
    if (o.type != msgpack::type::BIN) return false;
    const auto* from = reinterpret_cast<const std::byte*>(o.via.bin.ptr);
    value.assign(from, from + o.via.bin.size);
    return true;
  }
};

template <class T>
struct Codec<std::vector<T>> {
  static void encode(Packer& p, const std::vector<T>& value) {
    p.pack_array(static_cast<std::uint32_t>(value.size()));
    for (const auto& element : value) pack(p, static_cast<const T&>(element));
  }
  static bool decode(const msgpack::object& o, std::vector<T>& value) {
    if (o.type != msgpack::type::ARRAY) return false;
    value.clear();
    value.reserve(o.via.array.size);
    for (std::uint32_t i = 0; i < o.via.array.size; ++i) {
      T element{};
      if (!unpack(o.via.array.ptr[i], element)) return false;
      value.push_back(std::move(element));
    }
    return true;
  }
};

template <class K, class V>
struct Codec<std::map<K, V>> {
  static void encode(Packer& p, const std::map<K, V>& value) {
    p.pack_map(static_cast<std::uint32_t>(value.size()));
    for (const auto& [key, element] : value) {
      pack(p, key);
      pack(p, element);
    }
  }
  static bool decode(const msgpack::object& o, std::map<K, V>& value) {
    if (o.type != msgpack::type::MAP) return false;
    value.clear();
    for (std::uint32_t i = 0; i < o.via.map.size; ++i) {
      K key{};
      V element{};
      if (!unpack(o.via.map.ptr[i].key, key) || !unpack(o.via.map.ptr[i].val, element)) return false;
      if (!value.emplace(std::move(key), std::move(element)).second) return false;  // a key twice
    }
    return true;
  }
};

template <class T>
struct Codec<std::optional<T>> {
  static void encode(Packer& p, const std::optional<T>& value) {
    if (value) {
      pack(p, *value);
    } else {
      p.pack_nil();
    }
  }
  static bool decode(const msgpack::object& o, std::optional<T>& value) {
    value.reset();
    if (o.type == msgpack::type::NIL) return true;
    return unpack(o, value.emplace());
  }
};

template <class Rep, class Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  using D = std::chrono::duration<Rep, Period>;
  static void encode(Packer& p, D value) { pack(p, value.count()); }
  static bool decode(const msgpack::object& o, D& value) {
    Rep count{};
    if (!unpack(o, count)) return false;
    value = D(count);
    return true;
  }
};

namespace detail {

template <class Tuple>
void pack_fields(Packer& p, const Tuple& tuple) {
  p.pack_array(static_cast<std::uint32_t>(std::tuple_size_v<Tuple>));
  std::apply([&](const auto&... field) { (pack(p, field), ...); }, tuple);
}

template <class Tuple, std::size_t... I>
bool unpack_fields(const msgpack::object& o, Tuple& tuple, std::index_sequence<I...>) {
  if (o.type != msgpack::type::ARRAY || o.via.array.size != sizeof...(I)) return false;
  return (unpack(o.via.array.ptr[I], std::get<I>(tuple)) && ...);
}

}  // namespace detail

template <class... T>
struct Codec<std::tuple<T...>> {
  static void encode(Packer& p, const std::tuple<T...>& value) { detail::pack_fields(p, value); }
  static bool decode(const msgpack::object& o, std::tuple<T...>& value) {
    return detail::unpack_fields(o, value, std::index_sequence_for<T...>{});
  }
};

template <class A, class B>
struct Codec<std::pair<A, B>> {
  static void encode(Packer& p, const std::pair<A, B>& value) { detail::pack_fields(p, std::tie(value.first, value.second)); }
  static bool decode(const msgpack::object& o, std::pair<A, B>& value) {
    auto tuple = std::tie(value.first, value.second);
    return detail::unpack_fields(o, tuple, std::index_sequence<0, 1>{});
  }
};

/// A variant: which alternative, and its value.
template <class... T>
struct Codec<std::variant<T...>> {
  using V = std::variant<T...>;
  static void encode(Packer& p, const V& value) {
    p.pack_array(2);
    pack(p, static_cast<std::uint32_t>(value.index()));
    std::visit([&](const auto& alternative) { pack(p, alternative); }, value);
  }
  static bool decode(const msgpack::object& o, V& value) {
    if (o.type != msgpack::type::ARRAY || o.via.array.size != 2) return false;
    std::uint32_t index = 0;
    return unpack(o.via.array.ptr[0], index) && decode_alternative(o.via.array.ptr[1], index, value, std::index_sequence_for<T...>{});
  }

 private:
  template <std::size_t... I>
  static bool decode_alternative(const msgpack::object& o, std::uint32_t index, V& value, std::index_sequence<I...>) {
    bool ok = false;
    (void)((I == index && ((ok = unpack(o, value.template emplace<I>())), true)) || ...);
    return ok;
  }
};

/// Aggregates: an array of their fields.
template <class T>
  requires std::is_class_v<T>
struct Codec<T> {
  static void encode(Packer& p, const T& value) { detail::pack_fields(p, fields(value)); }
  static bool decode(const msgpack::object& o, T& value) {
    auto tuple = fields(value);
    return detail::unpack_fields(o, tuple, std::make_index_sequence<std::tuple_size_v<decltype(tuple)>>{});
  }
};

/// `value` as MessagePack.
template <class T>
Bytes encode(const T& value) {
  Writer writer;
  Packer packer(writer);
  pack(packer, value);
  return writer.take();
}

/// Bytes parsed into an object tree, which points into `bytes`. Depth at most 32; nothing may follow the value.
Result<msgpack::object_handle> parse(ByteView bytes);

/// The T in `bytes`, or why there is none.
template <class T>
Result<T> decode(ByteView bytes) {
  auto parsed = parse(bytes);
  if (!parsed) return parsed.error();
  T value{};
  if (!unpack(parsed->get(), value)) {
    return ErrorInfo{ErrorCode::kBadInput, "cannot decode a message", "its fields have other types than expected",
                     "both sides must run the same build"};
  }
  return value;
}

}  // namespace troupe::wire
