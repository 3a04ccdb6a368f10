#include "runtime/config/value.hpp"

#include <charconv>
#include <cstdio>

namespace troupe::config {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

std::string to_text(const Value& value) {
  if (const auto* is = std::get_if<bool>(&value.is)) return *is ? "true" : "false";
  if (const auto* is = std::get_if<std::int64_t>(&value.is)) return std::to_string(*is);
  if (const auto* is = std::get_if<double>(&value.is)) {
    char digits[32];
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, *is).ptr);
  }
  if (const auto* is = std::get_if<std::string>(&value.is)) return quoted(*is);
  std::string text = "[";
  for (const Value& one : std::get<std::vector<Value>>(value.is))
    text += (text.size() == 1 ? "" : ", ") + to_text(one);
  return text + "]";
}

std::string kind_of(const Value& value) {
  constexpr const char* kKinds[] = {"true or false", "a whole number", "a number", "text", "a list"};
  return kKinds[value.is.index()];
}

}  // namespace troupe::config
