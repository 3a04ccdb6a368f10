/// What the cluster says of an actor that takes long to start, in the place where it else says what a spawn
/// waits for: that one has its room.
#pragma once

#include <string_view>

namespace troupe::cluster {

/// What it says then has this, and what it says of a wait for room does not.
inline constexpr std::string_view kDidNotStart = "it did not start on ";

inline bool is_slow_start(std::string_view why) {
  return why.find(kDidNotStart) != std::string_view::npos;
}

}  // namespace troupe::cluster
