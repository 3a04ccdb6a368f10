/// What Linux's control groups, as containers and batch systems have them, let this process use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace troupe {

inline constexpr const char* kGroupMounts = "/sys/fs/cgroup";
inline constexpr const char* kOwnGroups = "/proc/self/cgroup";

/// Folders of the groups of this process that may bound `controller` ("cpu", "memory"), and of those above
/// them, of version 2 and 1; some may not be there. `mounts` has the groups of version 2, or those of version
/// 1 by controller; `self` says in which of them this process is.
std::vector<std::filesystem::path> groups_of(std::string_view controller,
                                             const std::filesystem::path& mounts = kGroupMounts,
                                             const std::filesystem::path& self = kOwnGroups);
/// A word of a file as a number, from 0. None: the file has no such number, as in "max".
std::optional<std::uint64_t> number_in(const std::filesystem::path& file, int word = 0);

/// Bytes of memory that this process may use: the host's, or less where a group of it says so. None: unknown.
std::optional<std::uint64_t> usable_memory(const std::filesystem::path& mounts = kGroupMounts,
                                           const std::filesystem::path& self = kOwnGroups);

/// Bytes of that which are free, or can be made so at once (files that are cached). None: unknown.
std::optional<std::uint64_t> available_memory(const std::filesystem::path& mounts = kGroupMounts,
                                              const std::filesystem::path& self = kOwnGroups,
                                              const std::filesystem::path& host = "/proc/meminfo");

/// How many processes and threads a control group may have, and has.
struct ProcessRoom {
  std::filesystem::path group;
  std::uint64_t most = 0, used = 0;
  std::uint64_t left() const { return most - std::min(most, used); }
};
/// That of this process which leaves the fewest. None: no limit is seen.
std::optional<ProcessRoom> process_room(const std::filesystem::path& mounts = kGroupMounts,
                                        const std::filesystem::path& self = kOwnGroups);

/// How many processes of this one's group the kernel has ended for want of memory. None: unknown.
std::optional<std::uint64_t> oom_kills(const std::filesystem::path& mounts = kGroupMounts,
                                       const std::filesystem::path& self = kOwnGroups);

}  // namespace troupe
