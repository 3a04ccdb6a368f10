#include "actors/train/engine/fold_schedule.hpp"

#include <algorithm>

namespace troupe::train {
namespace {

using collectives::LeafInterval;

/// Plans the leaves under `node` so that their sum ends in `array`. `scratch` is the first free scratch
/// array.
void plan(LeafInterval node, int array, int scratch, FoldSchedule& out) {
  if (node.size() == 1) {
    out.leaves.push_back({array, false, {}});
    return;
  }
  const int middle = node.begin + collectives::split_point(node.size());
  plan({node.begin, middle}, array, scratch, out);
  if (node.end - middle == 1) {
    out.leaves.push_back({array, true, {}});
    return;
  }
  out.scratch = std::max(out.scratch, scratch + 1 - out.partials);
  plan({middle, node.end}, scratch, scratch + 1, out);
  out.leaves.back().after.push_back({array, scratch});
}

}  // namespace

FoldSchedule make_fold_schedule(LeafInterval interval, int leaves) {
  const std::vector<LeafInterval> nodes = collectives::canonical_nodes(interval, leaves);
  FoldSchedule schedule;
  schedule.partials = static_cast<int>(nodes.size());
  for (int i = 0; i < schedule.partials; ++i) plan(nodes[i], i, schedule.partials, schedule);
  return schedule;
}

}  // namespace troupe::train
