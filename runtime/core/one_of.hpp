/// Variants of dozens of alternatives, whose copying, moving and destroying are compiled in one file.
#pragma once

#include <type_traits>
#include <utility>
#include <variant>

namespace troupe {

template <class T, class Variant>
inline constexpr bool kIsAlternative = false;
template <class T, class... A>
inline constexpr bool kIsAlternative<T, std::variant<A...>> = (std::is_same_v<T, A> || ...);

/// A std::variant's base for a struct that declares its copying, moving and destroying, and defines them (`=
/// default`) in its .cpp file: a file that only passes messages on would else compile that code for each of
/// their kinds, for seconds. `std::get_if`, `std::visit` and the codec take it for the variant that it is.
template <class... A>
struct OneOf : std::variant<A...> {
  using Variant = std::variant<A...>;
  OneOf() = default;
  template <class T>
  requires kIsAlternative<std::remove_cvref_t<T>, Variant> OneOf(
      T&& alternative)  // NOLINT(google-explicit-constructor): as a variant's own
      : Variant(std::in_place_type<std::remove_cvref_t<T>>, std::forward<T>(alternative)) {}
};

}  // namespace troupe
