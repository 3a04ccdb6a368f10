/// Memory of objects that have gone, kept for the next: writing to pages that are there takes a fifth of the
/// time of fresh ones.
#pragma once

#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/objects/segment.hpp"

namespace troupe::objects {

/// Not thread-safe. Of one process, and so of one job: what lies in it still is seen by nobody else.
class SegmentPool {
 public:
  /// What does not fit `limit` any more, the oldest first, is given back in `out`.
  void keep(SegmentPtr segment, std::uint64_t limit, Instant now, std::vector<SegmentPtr>& out);
  /// One in which `bytes` fit and that is at most twice as large; of these the smallest, the oldest first.
  /// Null: there is none.
  SegmentPtr take(std::uint64_t bytes);
  /// Takes out what has lain here since `then`.
  std::vector<SegmentPtr> since(Instant then);
  std::uint64_t bytes() const { return bytes_; }
  std::size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    SegmentPtr segment;
    Instant since;
  };
  std::vector<Kept> kept_;  ///< the oldest first
  std::uint64_t bytes_ = 0;
};

}  // namespace troupe::objects
