#include "runtime/objects/segment_pool.hpp"

namespace troupe::objects {
namespace {

constexpr std::size_t kMostKept = 64;

}  // namespace

void SegmentPool::keep(SegmentPtr segment, std::uint64_t limit, Instant now, std::vector<SegmentPtr>& out) {
  bytes_ += segment->capacity();
  kept_.push_back({std::move(segment), now});
  while (bytes_ > limit || kept_.size() > kMostKept) {
    bytes_ -= kept_.front().segment->capacity();
    out.push_back(std::move(kept_.front().segment));
    kept_.erase(kept_.begin());
  }
}

SegmentPtr SegmentPool::take(std::uint64_t bytes) {
  auto best = kept_.end();
  for (auto at = kept_.begin(); at != kept_.end(); ++at) {
    const std::uint64_t capacity = at->segment->capacity();
    const bool fits = capacity >= bytes && capacity / 2 <= bytes;
    if (fits && (best == kept_.end() || capacity < best->segment->capacity())) best = at;
  }
  if (best == kept_.end()) return nullptr;
  SegmentPtr segment = std::move(best->segment);
  kept_.erase(best);
  bytes_ -= segment->capacity();
  return segment;
}

std::vector<SegmentPtr> SegmentPool::since(Instant then) {
  std::vector<SegmentPtr> idle;
  while (!kept_.empty() && kept_.front().since <= then) {
    bytes_ -= kept_.front().segment->capacity();
    idle.push_back(std::move(kept_.front().segment));
    kept_.erase(kept_.begin());
  }
  return idle;
}

}  // namespace troupe::objects
