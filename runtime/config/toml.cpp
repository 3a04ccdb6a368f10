#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/config/value.hpp"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace troupe::config {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{1} << 20;

std::string line_of(const toml::source_region& source) {
  return "line " + std::to_string(source.begin.line);
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  void table(const toml::table& from, const std::string& prefix) {
    for (const auto& [key, node] : from) {
      const std::string name = prefix + std::string(key.str());
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
  const toml::parse_result parsed = toml::parse(text);
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
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    text.resize(kMostFileBytes + 1);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof()))
    return io_error("cannot read " + path, errno, "name a TOML file");
  if (text.size() > kMostFileBytes)
    return ErrorInfo{ErrorCode::kLimit, "cannot read " + path, "it has more than 1 MiB",
                     "name a TOML file of settings"};
  return parse_toml(text, path);
}

}  // namespace troupe::config
