/// Values of a recorded run.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "actors/tune/config.hpp"

namespace troupe::tune {

using Json = nlohmann::ordered_json;

/// Not-a-number and infinities are strings there.
inline double number(const Json& value) {
  if (!value.is_string()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  return value == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
}

inline std::optional<double> optional_number(const Json& event, const char* key) {
  if (!event.contains(key) || event[key].is_null()) return std::nullopt;
  return number(event[key]);
}

inline Value value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  return json.get<std::string>();
}

inline Json json_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}
inline Json json_of(const Value& value) {
  return std::visit([](const auto& each) { return Json(each); }, value);
}

/// A nested config as ours: "opt.beta".
inline void flatten(const Json& from, const std::string& prefix, Config& into) {
  for (const auto& [key, value] : from.items()) {
    if (value.is_object())
      flatten(value, prefix + key + ".", into);
    else
      into.set(prefix + key, value_of(value));
  }
}
inline Config config_of(const Json& json) {
  Config config;
  flatten(json, "", config);
  return config;
}
/// By name: the order is the user's.
inline Json json_of(const Config& config) {
  Json json = Json::object();
  std::vector<Setting> settings = config.settings;
  std::sort(settings.begin(), settings.end(), [](auto& a, auto& b) { return a.name < b.name; });
  for (const auto& [name, value] : settings) json[name] = json_of(value);
  return json;
}

}  // namespace troupe::tune
