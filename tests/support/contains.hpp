/// Whether a text has a part, where Catch's matchers are too much.
#pragma once

#include <string_view>

namespace troupe::test {

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace troupe::test
