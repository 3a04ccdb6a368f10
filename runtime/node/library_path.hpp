/// Where a program's loader looks for shared libraries first.
#pragma once

#include <string>

namespace troupe::node {

inline constexpr const char* kLibraryPathVariable = "LD_LIBRARY_PATH";

/// NAME=VALUE with `folder` before the others that are there.
inline std::string library_path(const std::string& folder, const std::string& others) {
  return std::string(kLibraryPathVariable) + "=" + folder + (others.empty() ? "" : ":" + others);
}

}  // namespace troupe::node
