#include "runtime/node/memory_look.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/core/control_groups.hpp"
#include "runtime/node/process_memory.hpp"

namespace troupe::node {
namespace {

/// A program's process group is looked at, a worker by itself.
void measure(std::vector<MemoryClaim>& claims, const BytesOf& bytes_of, bool those_that_asked_alone) {
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
  uses.reserve(claims.size());
  for (const MemoryClaim& claim : claims) uses.push_back(claim.use);
  return any_is_over(uses);
}

}  // namespace

std::optional<MemoryMeasured> look_at_memory(std::int64_t offered, std::vector<MemoryClaim> claims,
                                             StuckProcesses& stuck, const BytesOf& share) {
  measure(claims, anonymous_bytes, true);
  if (!any_has_more(claims)) return std::nullopt;
  std::map<pid_t, std::int64_t> most;  // of workers: a kill frees nothing of one that is stuck
  for (const MemoryClaim& claim : claims)
    if (claim.process) most[claim.pid] = claim.use.asked;
  const auto share_or_sum = [&](pid_t process) {
    std::int64_t bytes = 0;
    if (stuck.look_at(process, [&] { bytes = share(process); })) return bytes;
    const auto asked = most.find(process);
    const std::int64_t sum = anonymous_bytes(process);
    return asked == most.end() ? sum : std::min(sum, asked->second);
  };
  measure(claims, share_or_sum, false);
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
