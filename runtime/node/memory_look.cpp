#include "runtime/node/memory_look.hpp"

#include <utility>

#include "runtime/core/control_groups.hpp"
#include "runtime/node/process_memory.hpp"

namespace troupe::node {
namespace {

using Bytes = std::int64_t (*)(pid_t);

/// A program's process group is looked at, a worker by itself.
void measure(std::vector<MemoryClaim>& claims, Bytes bytes_of, bool those_that_asked_alone) {
  std::vector<pid_t> groups;
  for (const MemoryClaim& claim : claims) {
    if (!claim.process && claim.pid > 0) groups.push_back(claim.pid);
  }
  const auto members = processes_of_groups(groups);
  for (MemoryClaim& claim : claims) {
    claim.use.has = 0;
    if (claim.pid <= 0 || (those_that_asked_alone && claim.use.asked == 0)) continue;
    if (claim.process) {
      claim.use.has = bytes_of(claim.pid);
    } else {
      for (const pid_t member : members.at(claim.pid)) claim.use.has += bytes_of(member);
    }
  }
}

bool any_has_more(const std::vector<MemoryClaim>& claims) {
  std::vector<MemoryUse> uses;
  for (const MemoryClaim& claim : claims) uses.push_back(claim.use);
  return any_is_over(uses);
}

}  // namespace

std::optional<MemoryMeasured> look_at_memory(std::int64_t offered, std::vector<MemoryClaim> claims) {
  measure(claims, anonymous_bytes, true);
  if (!any_has_more(claims)) return std::nullopt;
  measure(claims, share_of_anonymous_bytes, false);
  if (!any_has_more(claims)) return std::nullopt;
  NodeMemory node{offered};
  const auto usable = usable_memory(), available = available_memory();
  if (usable && available) {
    node.usable = static_cast<std::int64_t>(*usable);
    node.available = static_cast<std::int64_t>(*available);
    node.swapped = swapped_bytes();
  }
  return MemoryMeasured{node, std::move(claims)};
}

}  // namespace troupe::node
