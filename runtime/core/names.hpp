/// The rule for the names that users give to jobs, actors and placement groups, and for prefixes of output.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/error.hpp"

namespace troupe {

inline constexpr std::size_t kMostNameBytes = 256;

/// Why `name` may be none (kLimit: it is longer; kBadInput: it has a control character, as a newline, which
/// would end a line of a log, or move a terminal's cursor), or nothing. `what` is what is then not done,
/// "cannot spawn a T"; `part` whose name it is.
std::optional<ErrorInfo> check_name(std::string_view name, std::string what,
                                    const std::string& part = "its name");

}  // namespace troupe
