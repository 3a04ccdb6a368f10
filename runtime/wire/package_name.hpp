/// What a job's workers are started from, as messages name it: the executable, and the folder where they run.
#pragma once

#include <string>
#include <string_view>

namespace troupe::wire {

/// "HASH:/folder". `hash`: of the executable; `folder`: the program's own, absolute; empty: the node's.
inline std::string package_name(std::string_view hash, std::string_view folder) {
  std::string name(hash);
  return folder.starts_with('/') ? name.append(":").append(folder) : name;
}
inline std::string hash_in(std::string_view package) {
  return std::string(package.substr(0, package.find(':')));
}
inline std::string folder_in(std::string_view package) {
  const auto colon = package.find(':');
  return colon == std::string_view::npos ? std::string() : std::string(package.substr(colon + 1));
}

}  // namespace troupe::wire
