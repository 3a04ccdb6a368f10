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
  int depth = 0, deepest = 0;
  for (std::uint8_t merges : program) {
    deepest = std::max(deepest, ++depth);
    depth -= merges;
  }
  TROUPE_ASSERT(depth == 1 && deepest <= kMaxDepth, "the fold leaves one value on a stack it fits");
  return program;
}

void fold_on_host(const TreeFold& fold) {
  with_fold(fold.dtype, fold.op, [&]<class Element, class Op>(Element, Op) {
    for (std::size_t i = 0; i < fold.count; ++i) fold_pack<Element, Op, 1>(fold, i);
  });
}

}  // namespace troupe::collectives::nccl
