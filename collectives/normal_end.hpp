/// Which ends of a group are none of a failure: dumps of the flight recorder that tell of those go first.
#pragma once

#include <string_view>

namespace troupe::collectives {

// What an abort says then.
inline constexpr const char* kToldToEnd = "was told to end";
inline constexpr const char* kGenerationOver = "the generation is over";
inline constexpr const char* kFormsNext = "forms the next generation";

/// Whether an abort's reason, or an error that tells it, is the first of these.
constexpr bool is_told_to_end(std::string_view reason) {
  return reason.find(kToldToEnd) != std::string_view::npos;
}

/// The same of all of these.
constexpr bool is_normal_end(std::string_view reason) {
  for (const char* normal : {kToldToEnd, kGenerationOver, kFormsNext}) {
    if (reason.find(normal) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace troupe::collectives
