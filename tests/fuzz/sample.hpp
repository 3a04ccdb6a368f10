/// A value of any type that crosses processes, with every field set: what the corpus is encoded from.
#pragma once

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "runtime/wire/reflect.hpp"

namespace troupe::fuzz {

template <class T>
void fill(T& value);

namespace detail {

template <class C>
requires requires(C c, typename C::value_type v) {
  c.push_back(std::move(v));
}
void fill_value(C& values) {
  for (int i = 0; i < 2; ++i) {
    typename C::value_type value{};
    fill(value);
    values.push_back(std::move(value));
  }
}
template <class C>
requires requires {
  typename C::key_type;
}
void fill_value(C& values) {
  typename C::key_type key{};
  fill(key);
  if constexpr (requires { typename C::mapped_type; }) {
    fill(values[std::move(key)]);
  } else {
    values.insert(std::move(key));
  }
}
template <class T, std::size_t N>
void fill_value(std::array<T, N>& values) {
  for (T& value : values) fill(value);
}
template <class T>
void fill_value(std::optional<T>& value) {
  fill(value.emplace());
}
template <class... T>
void fill_value(std::variant<T...>& value) {
  std::visit([](auto& alternative) { fill(alternative); }, value);
}
template <class... T>
void fill_value(std::tuple<T...>& values) {
  std::apply([](auto&... value) { (fill(value), ...); }, values);
}
template <class A, class B>
void fill_value(std::pair<A, B>& value) {
  fill(value.first);
  fill(value.second);
}
inline void fill_value(std::string& value) {
  value = "node";
}
template <class Rep, class Period>
void fill_value(std::chrono::duration<Rep, Period>& value) {
  value = std::chrono::duration<Rep, Period>(7);
}
template <class T>
requires std::is_aggregate_v<T>
void fill_value(T& value) {
  std::apply([](auto&... field) { (fill(field), ...); }, wire::fields(value));
}

}  // namespace detail

template <class T>
void fill(T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = true;
  } else if constexpr (std::is_arithmetic_v<T>) {
    value = static_cast<T>(77);
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, std::byte>) {
    (void)value;  // its first enumerator: not every number is one
  } else {
    detail::fill_value(value);
  }
}

}  // namespace troupe::fuzz
