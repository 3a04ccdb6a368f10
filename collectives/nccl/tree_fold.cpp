#include "collectives/nccl/tree_fold.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::collectives::nccl {

std::vector<std::uint8_t> fold_program(const std::vector<LeafInterval>& nodes, int leaves) {
  std::vector<std::uint8_t> program(nodes.size(), 0);
  // last[i]: the rightmost partial in what slot i holds so far. A step runs once that partial is there.
  std::vector<int> last(nodes.size());
  for (std::size_t i = 0; i < last.size(); ++i) last[i] = static_cast<int>(i);
  for (const FoldStep& step : fold_plan(nodes, leaves)) {
    last[static_cast<std::size_t>(step.into)] = last[static_cast<std::size_t>(step.from)];
    ++program[static_cast<std::size_t>(last[static_cast<std::size_t>(step.from)])];
  }
  TROUPE_ASSERT(fold_depth(program) <= kMaxDepth, "a tree is less deep than the stack");
  return program;
}

int fold_depth(const std::vector<std::uint8_t>& program) {
  int waiting = -1, deepest = 0;
  for (const std::uint8_t merges : program) {
    deepest = std::max(deepest, ++waiting);
    waiting -= merges & ~kSummedBit;
  }
  TROUPE_ASSERT(waiting == 0, "a fold leaves one value");
  return deepest;
}

}  // namespace troupe::collectives::nccl
