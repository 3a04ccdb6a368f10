#include "runtime/core/control_groups.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <tuple>

namespace troupe {
namespace {

/// Whether a list of controllers ("cpu,cpuacct") has this one.
bool has_controller(std::string_view list, std::string_view controller) {
  return ("," + std::string(list) + ",").find("," + std::string(controller) + ",") != std::string::npos;
}

}  // namespace

std::optional<std::uint64_t> number_in(const std::filesystem::path& file, int word) {
  std::ifstream stream(file);
  std::string text;
  for (int i = 0; i <= word; ++i) {
    text.clear();
    stream >> text;
  }
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

std::vector<std::filesystem::path> groups_of(std::string_view controller, const std::filesystem::path& mounts,
                                             const std::filesystem::path& self) {
  std::vector<std::filesystem::path> groups;
  const auto add = [&](const std::filesystem::path& mount, std::string_view group) {
    // A container may see its own group as the mount, under a path that is the host's.
    for (std::filesystem::path at(group);; at = at.parent_path()) {
      groups.push_back(mount / at.relative_path());
      if (!at.has_relative_path()) return;
    }
  };
  std::ifstream lines(self);
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/a/group", or "0::/a/group"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view text(line);
    const auto controllers = text.substr(first + 1, second - first - 1), group = text.substr(second + 1);
    if (controllers.empty()) add(mounts, group);
    if (!has_controller(controllers, controller)) continue;
    add(mounts / controllers, group);
    if (controllers != controller) add(mounts / controller, group);
  }
  return groups;
}

std::optional<std::uint64_t> usable_memory(const std::filesystem::path& mounts,
                                           const std::filesystem::path& self) {
  std::optional<std::uint64_t> least;
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) least = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
  for (const auto& group : groups_of("memory", mounts, self)) {
    // Version 1 says "no limit" as a number that no host has.
    for (const char* file : {"memory.max", "memory.limit_in_bytes"}) {
      if (const auto bytes = number_in(group / file)) least = std::min(least.value_or(*bytes), *bytes);
    }
  }
  return least;
}

namespace {

/// Behind that word in a file; none: there is no such word with a number.
std::optional<std::uint64_t> number_behind(const std::filesystem::path& file, std::string_view word) {
  std::ifstream stream(file);
  std::string at;
  for (std::uint64_t number = 0; stream >> at;) {
    if (at == word) return stream >> number ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> available_memory(const std::filesystem::path& mounts,
                                              const std::filesystem::path& self,
                                              const std::filesystem::path& host) {
  std::optional<std::uint64_t> least;
  if (const auto kib = number_behind(host, "MemAvailable:")) least = *kib * 1024;
  for (const auto& group : groups_of("memory", mounts, self)) {
    for (const auto& [limit, usage, cached] :
         {std::tuple("memory.max", "memory.current", "inactive_file"),
          std::tuple("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}) {
      const auto most = number_in(group / limit), used = number_in(group / usage);
      if (!most || !used) continue;
      const std::uint64_t held =
          *used - std::min(*used, number_behind(group / "memory.stat", cached).value_or(0));
      const std::uint64_t left = *most - std::min(*most, held);
      least = std::min(least.value_or(left), left);
    }
  }
  return least;
}

std::optional<ProcessRoom> process_room(const std::filesystem::path& mounts,
                                        const std::filesystem::path& self) {
  std::optional<ProcessRoom> least;
  for (const auto& group : groups_of("pids", mounts, self)) {
    const auto most = number_in(group / "pids.max"), used = number_in(group / "pids.current");
    if (!most || !used) continue;
    ProcessRoom room{group, *most, *used};
    if (!least || room.left() < least->left()) least = std::move(room);
  }
  return least;
}

std::optional<std::uint64_t> oom_kills(const std::filesystem::path& mounts,
                                       const std::filesystem::path& self) {
  for (const auto& group : groups_of("memory", mounts, self)) {
    for (const char* file : {"memory.events", "memory.oom_control"}) {
      if (const auto kills = number_behind(group / file, "oom_kill")) return kills;
    }
  }
  return std::nullopt;
}

}  // namespace troupe
