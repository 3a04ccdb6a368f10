#include <algorithm>

#include "runtime/config/small_file.hpp"
#include "runtime/config/value.hpp"
#include "runtime/core/escape.hpp"

namespace troupe::config {
/// Thrown where toml++ asserts what the text should be, as 3.3 does of `[$x]`. With NDEBUG it would take for
/// granted what does not hold.
struct TomlAssertion {};
[[noreturn]] static void toml_asserts() {
  throw TomlAssertion();
}
}  // namespace troupe::config

#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) (static_cast<bool>(expr) ? static_cast<void>(0) : ::troupe::config::toml_asserts())
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace troupe::config {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{1} << 20;
/// Parts of one key: toml++, which bounds nested values by 256, goes into tables by recursion.
constexpr std::size_t kMostParts = 16;
/// A name stands in each of its settings.
constexpr std::size_t kMostNameBytes = 1024;

ErrorInfo unreadable(const std::string& file, std::size_t line, const std::string& why,
                     const std::string& todo) {
  return {ErrorCode::kBadInput, "cannot read " + file, "line " + std::to_string(line) + ": " + why, todo};
}

/// Where the string that begins at `at` ends: at its last quote, or at the end of the line or text that it
/// should not reach.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool is_long = text.substr(at, 3) == three;
  for (std::size_t i = at + (is_long ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\n' && !is_long) return i - 1;
    if (text[i] == '\\' && quote == '"' && i + 1 < text.size() && text[i + 1] != '\n') {
      ++i;
    } else if (text[i] == quote && !is_long) {
      return i;
    } else if (text.substr(i, 3) == three) {
      const auto after = std::min(text.find_first_not_of(quote, i), text.size());
      return std::min(i + 4, after - 1);  // up to two quotes more are the string's
    }
  }
  return text.size() - 1;
}

/// The line of a key of more parts than kMostParts. Strings and comments are passed over; where the text is
/// no TOML the parser says so.
std::optional<std::size_t> line_of_long_key(std::string_view text) {
  std::size_t line = 1, dots = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const std::size_t end = end_of_string(text, i);
      line += static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                                  text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      i = end;
    } else if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (c == '.') {
      if (++dots >= kMostParts) return line;
    } else if (std::string_view("\n=,[]{}").find(c) != std::string_view::npos) {
      dots = 0;
      line += c == '\n';
    }
  }
  return std::nullopt;
}

/// Nothing: toml++ has no words for what is wrong.
std::optional<toml::parse_result> parsed_if_it_can(std::string_view text) try {
  return toml::parse(text);
} catch (const TomlAssertion&) {
  return std::nullopt;
}

/// The first line with which it cannot.
std::size_t line_of_assertion(std::string_view text) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') ends.push_back(i + 1);
  }
  const auto first = std::partition_point(ends.begin(), ends.end(), [&](std::size_t end) {
    return parsed_if_it_can(text.substr(0, end)).has_value();
  });
  return static_cast<std::size_t>(first - ends.begin()) + 1;
}

std::string line_of(const toml::source_region& source) {
  return "line " + std::to_string(source.begin.line);
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  void table(const toml::table& from, const std::string& prefix) {
    for (const auto& [key, node] : from) {
      const std::string name = prefix + escape_name(key.str());
      if (name.size() > kMostNameBytes) {
        if (!error_)
          error_ = unreadable(file_, node.source().begin.line,
                              "the name has more than " + std::to_string(kMostNameBytes) + " bytes",
                              "see --help for the names");
        return;
      }
      if (const auto* inner = node.as_table(); inner && !inner->empty()) {
        table(*inner, name + ".");
        continue;
      }
      Found found{node.source().begin.line,
                  {name, std::nullopt, file_ + ", line " + std::to_string(node.source().begin.line)}};
      if (!node.is_table()) {
        found.setting.value = value(node, name);
        if (!found.setting.value) return;
      }
      found_.push_back(std::move(found));
    }
  }

  Result<std::vector<Setting>> done() {
    if (error_) return *error_;
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Found& a, const Found& b) { return a.line < b.line; });
    std::vector<Setting> all;
    for (Found& found : found_) all.push_back(std::move(found.setting));
    return all;
  }

 private:
  struct Found {
    toml::source_index line;
    Setting setting;
  };

  std::optional<Value> value(const toml::node& node, const std::string& name) {
    if (const auto* is = node.as_boolean()) return Value{is->get()};
    if (const auto* is = node.as_integer()) return Value{is->get()};
    if (const auto* is = node.as_floating_point()) return Value{is->get()};
    if (const auto* is = node.as_string()) return Value{is->get()};
    if (const auto* is = node.as_array()) {
      std::vector<Value> all;
      for (const auto& one : *is) {
        auto got = value(one, name);
        if (!got) return std::nullopt;
        all.push_back(std::move(*got));
      }
      return Value{std::move(all)};
    }
    if (!error_)
      error_ = ErrorInfo{ErrorCode::kBadInput, "cannot read " + file_,
                         line_of(node.source()) + ": " + name +
                             (node.is_table() ? " has a table in a list" : " is a date or a time"),
                         "a value is a number, text in quotes, true, false, or a list of those"};
    return std::nullopt;
  }

  std::string file_;
  std::vector<Found> found_;
  std::optional<ErrorInfo> error_;
};

}  // namespace

Result<std::vector<Setting>> parse_toml(std::string_view text, const std::string& file) {
  if (const auto line = line_of_long_key(text))
    return unreadable(file, *line, "the key has more than " + std::to_string(kMostParts) + " parts",
                      "see --help for the names");
  const auto tried = parsed_if_it_can(text);
  if (!tried)
    return unreadable(file, line_of_assertion(text), "it is no TOML",
                      "a name is letters, digits, '-' and '_', or stands in quotes");
  const toml::parse_result& parsed = *tried;
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return ErrorInfo{ErrorCode::kBadInput, "cannot read " + file,
                     line_of(error.source()) + ": " + std::string(error.description()),
                     "it is TOML: name = value, and [table] before the fields of a table"};
  }
  Reader reader(file);
  reader.table(parsed.table(), "");
  return reader.done();
}

Result<std::vector<Setting>> read_toml(const std::string& path) {
  const auto text = read_small_file(path, kMostFileBytes);
  if (!text) return text.error();
  return parse_toml(*text, path);
}

}  // namespace troupe::config
