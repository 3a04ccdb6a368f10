/// Where the gradients of buckets lie: side by side in memory of a group, or of this process where the group
/// has no room. Both reducers of this room stand on it.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "actors/ddp/buckets.hpp"
#include "actors/ddp/reduced_parameter.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// Tensors over the memory, which they keep.
struct BucketViews {
  std::vector<torch::Tensor> flat;    ///< by bucket, zeroed: padding is summed, too
  std::vector<torch::Tensor> views;   ///< by parameter, in its bucket, laid out as the parameter
  std::byte* behind_first = nullptr;  ///< the room behind the first bucket
};

class BucketMemory {
 public:
  /// Collective. Room for `buckets`, in whichever order and however they are made of the same parameters, and
  /// for `behind_first` bytes behind the first one.
  BucketMemory(const std::shared_ptr<collectives::ProcessGroup>& group, const std::vector<Bucket>& buckets,
               std::size_t behind_first);

  /// Views for `buckets`, with `behind_first` bytes behind the first one; sets where each parameter is.
  BucketViews lay_out(const std::vector<Bucket>& buckets, std::vector<ReducedParameter>& parameters,
                      std::size_t behind_first) const;

 private:
  std::shared_ptr<void> memory_;  ///< the group's, or a tensor's
  std::byte* base_ = nullptr;     ///< its first byte
};

}  // namespace troupe::train
