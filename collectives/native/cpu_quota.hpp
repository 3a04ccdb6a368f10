/// The limit on CPU time that a container or a job puts on its processes, by Linux's control groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/core/control_groups.hpp"

namespace troupe::collectives {

/// How many whole cores the control groups of this process, and those above them, let it use at a time, but
/// at least 1. None: there is no limit. Parameters as of groups_of().
std::optional<std::uint32_t> cpu_quota(const std::filesystem::path& mounts = kGroupMounts,
                                       const std::filesystem::path& self = kOwnGroups);

}  // namespace troupe::collectives
