/// What a trial was given: names with values, in the order of the space. For people, records and schedulers;
/// the struct with its fields set is made from it by Space::apply.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe::tune {

/// A field's value. Scoped enums are the names of their values, as in flags; a float is a double.
using Value = std::variant<bool, std::int64_t, double, std::string>;

struct Setting {
  std::string name;  ///< of the field; "optimizer.beta" for one of a nested struct
  Value value;

  bool operator==(const Setting&) const = default;
};

/// Crosses processes as it is. A setting that a condition left out is absent.
struct Config {
  std::vector<Setting> settings;

  bool operator==(const Config&) const = default;
  const Value* find(std::string_view name) const;
  Value* find(std::string_view name);
  void set(std::string_view name, Value value);  ///< replaces it, or appends it
};

/// "0.003", "true", "64", "adam". The shortest text that reads back to the same double.
std::string to_text(const Value& value);
/// "lr=0.003 batch=64"
std::string to_text(const Config& config);
/// The double whose shortest text is the float's: 0.1F is 0.1.
double widen(float number);
/// The number in a value: of a bool 0 or 1, of a string NaN.
double number_of(const Value& value);

}  // namespace troupe::tune
