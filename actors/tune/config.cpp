#include "actors/tune/config.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace troupe::tune {

const Value* Config::find(std::string_view name) const {
  const auto at =
      std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.name == name; });
  return at == settings.end() ? nullptr : &at->value;
}

Value* Config::find(std::string_view name) {
  return const_cast<Value*>(std::as_const(*this).find(name));
}

void Config::set(std::string_view name, Value value) {
  if (Value* there = find(name))
    *there = std::move(value);
  else
    settings.push_back({std::string(name), std::move(value)});
}

std::string to_text(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  char digits[32];
  const auto* whole = std::get_if<std::int64_t>(&value);
  char* const end = whole ? std::to_chars(digits, digits + sizeof digits, *whole).ptr
                          : std::to_chars(digits, digits + sizeof digits, std::get<double>(value)).ptr;
  return std::string(digits, end);
}

std::string to_text(const Config& config) {
  std::string text;
  for (const auto& [name, value] : config.settings)
    text += (text.empty() ? "" : " ") + name + "=" + to_text(value);
  return text;
}

double widen(float number) {
  char digits[32];
  double wide = number;
  std::from_chars(digits, std::to_chars(digits, digits + sizeof digits, number).ptr, wide);
  return wide;
}

double number_of(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace troupe::tune
