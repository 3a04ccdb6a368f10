/// What a program has of objects and tasks, for tests that wait until it has none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/objects/objects.hpp"
#include "runtime/tasks/tasks.hpp"
#include "tests/e2e/support.hpp"
#include "troupe/session.hpp"

namespace troupe::e2e {

inline std::uint64_t owned(const Session& session) {
  return session.process().objects()->counts().owned;
}
inline bool no_objects(const Session& session) {
  return eventually([&] { return owned(session) == 0; });
}
inline bool no_workers(const Session& session) {
  return eventually([&] { return session.process().tasks()->counts().leases == 0; });
}
/// Descriptors of a process, as files, whose targets begin so.
inline std::vector<std::string> descriptors_of(pid_t process, const std::string& target) {
  std::vector<std::string> found;
  const std::string folder = "/proc/" + std::to_string(process) + "/fd/";
  for (const auto& name : names_in(folder)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(folder + name, gone).string().starts_with(target))
      found.push_back(folder + name);
  }
  return found;
}

inline double sum_view(const View<float>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

}  // namespace troupe::e2e
