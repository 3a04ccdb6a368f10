/// What one setting of a trial is drawn from. The functions make them, Space checks them:
///
///   log_uniform(1e-4, 1e-1)    uniform(0, 1, 0.25)    integer(1, 8)    choice({"sgd", "adam"})    grid({32,
///   64})
///
/// A domain knows which fields it fits: real numbers a double or float, integers an integer, a choice what
/// its values convert to. Ranges include both ends. With a step the values are low, low + step, ..., each as
/// likely (Optuna's).
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "actors/tune/config.hpp"
#include "runtime/config/kinds.hpp"
#include "runtime/core/random.hpp"

namespace troupe::tune {

/// Plain data: two equal ones draw the same.
struct Domain {
  enum class Kind : std::uint8_t { kUniform, kLogUniform, kNormal, kInteger, kLogInteger, kChoice, kGrid };
  Kind kind = Kind::kUniform;
  double low = 0;   ///< kNormal: the mean
  double high = 0;  ///< kNormal: the standard deviation
  double step = 0;  ///< 0: none
  std::vector<Value> values{};

  bool operator==(const Domain&) const = default;
};

/// "log_uniform(0.0001, 0.1)"
std::string to_text(const Domain& domain);

/// A setting's name and what it is drawn from.
struct Parameter {
  std::string name;
  Domain domain;
  bool conditional = false;  ///< some trials have it and some do not

  bool operator==(const Parameter&) const = default;
};

/// More points than anybody will ever run are a mistake.
inline constexpr std::size_t kMostGridPoints = 1'000'000;

/// Throws BadConfig for what nothing can be drawn from: an empty or inverted range, a logarithm of zero, a
/// step that is not a number above 0, no values; for values that a double cannot hold or tell apart; for two
/// of one name; for a grid of more than kMostGridPoints points.
void check(const std::vector<Parameter>& parameters);
/// Throws BadConfig where a finite value of the domain is below `least` or above `most`.
void check_holds(const Parameter& parameter, double least, double most);

/// The product of the lengths of all grids; 1 without any.
std::size_t grid_points(const std::vector<Parameter>& parameters);

/// A draw. The same numbers on every machine. A grid's is uniform over its values.
Value draw(const Domain& domain, Random& random);

/// A domain of real numbers, for double and float fields.
struct Real {
  Domain domain;
};
/// For integer fields.
struct Whole {
  Domain domain;
};
/// For fields that a T converts to.
template <class T>
struct Among {
  Domain domain;
};

inline Real uniform(double low, double high, double step = 0) {
  return {{Domain::Kind::kUniform, low, high, step}};
}
/// Its logarithm is uniform.
inline Real log_uniform(double low, double high, double step = 0) {
  return {{Domain::Kind::kLogUniform, low, high, step}};
}
/// Unbounded. With a step, rounded to its multiples.
inline Real normal(double mean, double standard_deviation, double step = 0) {
  return {{Domain::Kind::kNormal, mean, standard_deviation, step}};
}
/// `low`, ..., `high`: below 2^53 either way.
inline Whole integer(std::int64_t low, std::int64_t high, std::int64_t step = 1) {
  return {{Domain::Kind::kInteger, double(low), double(high), double(step)}};
}
inline Whole log_integer(std::int64_t low, std::int64_t high) {
  return {{Domain::Kind::kLogInteger, double(low), double(high), 1}};
}

namespace detail {

template <class T>
concept Text = std::convertible_to<T, std::string_view>;

/// Whether a drawn T may become a field of type F without losing anything.
template <class F, class T>
concept Holds = (Text<T> && std::same_as<F, std::string>) || std::same_as<F, T> ||
                (std::floating_point<F> && std::is_arithmetic_v<T> && !std::same_as<T, bool>) ||
                (std::integral<F> && std::integral<T> && !std::same_as<F, bool> && !std::same_as<T, bool>);

/// Its values have names that configure() knows, too.
template <class T>
concept Named = std::is_enum_v<T> && config::Configurable<T>;

/// The number where the enum has no name for it.
template <Named T>
Value name_or_number(T value) {
  for (const auto& [name, known] : config::Kind<T>::values()) {
    if (known == value) return name;
  }
  return static_cast<std::int64_t>(value);
}

template <class T>
Value to_value(const T& value) {
  if constexpr (Named<T>)
    return name_or_number(value);
  else if constexpr (Text<T>)
    return std::string(std::string_view(value));
  else if constexpr (std::same_as<T, bool>)
    return value;
  else if constexpr (std::same_as<T, float>)
    return widen(value);
  else if constexpr (std::floating_point<T>)
    return static_cast<double>(value);
  else
    return static_cast<std::int64_t>(value);
}

/// Whether an F can hold it; what stands behind the point is cut.
template <class F>
bool can_hold(const Value& value) {
  using Limits = std::numeric_limits<F>;
  const auto* whole = std::get_if<std::int64_t>(&value);
  if constexpr (std::integral<F> && !std::same_as<F, bool>) {
    if (whole && sizeof(F) == sizeof(*whole)) return true;
    if (whole) return *whole >= std::int64_t(Limits::min()) && *whole <= std::int64_t(Limits::max());
    const double number = number_of(value);
    return number > double(Limits::min()) - 1 && number < std::ldexp(1.0, Limits::digits);
  } else if constexpr (std::floating_point<F>) {
    const double number = number_of(value);
    return !std::isfinite(number) || std::abs(number) <= double(Limits::max());
  }
  return true;
}

/// False if `value` is of another kind, or the field cannot hold it.
template <class F>
bool from_value(const Value& value, F& field) {
  if constexpr (std::same_as<F, std::string>) {
    const auto* text = std::get_if<std::string>(&value);
    if (text) field = *text;
    return text != nullptr;
  } else {
    if constexpr (Named<F>) {
      if (const auto* name = std::get_if<std::string>(&value))
        return config::Kind<F>::set(config::Value{*name}, field).empty();
    }
    if (std::holds_alternative<std::string>(value)) return false;
    const auto* whole = std::get_if<std::int64_t>(&value);
    if (!can_hold<F>(value)) return false;
    field = whole ? static_cast<F>(*whole) : static_cast<F>(number_of(value));
    return true;
  }
}

template <class T>
Among<T> among(Domain::Kind kind, const auto& values) {
  Among<T> result{{kind, 0, 0, 0, {}}};
  for (const T& value : values) result.domain.values.push_back(to_value(value));
  return result;
}

}  // namespace detail

/// One of these, each as likely. Numbers, bools, enums, strings.
template <class T>
Among<T> choice(std::initializer_list<T> values) {
  return detail::among<T>(Domain::Kind::kChoice, values);
}
template <class T>
Among<T> choice(const std::vector<T>& values) {
  return detail::among<T>(Domain::Kind::kChoice, values);
}
/// Each of these in turn: the trials go through all combinations of all grids, the last one's values first.
template <class T>
Among<T> grid(std::initializer_list<T> values) {
  return detail::among<T>(Domain::Kind::kGrid, values);
}
template <class T>
Among<T> grid(const std::vector<T>& values) {
  return detail::among<T>(Domain::Kind::kGrid, values);
}
template <class T>
Among<T> constant(const T& value) {
  return choice<T>({value});
}

}  // namespace troupe::tune
