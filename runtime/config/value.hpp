/// A value as configuration has it: what TOML or a flag says, before a field takes it. Dates are none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::config {

struct Value {
  std::variant<bool, std::int64_t, double, std::string, std::vector<Value>> is;
  bool operator==(const Value&) const = default;
};

/// "3", "0.1", "true", "\"adam\"", "[1, 2]": as TOML writes it.
std::string to_text(const Value& value);
/// "a whole number", "text", ...: for messages.
std::string kind_of(const Value& value);

/// What a file or a flag says of one name.
struct Setting {
  std::string name;            ///< with its tables: "options.epochs"
  std::optional<Value> value;  ///< none: a table that has nothing in it
  std::string where;           ///< "job.toml, line 3" or "--options.epochs"
};

/// The settings of a TOML document, in order of their lines. `file` is its name, for messages. Errors:
/// kBadInput with the line, for text that is no TOML or has what no field takes (a date, a table in a list).
Result<std::vector<Setting>> parse_toml(std::string_view text, const std::string& file);
/// The same of a file of at most 1 MiB. Errors also: kIo, kLimit.
Result<std::vector<Setting>> read_toml(const std::string& path);

}  // namespace troupe::config
