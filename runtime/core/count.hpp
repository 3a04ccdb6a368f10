/// Numbers of things as sentences name them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

/// "1 node", "3 nodes"; for nouns whose plural is another one, count_of(n, "entry", "entries").
inline std::string count_of(std::int64_t number, std::string_view one, std::string_view several = {}) {
  std::string text = std::to_string(number) + ' ';
  if (number == 1) return text.append(one);
  return several.empty() ? text.append(one) + 's' : text.append(several);
}

}  // namespace troupe
