#include <cstring>
#include <vector>

#include "bench/all_reduce/contenders.hpp"
#include "collectives/native/native_group.hpp"

namespace bench {

using namespace troupe;
using namespace troupe::collectives;

std::size_t region_bytes(int ranks, std::size_t bytes) {
  return native_region_bytes(ranks, bytes + 64);
}

void perform_ours(Stage& stage, int rank, bool zero_copy, const std::shared_ptr<SharedMemory>& region) {
  const auto group = make_native_group({.rank = rank,
                                        .size = stage.ranks,
                                        .generation = {1, 1},
                                        .region = region,
                                        .data_bytes = stage.bytes + 64});
  const std::size_t count = stage.bytes / sizeof(float);
  if (zero_copy) {
    const TreeBuffer tree = group->allocate_tree(count, DType::kFloat32);
    perform(
        stage, kOurs, rank, 1, true, [&](int) { return reinterpret_cast<float*>(tree.partials[0]); },
        [&](int) { group->all_reduce_tree(tree, ReduceOp::kSum)->wait(); });
    return;
  }
  std::vector<float> values(count);
  perform(
      stage, kOursPrivate, rank, 1, true, [&](int) { return values.data(); },
      [&](int) { group->all_reduce({.data = values.data(), .count = count}, ReduceOp::kSum)->wait(); });
}

void perform_copy(Stage& stage, int rank) {
  std::vector<float> from(stage.bytes / sizeof(float)), to(stage.bytes / sizeof(float));
  perform(
      stage, kCopy, rank, 1, false, [&](int) { return from.data(); },
      [&](int) { std::memcpy(to.data(), from.data(), stage.bytes); });
}

}  // namespace bench
