/// Settings into fields: which entry a name means, and what is wrong where it means none. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/fields.hpp"

namespace troupe::config {

/// The name that takes the fewest letters changed, added, left out or swapped, if that is at most a third of
/// the longer one's.
std::optional<std::string> nearest(std::string_view wrong, const std::vector<std::string>& names);

/// Leaves out the fields of enums none of whose values has a name that the compiler tells (of 0 to 31): no
/// setting fills them.
void drop_unnamed_enums(Entries& entries);
/// Why not, where a field's flag is one that every configured program has: --help, --config.
std::optional<ErrorInfo> name_taken(const Entries& entries);

/// The first setting that does not fit, as an error; the others before it are set.
std::optional<ErrorInfo> apply_settings(const std::vector<Setting>& settings, const Entries& entries);

struct CommandLine {
  std::vector<std::string> files;  ///< of --config, in order
  std::vector<Setting> settings;
  bool wants_help = false;
};
/// What the words say of these entries: `--lr 0.1`, `--lr=0.1`, `--resume`.
Result<CommandLine> parse_flags(const std::vector<std::string>& words, const Entries& entries);

std::string help_text(const std::string& program, const std::string& about, const Entries& entries);

}  // namespace troupe::config
