/// How gradients are grouped for reduction. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/types.hpp"

namespace troupe::train {

struct BucketOptions {
  std::size_t cap_bytes = std::size_t{25} << 20;  ///< a bucket closes when it reaches this
  std::size_t first_cap_bytes = std::size_t{1}
                                << 20;  ///< the first one sooner, so that reduction starts early
};

/// A parameter to be reduced.
struct BucketItem {
  std::size_t elements = 0;
  collectives::DType dtype = collectives::DType::kFloat32;
};

/// Parameters that are reduced together, at 64-byte boundaries of one array.
struct Bucket {
  struct Member {
    std::size_t item = 0;    ///< index of the parameter, in registration order
    std::size_t offset = 0;  ///< its first element in the bucket
  };
  collectives::DType dtype = collectives::DType::kFloat32;
  std::vector<Member> members;
  std::size_t count = 0;  ///< elements, padding included
};

/// PyTorch DDP's rule: in reverse registration order (about the order in which gradients appear), one open
/// bucket an element type; a parameter is added, and a bucket that has then reached its cap is closed. The
/// order of the result is the order of reduction. Source: compute_bucket_assignment_by_size,
/// torch/csrc/distributed.
std::vector<Bucket> make_buckets(const std::vector<BucketItem>& items, const BucketOptions& options = {});

}  // namespace troupe::train
