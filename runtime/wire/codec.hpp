/// Values to bytes and back: call arguments, results and control messages. README.md gives the byte layout.
///
///   Bytes bytes = wire::encode(value);        // throws LimitExceeded for what no message can hold
///   Result<T> back = wire::decode<T>(bytes);  // total: never throws, takes no memory for a count alone
///
/// What crosses processes is data: numbers, bools, enums, strings, containers of the standard library,
/// optionals, variants, tuples, and aggregates of these. A class that is no aggregate lists its fields:
///
///   auto troupe_fields() { return std::tie(name, weights); }
///
/// or says itself how it travels, which is how a tensor travels as its bytes:
///
///   template <>
///   struct troupe::wire::Codec<Image> {
///     static void encode(Writer& to, const Image& image);
///     static bool decode(Reader& from, Image& image);   // false, once `from` has failed or been told to
///   };
///
/// A type that is none of these does not compile; the error names it.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/core/result.hpp"
#include "runtime/core/type_name.hpp"
#include "runtime/wire/bytes.hpp"
#include "runtime/wire/reflect.hpp"

namespace troupe::wire {

template <class T>
struct Codec;

/// Appends one value: what a Codec calls for its parts.
template <class T>
void write(Writer& to, const T& value);
/// Reads one value. False if it is not there.
template <class T>
[[nodiscard]] bool read(Reader& from, T& value);

namespace detail {

template <class T, template <class...> class Of>
inline constexpr bool kIsA = false;
template <template <class...> class Of, class... A>
inline constexpr bool kIsA<Of<A...>, Of> = true;

/// A std::variant, or what derives from one (OneOf): that variant.
template <class T>
struct VariantOf {};
template <class... A>
struct VariantOf<std::variant<A...>> {
  using type = std::variant<A...>;
};
template <class T>
requires std::derived_from<T, typename T::Variant>
struct VariantOf<T> : VariantOf<typename T::Variant> {
};
template <class T>
concept VariantLike = requires {
  typename VariantOf<T>::type;
};
template <class T>
inline constexpr std::size_t kAlternatives = std::variant_size_v<typename VariantOf<T>::type>;

template <class T>
inline constexpr bool kIsArray = false;
template <class T, std::size_t N>
inline constexpr bool kIsArray<std::array<T, N>> = true;

template <class T>
inline constexpr bool kIsSpan = false;
template <class T, std::size_t N>
inline constexpr bool kIsSpan<std::span<T, N>> = true;

template <class T>
concept DurationLike = requires(const T d) {
  typename T::rep;
  typename T::period;
  d.count();
};
template <class T>
concept Container = requires(T c) {
  typename T::value_type;
  c.begin();
  c.end();
  c.size();
  c.clear();
};
template <class T>
concept KeyContainer = Container<T> && requires {
  typename T::key_type;
};
template <class T>
concept MapContainer = KeyContainer<T> && requires {
  typename T::mapped_type;
};
template <class T>
concept Sequence = Container<T> && !KeyContainer<T> && requires(T c, typename T::value_type v) {
  c.push_back(std::move(v));
  c.back();
};
/// An enum that names its last enumerator: `constexpr E troupe_last(E) { return E::kLast; }`. Larger numbers
/// are then refused.
template <class T>
concept BoundedEnum = requires(T e) {
  { troupe_last(e) } -> std::same_as<T>;
};

enum class Shape {
  kNone,
  kBool,
  kNumber,  ///< integers and floats: their bytes
  kEnum,
  kView,      ///< string_view, span: written as what it views, read into what owns
  kSequence,  ///< strings too
  kArray,
  kMap,
  kSet,
  kOptional,  ///< unique_ptr too
  kPair,
  kTuple,
  kVariant,
  kDuration,
  kFields,
};

template <class T>
consteval Shape shape_of() {
  if constexpr (std::is_same_v<T, bool>)
    return Shape::kBool;
  else if constexpr (std::is_integral_v<T> || (std::is_floating_point_v<T> && sizeof(T) <= 8))
    return Shape::kNumber;
  else if constexpr (std::is_enum_v<T>)
    return Shape::kEnum;
  else if constexpr (kIsSpan<T> || std::is_same_v<T, std::string_view>)
    return Shape::kView;
  else if constexpr (kIsArray<T>)
    return Shape::kArray;
  else if constexpr (kIsA<T, std::optional> || kIsA<T, std::unique_ptr>)
    return Shape::kOptional;
  else if constexpr (kIsA<T, std::pair>)
    return Shape::kPair;
  else if constexpr (kIsA<T, std::tuple>)
    return Shape::kTuple;
  else if constexpr (VariantLike<T>)
    return Shape::kVariant;
  else if constexpr (!std::is_class_v<T>)
    return Shape::kNone;
  else if constexpr (ListsFields<T>)
    return Shape::kFields;
  else if constexpr (DurationLike<T>)
    return Shape::kDuration;
  else if constexpr (MapContainer<T>)
    return Shape::kMap;
  else if constexpr (KeyContainer<T>)
    return Shape::kSet;
  else if constexpr (Sequence<T>)
    return Shape::kSequence;
  else if constexpr (std::is_aggregate_v<T>)
    return Shape::kFields;
  else
    return Shape::kNone;
}

/// Whether Codec<T> is the one of this file.
template <class T>
concept BuiltIn = requires {
  typename Codec<T>::TroupeBuiltIn;
};

// Their names are what the compiler prints: incomplete on purpose.
template <class T>
struct This_type_cannot_be_sent_Give_it_troupe_fields_or_a_wire_Codec;
template <class Field, class Of>
struct This_field_cannot_be_sent_Give_its_type_troupe_fields_or_a_wire_Codec;
template <class T>
struct A_pointer_means_nothing_in_another_process_Send_the_value;
template <class T>
struct A_view_owns_nothing_Receive_a_std_string_or_std_vector;

/// Stops the compiler at a type that has no codec, with that type in the first line of the error.
template <class T, class In = void>
constexpr void check_sendable() {
  if constexpr (std::is_pointer_v<T>) {
    (void)sizeof(A_pointer_means_nothing_in_another_process_Send_the_value<T>);
  } else if constexpr (BuiltIn<T> && shape_of<T>() == Shape::kNone) {
    if constexpr (std::is_void_v<In>) {
      (void)sizeof(This_type_cannot_be_sent_Give_it_troupe_fields_or_a_wire_Codec<T>);
    } else {
      (void)sizeof(This_field_cannot_be_sent_Give_its_type_troupe_fields_or_a_wire_Codec<T, In>);
    }
  }
}

template <class T>
using FieldsOf = decltype(fields(std::declval<T&>()));

/// Whether the encoded bytes of a T are its bytes in memory: numbers, and arrays and aggregates of them
/// without padding. A vector of such is one copy.
template <class T>
consteval bool is_flat();
template <class... F>
consteval bool fields_flat(std::size_t size, std::tuple<F&...>*) {
  return sizeof...(F) > 0 && (is_flat<std::remove_const_t<F>>() && ...) && (sizeof(F) + ... + 0) == size;
}
template <class T>
consteval bool is_flat() {
  if constexpr (std::is_same_v<T, std::byte>) {
    return true;
  } else if constexpr (!BuiltIn<T>) {
    return false;
  } else if constexpr (shape_of<T>() == Shape::kNumber) {
    return true;
  } else if constexpr (shape_of<T>() == Shape::kArray) {
    return std::tuple_size_v<T> > 0 && is_flat<typename T::value_type>();
  } else if constexpr (shape_of<T>() == Shape::kFields && std::is_aggregate_v<T> && !ListsFields<T> &&
                       std::is_trivially_copyable_v<T>) {
    return fields_flat(sizeof(T), static_cast<FieldsOf<T>*>(nullptr));
  } else {
    return false;
  }
}

/// The fewest bytes that a T is encoded in: at least one.
template <class T>
consteval std::size_t least_bytes() {
  if constexpr (is_flat<T>())
    return sizeof(T);
  else if constexpr (!BuiltIn<T>)
    return 1;
  else if constexpr (shape_of<T>() == Shape::kEnum)
    return sizeof(T);
  else if constexpr (shape_of<T>() == Shape::kSequence)
    return sizeof(std::uint32_t);
  else
    return 1;
}

/// An index of a variant's alternative.
template <std::size_t N>
using IndexOf = std::conditional_t<(N <= 256), std::uint8_t, std::uint16_t>;

template <class... F>
void write_fields(Writer& to, const F&... field) {
  if constexpr (sizeof...(F) == 0) {
    const std::uint8_t zero = 0;  // an element of a vector takes at least a byte
    to.append(&zero, 1);
  } else {
    (write(to, field), ...);
  }
}
template <class... F>
[[nodiscard]] bool read_fields(Reader& from, F&... field) {
  if constexpr (sizeof...(F) == 0) {
    std::uint8_t zero = 0;
    return from.copy(&zero, 1) && (zero == 0 || from.fail("an empty struct is a zero byte"));
  } else {
    return (read(from, field) && ...);
  }
}

template <class C>
void write_elements(Writer& to, const C& container) {
  using E = std::remove_const_t<typename C::value_type>;
  to.append_count(container.size());
  if constexpr (is_flat<E>() && requires { container.data(); }) {
    to.append(container.data(), container.size() * sizeof(E));
  } else {
    for (const E& element : container) write(to, element);
  }
}

template <class C>
[[nodiscard]] bool read_elements(Reader& from, C& container) {
  using E = typename C::value_type;
  container.clear();
  std::uint32_t count = 0;
  if (!from.read_count(count, least_bytes<E>())) return false;
  if constexpr (std::is_same_v<C, std::string>) {
    ByteView text;
    if (!from.view(text, count)) return false;
    container.assign(reinterpret_cast<const char*>(text.data()), text.size());
    return true;
  } else if constexpr (is_flat<E>() && requires {
                         container.data();
                         container.resize(1);
                       }) {
    container.resize(count);
    return from.copy(container.data(), count * sizeof(E));
  } else {
    // What a false count would take stays below four times the message.
    if constexpr (requires { container.reserve(1); }) {
      if (count <= from.left() * 4 / sizeof(E)) container.reserve(count);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<decltype(container.back()), E&>) {
        if (!read(from, container.emplace_back())) return false;
      } else {  // bits of a vector<bool>
        E element{};
        if (!read(from, element)) return false;
        container.push_back(element);
      }
    }
    return true;
  }
}

template <class C>
[[nodiscard]] bool read_keys(Reader& from, C& container) {
  container.clear();
  std::uint32_t count = 0;
  if (!from.read_count(count, 1)) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    typename C::key_type key{};
    if (!read(from, key)) return false;
    if constexpr (MapContainer<C>) {
      typename C::mapped_type value{};
      if (!read(from, value)) return false;
      container.emplace_hint(container.end(), std::move(key), std::move(value));
    } else {
      container.emplace_hint(container.end(), std::move(key));
    }
    if (container.size() != i + std::size_t{1}) return from.fail("a key is there twice");
  }
  return true;
}

template <class V, std::size_t... I>
[[nodiscard]] bool read_alternative(Reader& from, std::size_t index, V& value, std::index_sequence<I...>) {
  bool ok = false;
  const bool known = ((I == index && ((ok = read(from, value.template emplace<I>())), true)) || ...);
  return known ? ok : from.fail("the index of a variant is unknown");
}

}  // namespace detail

/// How a T travels. The primary template knows the shapes of the standard library; specialise it for your
/// own.
template <class T>
struct Codec {
  using TroupeBuiltIn = void;
  static constexpr detail::Shape kShape = detail::shape_of<T>();
  using Shape = detail::Shape;

  static void encode(Writer& to, const T& value) {
    if constexpr (detail::is_flat<T>()) {
      to.append(&value, sizeof value);
    } else if constexpr (kShape == Shape::kBool || kShape == Shape::kEnum) {
      to.append(&value, sizeof value);
    } else if constexpr (kShape == Shape::kView || kShape == Shape::kSequence) {
      detail::write_elements(to, value);
    } else if constexpr (kShape == Shape::kArray) {
      if constexpr (std::tuple_size_v<T> == 0) return detail::write_fields(to);
      for (const auto& element : value) write(to, element);
    } else if constexpr (kShape == Shape::kMap) {
      to.append_count(value.size());
      for (const auto& [key, element] : value) write(to, key), write(to, element);
    } else if constexpr (kShape == Shape::kSet) {
      to.append_count(value.size());
      for (const auto& key : value) write(to, key);
    } else if constexpr (kShape == Shape::kOptional) {
      const bool there = static_cast<bool>(value);
      write(to, there);
      if (there) write(to, *value);
    } else if constexpr (kShape == Shape::kPair) {
      detail::write_fields(to, value.first, value.second);
    } else if constexpr (kShape == Shape::kTuple) {
      std::apply([&](const auto&... field) { detail::write_fields(to, field...); }, value);
    } else if constexpr (kShape == Shape::kVariant) {
      if (value.valueless_by_exception()) return to.refuse("it holds a variant without a value");
      write(to, static_cast<detail::IndexOf<detail::kAlternatives<T>>>(value.index()));
      std::visit([&](const auto& alternative) { write(to, alternative); }, value);
    } else if constexpr (kShape == Shape::kDuration) {
      write(to, value.count());
    } else if constexpr (kShape == Shape::kFields) {
      std::apply(
          [&](const auto&... field) {
            (detail::check_sendable<std::remove_cvref_t<decltype(field)>, T>(), ...);
            detail::write_fields(to, field...);
          },
          fields(value));
    }
  }

  static bool decode(Reader& from, T& value) {
    if constexpr (detail::is_flat<T>()) {
      return from.copy(&value, sizeof value);
    } else if constexpr (kShape == Shape::kBool) {
      std::uint8_t byte = 0;
      if (!from.copy(&byte, 1)) return false;
      value = byte != 0;
      return byte <= 1 || from.fail("a bool is 0 or 1");
    } else if constexpr (kShape == Shape::kEnum) {
      std::underlying_type_t<T> number{};
      if (!read(from, number)) return false;
      value = static_cast<T>(number);
      if constexpr (detail::BoundedEnum<T>) {
        if (std::cmp_less(number, 0) || value > troupe_last(value))
          return from.fail("an enum has no such value");
      }
      return true;
    } else if constexpr (kShape == Shape::kView) {
      (void)sizeof(detail::A_view_owns_nothing_Receive_a_std_string_or_std_vector<T>);
      return false;
    } else if constexpr (kShape == Shape::kSequence) {
      return detail::read_elements(from, value);
    } else if constexpr (kShape == Shape::kArray) {
      if constexpr (std::tuple_size_v<T> == 0) return detail::read_fields(from);
      for (auto& element : value) {
        if (!read(from, element)) return false;
      }
      return true;
    } else if constexpr (kShape == Shape::kMap || kShape == Shape::kSet) {
      return detail::read_keys(from, value);
    } else if constexpr (kShape == Shape::kOptional) {
      bool there = false;
      value.reset();
      if (!read(from, there)) return false;
      if (!there) return true;
      if constexpr (detail::kIsA<T, std::unique_ptr>) {
        value = std::make_unique<typename T::element_type>();
      } else {
        value.emplace();
      }
      return read(from, *value);
    } else if constexpr (kShape == Shape::kPair) {
      return detail::read_fields(from, value.first, value.second);
    } else if constexpr (kShape == Shape::kTuple) {
      return std::apply([&](auto&... field) { return detail::read_fields(from, field...); }, value);
    } else if constexpr (kShape == Shape::kVariant) {
      detail::IndexOf<detail::kAlternatives<T>> index = 0;
      return read(from, index) &&
             detail::read_alternative(from, index, value,
                                      std::make_index_sequence<detail::kAlternatives<T>>{});
    } else if constexpr (kShape == Shape::kDuration) {
      typename T::rep count{};
      if (!read(from, count)) return false;
      value = T(count);
      return true;
    } else if constexpr (kShape == Shape::kFields) {
      return std::apply(
          [&](auto&... field) {
            (detail::check_sendable<std::remove_cvref_t<decltype(field)>, T>(), ...);
            return detail::read_fields(from, field...);
          },
          fields(value));
    } else {
      return false;
    }
  }
};

template <class T>
void write(Writer& to, const T& value) {
  detail::check_sendable<T>();
  if constexpr (std::is_class_v<T> && !detail::is_flat<T>()) {
    const Writer::Level level(to);
    if (level.ok()) Codec<T>::encode(to, value);
  } else {
    Codec<T>::encode(to, value);
  }
}

template <class T>
bool read(Reader& from, T& value) {
  detail::check_sendable<T>();
  if constexpr (std::is_class_v<T> && !detail::is_flat<T>()) {
    const Reader::Level level(from);
    return level.ok() && Codec<T>::decode(from, value);
  } else {
    return Codec<T>::decode(from, value);
  }
}

/// The bytes of `value`. Throws LimitExceeded if it is nested too deep or a container is too long.
template <class T>
Bytes encode(const T& value) {
  Writer to;
  write(to, value);
  return to.take(type_name<T>());
}

/// The T in `bytes`, or why there is none. All of `bytes` is the value.
template <class T>
Result<T> decode(ByteView bytes) {
  Reader from(bytes);
  T value{};
  if (!read(from, value) || !from.finish()) {
    from.fail("its codec refused it");
    return from.error(type_name<T>());
  }
  return value;
}

}  // namespace troupe::wire
