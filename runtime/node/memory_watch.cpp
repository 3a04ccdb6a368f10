#include "runtime/node/memory_watch.hpp"

#include <algorithm>

#include "runtime/wire/resources.hpp"

namespace troupe::node {
namespace {

using cluster::format_bytes;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kLeastPart = 20;  // of the machine's memory, that is to be left

struct Figures {
  std::string first, second;
};
/// With as many digits as it takes for them to differ.
Figures differing(std::int64_t first, std::int64_t second) {
  Figures texts{format_bytes(first), format_bytes(second)};
  if (first != second && texts.first == texts.second)
    texts = {std::to_string(first) + " bytes", std::to_string(second) + " bytes"};
  return texts;
}

bool is_over(const MemoryUse& process) {
  return process.asked > 0 && process.has > process.asked;
}

/// Why the node is short of memory; empty: it is not. Where the kernel does not tell shares, pages that
/// processes share after a fork were counted for each: all together have no more than the machine has in use.
std::string shortage(const NodeMemory& node, std::int64_t together) {
  if (node.usable > 0)
    together = std::min(together, std::max<std::int64_t>(0, node.usable - node.available) + node.swapped);
  if (node.offered > 0 && together > node.offered) {
    const auto [have, offered] = differing(together, node.offered);
    return "its processes have " + have + " of the " + offered + " that it offers";
  }
  if (node.usable > 0 && node.available < node.usable / kLeastPart)
    return "its machine has " + format_bytes(node.available) + " of " + format_bytes(node.usable) + " left";
  return "";
}

}  // namespace

bool any_is_over(const std::vector<MemoryUse>& processes) {
  return std::any_of(processes.begin(), processes.end(), is_over);
}

std::optional<MemoryEnd> process_to_end(const NodeMemory& node, const std::vector<MemoryUse>& processes) {
  std::int64_t together = 0;
  std::optional<std::size_t> worst;
  const auto above = [&](std::size_t i) { return processes[i].has - processes[i].asked; };
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (processes[i].is_ending) return std::nullopt;
    together += processes[i].has;
    if (is_over(processes[i]) && (!worst || above(i) > above(*worst))) worst = i;
  }
  const std::string why = shortage(node, together);
  if (!worst || why.empty()) return std::nullopt;
  const MemoryUse& process = processes[*worst];
  const auto [has, asked] = differing(process.has, process.asked);
  return MemoryEnd{*worst, process.name + " had " + has + " of memory and had asked for " + asked +
                               ", and its node is short of memory: " + why};
}

std::int64_t memory_to_offer(std::int64_t asked, std::optional<std::uint64_t> usable, int nodes) {
  if (asked >= 0) return std::min(asked, cluster::kMaxMemoryBytes);
  const auto most = static_cast<std::uint64_t>(cluster::kMaxMemoryBytes);
  const auto bytes = static_cast<std::int64_t>(std::min(usable.value_or(0), most));
  return bytes / 10 * 7 / std::max(1, nodes) / kMiB * kMiB;
}

}  // namespace troupe::node
