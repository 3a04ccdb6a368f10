#include "runtime/core/names.hpp"

#include <algorithm>

namespace troupe {

std::optional<ErrorInfo> check_name(std::string_view name, std::string what, const std::string& part) {
  if (name.size() > kMostNameBytes)
    return ErrorInfo{ErrorCode::kLimit, std::move(what),
                     part + " has " + std::to_string(name.size()) + " bytes, and " +
                         std::to_string(kMostNameBytes) + " are the most",
                     "choose a shorter one"};
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), is_control))
    return ErrorInfo{ErrorCode::kBadInput, std::move(what), part + " has a control character",
                     "choose one of letters that can be printed"};
  return std::nullopt;
}

}  // namespace troupe
