#include "runtime/config/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>

namespace troupe::config {
namespace {

/// Of words with `-` in place of `_`, and without the table.
std::string last_of(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

std::vector<std::string> names_of(const Entries& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.push_back(entry.name);
  return names;
}

bool is_own_flag(const std::string& name) {
  return name == "help" || name == "config";
}

ErrorInfo unknown(const std::string& where, const std::string& name, const std::vector<std::string>& names) {
  const auto near = nearest(name, names);
  return {ErrorCode::kBadConfig, "cannot take " + where,
          "there is no '" + name + "'" + (near ? "; the nearest is '" + *near + "'" : ""),
          "see --help for the names"};
}

/// The entry that a flag's name means: its own, or the only one that ends with it (`hang`, `deadlines.hang`).
Result<const Entry*> entry_of(const std::string& flag, const Entries& entries) {
  std::string name = flag.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  const Entry* found = nullptr;
  std::vector<std::string> all;
  for (const Entry& entry : entries) {
    if (entry.name == name) return &entry;
    if (!("." + entry.name).ends_with("." + name)) continue;
    found = &entry;
    all.push_back(flag_of(entry.name));
  }
  if (all.size() == 1) return found;
  if (all.empty()) {
    std::vector<std::string> names = names_of(entries);
    for (const Entry& entry : entries) names.push_back(last_of(entry.name));
    return unknown(flag, name, names);
  }
  std::string either;
  for (const std::string& one : all) either += (either.empty() ? "" : " or ") + one;
  return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + flag, "several fields have that name",
                   "write " + either};
}

}  // namespace

void drop_unnamed_enums(Entries& entries) {
  std::erase_if(entries, [](const Entry& entry) { return entry.type.ends_with("one of"); });
}

std::optional<ErrorInfo> name_taken(const Entries& entries) {
  for (const Entry& entry : entries) {
    if (is_own_flag(entry.name))
      return ErrorInfo{ErrorCode::kBadConfig, "cannot configure the field '" + entry.name + "'",
                       flag_of(entry.name) + " is a flag of every program that is configured",
                       "call it otherwise, or name the fields to configure: {job, {&Job::lr, ...}}"};
  }
  return std::nullopt;
}

std::string flag_of(const std::string& name) {
  std::string flag = "--" + name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

Value read_number(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  if (const auto got = std::from_chars(text.data(), end, whole); got.ec == std::errc() && got.ptr == end)
    return Value{whole};
  double real = 0;
  if (const auto got = std::from_chars(text.data(), end, real); got.ec == std::errc() && got.ptr == end)
    return Value{real};
  return Value{std::string(text)};
}

std::string wants(const Value& value, const std::string& type) {
  // What has more than 64 bits was read as a double.
  const auto* real = std::get_if<double>(&value.is);
  if (real != nullptr && std::abs(*real) >= 0x1p63 && type == "a whole number")
    return to_text(value) + " is out of range: a whole number has at most 64 bits";
  return to_text(value) + " is " + kind_of(value) + ", where " + type + " is expected";
}

std::string plain_name(std::string_view enumerator) {
  if (enumerator.size() > 1 && enumerator[0] == 'k' && enumerator[1] >= 'A' && enumerator[1] <= 'Z')
    enumerator.remove_prefix(1);
  std::string name;
  for (const char c : enumerator) {
    const bool is_upper = c >= 'A' && c <= 'Z';
    if (is_upper && !name.empty()) name += '_';
    name += is_upper ? static_cast<char>(c - 'A' + 'a') : c == '-' ? '_' : c;
  }
  return name;
}

std::optional<std::string> nearest(std::string_view wrong, const std::vector<std::string>& names) {
  std::optional<std::string> best;
  std::size_t least = 0;
  for (const std::string& name : names) {
    // Optimal string alignment, by rows: before.back() is the row above, before.front() the one above that.
    std::vector<std::size_t> above, last(name.size() + 1), row(name.size() + 1);
    std::iota(last.begin(), last.end(), std::size_t{0});
    for (std::size_t i = 1; i <= wrong.size(); ++i) {
      row[0] = i;
      for (std::size_t k = 1; k <= name.size(); ++k) {
        row[k] = std::min({last[k] + 1, row[k - 1] + 1, last[k - 1] + (wrong[i - 1] == name[k - 1] ? 0 : 1)});
        if (i > 1 && k > 1 && wrong[i - 1] == name[k - 2] && wrong[i - 2] == name[k - 1])
          row[k] = std::min(row[k], above[k - 2] + 1);
      }
      above = last;
      last = row;
    }
    const std::size_t distance = last.back();
    if (distance * 3 > std::max(wrong.size(), name.size()) || (best && distance >= least)) continue;
    best = name;
    least = distance;
  }
  return best;
}

std::optional<ErrorInfo> apply_settings(const std::vector<Setting>& settings, const Entries& entries) {
  for (const Setting& setting : settings) {
    const auto at = std::find_if(entries.begin(), entries.end(),
                                 [&](const Entry& entry) { return entry.name == setting.name; });
    if (at == entries.end()) {
      const bool is_table = std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
        return entry.name.starts_with(setting.name + ".");
      });
      if (is_table && !setting.value) continue;
      if (is_table)
        return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + setting.where,
                         "'" + setting.name + "' is a table", "write [" + setting.name + "], and its fields"};
      return unknown(setting.where, setting.name, names_of(entries));
    }
    const std::string why = setting.value ? at->set(*setting.value) : "it is a table, and no value";
    if (!why.empty())
      return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + setting.where, setting.name + ": " + why,
                       "see --help for what it takes"};
  }
  return std::nullopt;
}

Result<CommandLine> parse_flags(const std::vector<std::string>& words, const Entries& entries) {
  CommandLine line;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto equals = words[i].find('=');
    const std::string flag = words[i].substr(0, equals);
    const auto value = [&]() -> std::optional<std::string> {
      if (equals != std::string::npos) return words[i].substr(equals + 1);
      if (i + 1 == words.size()) return std::nullopt;
      return words[++i];
    };
    const auto lacks = [&] {
      return ErrorInfo{ErrorCode::kBadConfig, "cannot take " + flag, "it has no value",
                       "write " + flag + " VALUE"};
    };
    if (flag == "--help" || flag == "-h") {
      line.wants_help = true;
      return line;
    }
    if (flag.size() < 3 || !flag.starts_with("--"))
      return ErrorInfo{ErrorCode::kBadConfig, "cannot take '" + words[i] + "'", "it is no flag",
                       "see --help for the flags"};
    if (flag == "--config") {
      auto file = value();
      if (!file) return lacks();
      line.files.push_back(std::move(*file));
      continue;
    }
    const auto entry = entry_of(flag, entries);
    if (flag == "--address" && !entry) {  // init's
      if (!value()) return lacks();
      continue;
    }
    if (!entry) return entry.error();
    const Entry& of = **entry;
    const bool next_is_value = i + 1 < words.size() && (words[i + 1] == "true" || words[i + 1] == "false");
    if (of.is_bool && equals == std::string::npos && !next_is_value) {
      line.settings.push_back({of.name, Value{true}, flag});
      continue;
    }
    const auto text = value();
    if (!text) return lacks();
    line.settings.push_back({of.name, of.read(*text), flag});
  }
  return line;
}

std::string help_text(const std::string& program, const std::string& about, const Entries& entries) {
  std::map<std::string, int> short_names;
  for (const Entry& entry : entries) ++short_names[last_of(entry.name)];
  const auto is_whole_name = [&](const std::string& name) {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
  };
  std::string text =
      (about.empty() ? "" : about + "\n") + "usage: " + program +
      " [--config FILE.toml] [--FIELD VALUE ...]\n"
      "  --config                  A TOML file with these fields; what a flag says goes before it\n";
  if (short_names["address"] == 0)
    text += "  --address                 HOST:PORT of the head of a running cluster (text)\n";
  const auto table_of = [](const std::string& name) {
    const auto dot = name.rfind('.');
    return dot == std::string::npos ? std::string() : name.substr(0, dot);
  };
  std::vector<std::string> tables{""};  // each once, though fields follow a struct that is between them
  for (const Entry& entry : entries) {
    if (std::find(tables.begin(), tables.end(), table_of(entry.name)) == tables.end())
      tables.push_back(table_of(entry.name));
  }
  for (const std::string& table : tables) {
    if (!table.empty()) text += "[" + table + "]\n";
    for (const Entry& entry : entries) {
      if (table_of(entry.name) != table) continue;
      const std::string last = last_of(entry.name);
      const bool is_short = short_names[last] == 1 && !is_whole_name(last) && !is_own_flag(last);
      std::string left = "  " + (is_short ? flag_of(last) : flag_of(entry.name));
      left.resize(std::max<std::size_t>(left.size() + 2, 28), ' ');
      text += left + (entry.help.empty() ? entry.type : entry.help + " (" + entry.type + ")") +
              (entry.value.empty() ? "" : " [" + entry.value + "]") + "\n";
    }
  }
  return text;
}

}  // namespace troupe::config
