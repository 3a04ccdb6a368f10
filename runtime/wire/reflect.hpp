/// Fields of a plain struct as a tuple of references, so that an aggregate crosses processes without a line
/// of code. The technique (count the initialisers a type accepts, then bind them) is that of Boost.PFR.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace troupe::wire {

namespace detail {

/// Converts to whatever a field is. Never called; defined for compilers that want to see a definition.
struct AnyField {
  template <class T>
  operator T() const noexcept {  // NOLINT: implicit on purpose
    __builtin_unreachable();
  }
};

template <class T, std::size_t... I>
constexpr bool accepts(std::index_sequence<I...>) {
  return requires {
    T{((void)I, AnyField{})...};
  };
}

/// Converts to a base class of `T` alone, which is the first that an aggregate is initialised with.
template <class T>
struct AnyBaseOf {
  template <class Base>
  requires(std::is_base_of_v<Base, T> && !std::is_same_v<Base, T>) operator Base()
      const noexcept {  // NOLINT: implicit on purpose
    __builtin_unreachable();
  }
};

template <class T>
constexpr bool has_base() {
  return requires {
    T{AnyBaseOf<T>{}};
  };
}

inline constexpr std::size_t kMostFields = 24;

/// The number of fields of an aggregate: the most initialisers it accepts, between `Least`, which it accepts,
/// and `Most`, which it does not. (A type that is decoded is made empty first, so it accepts any number
/// below.)
template <class T, std::size_t Least = 0, std::size_t Most = kMostFields + 2>
constexpr std::size_t field_count() {
  if constexpr (Most - Least == 1) {
    static_assert(
        Least <= kMostFields,
        "an aggregate that crosses processes has at most 24 fields, and C arrays count as their elements: "
        "nest structs, use std::array, or give it `auto troupe_fields() { return std::tie(...); }`");
    return Least;
  } else {
    constexpr std::size_t middle = (Least + Most) / 2;
    if constexpr (accepts<T>(std::make_index_sequence<middle>{})) {
      return field_count<T, middle, Most>();
    } else {
      return field_count<T, Least, middle>();
    }
  }
}

}  // namespace detail

/// A type that lists its own fields: `auto troupe_fields() { return std::tie(a, b); }`.
template <class T>
concept ListsFields = requires(T& value) {
  value.troupe_fields();
};

/// References to all fields of `value`, in order. At most 24 fields.
template <class T>
constexpr auto fields(T& value) {
  using Plain = std::remove_const_t<T>;
  if constexpr (ListsFields<Plain>) {
    return const_cast<Plain&>(value).troupe_fields();
  } else {
    static_assert(std::is_aggregate_v<Plain>,
                  "a type that crosses processes is an aggregate or has `auto troupe_fields() { return "
                  "std::tie(...); }`");
    static_assert(!detail::has_base<Plain>(),
                  "an aggregate that crosses processes has no base class: make it a field, or give the type "
                  "`auto troupe_fields() { return std::tie(...); }`");
    constexpr std::size_t n = detail::field_count<Plain>();
    // clang-format off
    if constexpr (n == 0) { return std::tuple<>(); }
    else if constexpr (n == 1) { auto& [f1] = value; return std::tie(f1); }
    else if constexpr (n == 2) { auto& [f1,f2] = value; return std::tie(f1,f2); }
    else if constexpr (n == 3) { auto& [f1,f2,f3] = value; return std::tie(f1,f2,f3); }
    else if constexpr (n == 4) { auto& [f1,f2,f3,f4] = value; return std::tie(f1,f2,f3,f4); }
    else if constexpr (n == 5) { auto& [f1,f2,f3,f4,f5] = value; return std::tie(f1,f2,f3,f4,f5); }
    else if constexpr (n == 6) { auto& [f1,f2,f3,f4,f5,f6] = value; return std::tie(f1,f2,f3,f4,f5,f6); }
    else if constexpr (n == 7) { auto& [f1,f2,f3,f4,f5,f6,f7] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7); }
    else if constexpr (n == 8) { auto& [f1,f2,f3,f4,f5,f6,f7,f8] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8); }
    else if constexpr (n == 9) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9); }
    else if constexpr (n == 10) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10); }
    else if constexpr (n == 11) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11); }
    else if constexpr (n == 12) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12); }
    else if constexpr (n == 13) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13); }
    else if constexpr (n == 14) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14); }
    else if constexpr (n == 15) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15); }
    else if constexpr (n == 16) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16); }
    else if constexpr (n == 17) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17); }
    else if constexpr (n == 18) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18); }
    else if constexpr (n == 19) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19); }
    else if constexpr (n == 20) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20); }
    else if constexpr (n == 21) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20,f21] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20,f21); }
    else if constexpr (n == 22) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20,f21,f22] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20,f21,f22); }
    else if constexpr (n == 23) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20,f21,f22,f23] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20,f21,f22,f23); }
    else if constexpr (n == 24) { auto& [f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20,f21,f22,f23,f24] = value; return std::tie(f1,f2,f3,f4,f5,f6,f7,f8,f9,f10,f11,f12,f13,f14,f15,f16,f17,f18,f19,f20,f21,f22,f23,f24); }
    // clang-format on
  }
}

}  // namespace troupe::wire
