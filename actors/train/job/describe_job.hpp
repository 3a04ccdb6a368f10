/// A job's struct as people read it: `Digits{"mnist", 0.02, sgd}`. Fields stand without their names.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "runtime/config/kinds.hpp"
#include "runtime/wire/reflect.hpp"

namespace troupe::train {

/// Appends `value`. Of a long list the beginning; of what has no fields its size.
template <class T>
void describe(std::string& to, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    to += value ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    std::string name;
    if constexpr (requires { config::Kind<T>::values(); }) {  // as flags, tables and records have it
      for (const auto& [known, is] : config::Kind<T>::values()) {
        if (is == value) name = known;
      }
    }
    name.empty() ? describe(to, static_cast<std::underlying_type_t<T>>(value)) : void(to += name);
  } else if constexpr (std::is_arithmetic_v<T>) {
    char digits[64];
    to.append(digits, std::to_chars(std::begin(digits), std::end(digits), value).ptr);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    to += '"' + std::string(std::string_view(value)) + '"';
  } else if constexpr (requires { value.begin() != value.end(); }) {
    constexpr int kMost = 8;
    int shown = 0;
    to += '[';
    for (const auto& item : value) {
      if (shown++ > 0) to += ", ";
      if (shown > kMost) {
        to += "...";
        break;
      }
      describe(to, item);
    }
    to += ']';
  } else if constexpr (requires {
                         value.has_value();
                         *value;
                       }) {
    if (value) {
      describe(to, *value);
    } else {
      to += "none";
    }
  } else if constexpr (wire::ListsFields<T> || std::is_aggregate_v<T>) {
    to += '{';
    std::apply(
        [&](const auto&... field) {
          int shown = 0;
          ((to += shown++ > 0 ? ", " : "", describe(to, field)), ...);
        },
        wire::fields(value));
    to += '}';
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    to += '(';
    std::apply(
        [&](const auto&... item) {
          int shown = 0;
          ((to += shown++ > 0 ? ", " : "", describe(to, item)), ...);
        },
        value);
    to += ')';
  } else {
    to += "(" + std::to_string(sizeof(T)) + " bytes)";
  }
}

}  // namespace troupe::train
