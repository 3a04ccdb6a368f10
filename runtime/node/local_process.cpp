#include "runtime/node/local_process.hpp"

namespace troupe {

std::string take_whole_lines(std::string& partial, std::string_view text) {
  constexpr std::size_t kLongestLine = 64 * 1024;
  partial.append(text);
  const auto end = partial.rfind('\n');
  if (end == std::string::npos) {
    if (partial.size() < kLongestLine) return {};
    partial.push_back('\n');
    return std::exchange(partial, {});
  }
  std::string whole = partial.substr(0, end + 1);
  partial.erase(0, end + 1);
  return whole;
}

}  // namespace troupe
