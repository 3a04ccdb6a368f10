/// What errors are made of.
#pragma once

#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

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

/// "rank 3", "ranks 0-2, 5"; of many the first. REQUIRES: ascending.
inline std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  int left = 32;
  for (std::size_t i = 0; i < ranks.size();) {
    if (left-- == 0) return text + " and more, " + std::to_string(ranks.size()) + " in all";
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (i != 0) text += ", ";
    text += std::to_string(ranks[i]);
    if (end - i > 1) text += (end - i == 2 ? ", " : "-") + std::to_string(ranks[end - 1]);
    i = end;
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
