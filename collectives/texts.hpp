/// What errors are made of.
#pragma once

#include <cstdio>
#include <string>
#include <type_traits>

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

/// "0, 3, 7", of numbers or strings.
template <class Range>
std::string listed(const Range& items) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ", ";
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(item)>>) {
      text += std::to_string(item);
    } else {
      text += item;
    }
  }
  return text;
}

/// "0.3 s".
inline std::string seconds_text(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", to_seconds(duration));
  return text;
}

}  // namespace troupe::collectives
