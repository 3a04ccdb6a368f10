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
/// The same in the order given, which names every item once: that in which gradients arrived.
std::vector<Bucket> make_buckets(const std::vector<BucketItem>& items, const std::vector<std::size_t>& order,
                                 const BucketOptions& options);

/// When which bucket is launched: in the order of buckets, each once all its members are in.
class LaunchOrder {
 public:
  void begin(const std::vector<Bucket>& buckets);
  /// A member of `bucket` is in: calls launch(index) for every bucket whose turn has come, if `may_launch`.
  template <class Launch>
  void done(std::size_t bucket, bool may_launch, Launch&& launch) {
    --pending_[bucket];
    while (may_launch && next_ < pending_.size() && pending_[next_] == 0) launch(next_++);
  }
  bool all_launched() const { return next_ == pending_.size(); }

 private:
  std::vector<std::size_t> pending_;  ///< members that are not in yet
  std::size_t next_ = 0;
};

}  // namespace troupe::train
