/// Options of FullyShardedDataParallel, with PyTorch's names where it has them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace troupe::train {

enum class ShardingStrategy {
  kFullShard,    ///< ZeRO-3: parameters are whole while their unit is used
  kShardGradOp,  ///< ZeRO-2: parameters are whole from the forward's first use to the end of the backward
};

struct FsdpOptions {
  /// Names of modules, as named_modules() has them ("layers.0"), whose parameters are gathered and freed
  /// together. A parameter is of the innermost that it is in; what is in none is the root's.
  std::vector<std::string> units{};
  /// Beside those, every module with at least as many elements that are in no unit inside of it, innermost
  /// first (PyTorch's size_based_auto_wrap_policy). 0: none.
  std::size_t min_num_params = 0;
  ShardingStrategy sharding_strategy = ShardingStrategy::kFullShard;
  /// The next unit is gathered while one is used, in the order of the step before: one unit more is whole.
  bool prefetch = false;
};

}  // namespace troupe::train
