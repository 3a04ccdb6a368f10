#include "collectives/native/cpu_quota.hpp"

#include <algorithm>

namespace troupe::collectives {
namespace {

/// Cores that one group gives; none: it has no limit.
std::optional<std::uint32_t> cores_of(const std::filesystem::path& group) {
  auto quota = number_in(group / "cpu.max"), period = number_in(group / "cpu.max", 1);
  if (!quota) {
    quota = number_in(group / "cpu.cfs_quota_us");
    period = number_in(group / "cpu.cfs_period_us");
  }
  if (quota.value_or(0) == 0 || period.value_or(0) == 0) return std::nullopt;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(*quota / *period, 1, 1U << 20));
}

}  // namespace

std::optional<std::uint32_t> cpu_quota(const std::filesystem::path& mounts,
                                       const std::filesystem::path& self) {
  std::optional<std::uint32_t> least;
  for (const auto& group : groups_of("cpu", mounts, self)) {
    if (const auto cores = cores_of(group)) least = std::min(least.value_or(*cores), *cores);
  }
  return least;
}

}  // namespace troupe::collectives
