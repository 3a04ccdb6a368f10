/// What a job's workers are started from, as messages name it: the executable, the shared libraries that
/// travel with it, and the folder where they run.
#pragma once

#include <string>
#include <string_view>

namespace troupe::wire {

/// "HASH:/folder", or "HASH+LIBRARIES:/folder". `hash`: of the executable; `folder`: the program's own,
/// absolute; empty: the node's; `libraries`: of the job's package that has them, as the head knows it; empty:
/// none travel.
inline std::string package_name(std::string_view hash, std::string_view folder,
                                std::string_view libraries = {}) {
  std::string name(hash);
  if (!libraries.empty()) name.append("+").append(libraries);
  return folder.starts_with('/') ? name.append(":").append(folder) : name;
}
inline std::string hash_in(std::string_view package) {
  return std::string(package.substr(0, package.find_first_of("+:")));
}
/// Empty, too, if it is no SHA-256 in hexadecimal: files are named by it.
inline std::string libraries_in(std::string_view package) {
  const auto files = package.substr(0, package.find(':'));
  const auto plus = files.find('+');
  const auto libraries = plus == std::string_view::npos ? std::string_view() : files.substr(plus + 1);
  const bool is_hash =
      libraries.size() == 64 && libraries.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return is_hash ? std::string(libraries) : std::string();
}
inline std::string folder_in(std::string_view package) {
  const auto colon = package.find(':');
  return colon == std::string_view::npos ? std::string() : std::string(package.substr(colon + 1));
}

}  // namespace troupe::wire
