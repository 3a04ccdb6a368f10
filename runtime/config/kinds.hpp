/// Which C++ types a setting can fill, and how: numbers, bools, strings, enums by the names of their values,
/// times in seconds, std::optional and std::vector of these. A type of one's own specialises Kind.
#pragma once

#include <charconv>
#include <chrono>
#include <cmath>
#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/config/field_name.hpp"
#include "runtime/config/value.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::config {

/// type(): what it wants, for messages. set(): why not, or empty. get(): its value now; none: nothing to
/// show. read(): what a flag's text is; whatever it returns, set() judges.
template <class F>
struct Kind;

template <class F>
concept Configurable = requires(F& field, const Value& value, std::string_view text) {
  { Kind<F>::type() } -> std::convertible_to<std::string>;
  { Kind<F>::set(value, field) } -> std::convertible_to<std::string>;
  { Kind<F>::get(field) } -> std::convertible_to<std::optional<Value>>;
  { Kind<F>::read(text) } -> std::convertible_to<Value>;
};

/// A flag's text as the number that it is, or else as text.
Value read_number(std::string_view text);
/// "'abc' is text, where a whole number is expected"
std::string wants(const Value& value, const std::string& type);

template <>
struct Kind<bool> {
  static std::string type() { return "true or false"; }
  static std::string set(const Value& value, bool& field) {
    const auto* is = std::get_if<bool>(&value.is);
    if (is == nullptr) return wants(value, type());
    field = *is;
    return {};
  }
  static std::optional<Value> get(bool field) { return Value{field}; }
  static Value read(std::string_view text) {
    if (text == "true" || text == "false") return Value{text == "true"};
    return Value{std::string(text)};
  }
};

template <class F>
requires(std::integral<F> && !std::same_as<F, bool> && !std::same_as<F, char>) struct Kind<F> {
  using Limits = std::numeric_limits<F>;
  static std::string type() { return "a whole number"; }
  static std::string set(const Value& value, F& field) {
    const auto* is = std::get_if<std::int64_t>(&value.is);
    if (is == nullptr) return wants(value, type());
    if (!std::in_range<F>(*is))
      return std::to_string(*is) + " is out of range: it is " + std::to_string(Limits::min()) + " to " +
             std::to_string(Limits::max());
    field = static_cast<F>(*is);
    return {};
  }
  static std::optional<Value> get(F field) {
    if (!std::in_range<std::int64_t>(field)) return std::nullopt;
    return Value{static_cast<std::int64_t>(field)};
  }
  static Value read(std::string_view text) { return read_number(text); }
};

template <std::floating_point F>
struct Kind<F> {
  static std::string type() { return "a number"; }
  static std::string set(const Value& value, F& field) {
    const auto* whole = std::get_if<std::int64_t>(&value.is);
    const auto* real = std::get_if<double>(&value.is);
    if (whole == nullptr && real == nullptr) return wants(value, type());
    const double number = whole != nullptr ? static_cast<double>(*whole) : *real;
    if (!std::isfinite(number) || std::abs(number) > static_cast<double>(std::numeric_limits<F>::max()))
      return to_text(value) + " is out of range: it is a finite number";
    field = static_cast<F>(number);
    return {};
  }
  static std::optional<Value> get(F field) {
    if constexpr (std::same_as<F, float>) {  // the double whose shortest text is the float's
      char digits[32];
      const auto end = std::to_chars(digits, digits + sizeof digits, field).ptr;
      double shown = 0;
      std::from_chars(digits, end, shown);
      return Value{shown};
    } else {
      return Value{static_cast<double>(field)};
    }
  }
  static Value read(std::string_view text) { return read_number(text); }
};

template <>
struct Kind<std::string> {
  static std::string type() { return "text"; }
  static std::string set(const Value& value, std::string& field) {
    const auto* is = std::get_if<std::string>(&value.is);
    if (is == nullptr) return wants(value, type());
    field = *is;
    return {};
  }
  static std::optional<Value> get(const std::string& field) {
    if (field.empty()) return std::nullopt;
    return Value{field};
  }
  static Value read(std::string_view text) { return Value{std::string(text)}; }
};

/// Seconds.
template <>
struct Kind<Duration> {
  static std::string type() { return "a number of seconds"; }
  static std::string set(const Value& value, Duration& field) {
    double seconds = 0;
    if (std::string why = Kind<double>::set(value, seconds); !why.empty())
      return std::holds_alternative<std::int64_t>(value.is) || std::holds_alternative<double>(value.is)
                 ? why
                 : wants(value, type());
    if (std::abs(seconds) > 1e9) return to_text(value) + " is out of range: it is at most 1e9 seconds";
    field = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    return {};
  }
  static std::optional<Value> get(Duration field) { return Value{to_seconds(field)}; }
  static Value read(std::string_view text) { return read_number(text); }
};

/// "kGoOn" is "go_on".
std::string plain_name(std::string_view enumerator);

template <class E>
requires(std::is_enum_v<E> && !std::is_convertible_v<E, int>) struct Kind<E> {
  /// Values with names, of 0 to 31.
  static const std::vector<std::pair<std::string, E>>& values() {
    static const auto all = []<std::size_t... I>(std::index_sequence<I...>) {
      std::vector<std::pair<std::string, E>> named;
      const auto add = [&](std::string_view name, E value) {
        if (!name.empty()) named.emplace_back(plain_name(name), value);
      };
      (add(enumerator_of<static_cast<E>(I)>(), static_cast<E>(I)), ...);
      return named;
    }
    (std::make_index_sequence<32>{});
    return all;
  }
  static std::string type() {
    std::string text = "one of";
    for (const auto& [name, value] : values()) text += (text == "one of" ? " " : ", ") + name;
    return text;
  }
  static std::string set(const Value& value, E& field) {
    const auto* is = std::get_if<std::string>(&value.is);
    if (is == nullptr) return wants(value, type());
    for (const auto& [name, known] : values()) {
      if (*is != name && plain_name(*is) != name) continue;
      field = known;
      return {};
    }
    return "'" + *is + "' is not " + type();
  }
  static std::optional<Value> get(E field) {
    for (const auto& [name, known] : values()) {
      if (known == field) return Value{name};
    }
    return std::nullopt;
  }
  static Value read(std::string_view text) { return Value{std::string(text)}; }
};

template <Configurable F>
struct Kind<std::optional<F>> {
  static std::string type() { return Kind<F>::type(); }
  static std::string set(const Value& value, std::optional<F>& field) {
    F made{};
    std::string why = Kind<F>::set(value, made);
    if (why.empty()) field = std::move(made);
    return why;
  }
  static std::optional<Value> get(const std::optional<F>& field) {
    return field ? Kind<F>::get(*field) : std::nullopt;
  }
  static Value read(std::string_view text) { return Kind<F>::read(text); }
};

/// On the command line with commas: --sizes 1,2,3.
template <Configurable F>
struct Kind<std::vector<F>> {
  static std::string type() { return "a list, each " + Kind<F>::type(); }
  static std::string set(const Value& value, std::vector<F>& field) {
    const auto* list = std::get_if<std::vector<Value>>(&value.is);
    if (list == nullptr) return wants(value, type());
    std::vector<F> made;
    for (const Value& one : *list) {
      F element{};
      if (std::string why = Kind<F>::set(one, element); !why.empty()) return why;
      made.push_back(std::move(element));
    }
    field = std::move(made);
    return {};
  }
  static std::optional<Value> get(const std::vector<F>& field) {
    std::vector<Value> all;
    for (const F& one : field) {
      if (auto value = Kind<F>::get(one)) all.push_back(std::move(*value));
    }
    return Value{std::move(all)};
  }
  static Value read(std::string_view text) {
    std::vector<Value> all;
    while (!text.empty()) {
      const auto comma = text.find(',');
      all.push_back(Kind<F>::read(text.substr(0, comma)));
      text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    }
    return Value{std::move(all)};
  }
};

}  // namespace troupe::config
