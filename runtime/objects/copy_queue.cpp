#include "runtime/objects/copy_queue.hpp"

#include <string>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::objects {

bool CopyQueue::add(Copy copy) {
  copy.of_call->known += copy.bytes;
  copies_.push_back(std::move(copy));
  return copies_.size() == 1;
}

std::optional<CopyQueue::Copy> CopyQueue::first() const {
  if (copies_.empty()) return std::nullopt;
  return copies_.front();
}

bool CopyQueue::end_first() {
  TROUPE_ASSERT(!copies_.empty(), "the first one ends once");
  copies_.pop_front();
  return !copies_.empty();
}

std::optional<ErrorInfo> CopyQueue::full(std::uint64_t store_bytes, Instant now) const {
  TROUPE_ASSERT(!copies_.empty(), "what is asked for waits");
  const Copy& copy = copies_.front();
  const std::string what = "no room for an argument of " + std::to_string(copy.bytes) + " bytes";
  const std::uint64_t together = copy.of_call->known;
  if (together > store_bytes)
    return ErrorInfo{ErrorCode::kLimit, what,
                     "those of its call take " + std::to_string(together) +
                         " bytes together, and the callee's node lends " + std::to_string(store_bytes),
                     "give less to one call, or set TROUPE_REGIONS_BYTES"};
  if (now < copy.of_call->waits_until()) return std::nullopt;
  return ErrorInfo{
      ErrorCode::kLimit, what,
      "its call has waited for a minute, and what is in use on the callee's node leaves none: it lends " +
          std::to_string(store_bytes) + " bytes",
      "have fewer calls wait at a time, or set TROUPE_REGIONS_BYTES"};
}

}  // namespace troupe::objects
