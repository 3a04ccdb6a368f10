/// Which process is ended when a node is short of memory: one that has more than it asked for. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::node {

/// A process that the node started, in bytes of anonymous memory.
struct MemoryUse {
  std::string name;        ///< for people
  std::int64_t asked = 0;  ///< 0: for none; it is never ended
  std::int64_t has = 0;    ///< at the last look
  bool is_ending = false;  ///< it was killed or dies, and its memory may not be free yet
};
struct NodeMemory {
  std::int64_t offered = 0;    ///< what all of these together may have; 0: not bounded
  std::int64_t usable = 0;     ///< what the machine or its control group has; 0: unknown
  std::int64_t available = 0;  ///< of that
  std::int64_t swapped = 0;    ///< what the machine has swapped out
};
struct MemoryEnd {
  std::size_t which = 0;
  std::string reason;
};

/// Of those that have more than they asked for the one with most above it, if all together have more than the
/// node offers, or a twentieth of what it may use is not left. None: there is no need, or nobody broke its
/// word, or one is ending already. The same input gives the same answer.
std::optional<MemoryEnd> process_to_end(const NodeMemory& node, const std::vector<MemoryUse>& processes);

/// Whether any has more than it asked for: if not, nothing else need be looked at.
bool any_is_over(const std::vector<MemoryUse>& processes);

/// What a node offers of memory, in bytes: `asked`, or (below 0) 7/10 of what it may use, shared out among
/// the nodes of a machine, in whole MiB.
std::int64_t memory_to_offer(std::int64_t asked, std::optional<std::uint64_t> usable, int nodes);

}  // namespace troupe::node
