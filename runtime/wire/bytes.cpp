#include <limits>

#include "runtime/core/assert.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::wire {

void Writer::append_count(std::size_t count) {
  if (count > std::numeric_limits<std::uint32_t>::max()) refuse("it holds more than 4294967295 elements in one container");
  const auto number = static_cast<std::uint32_t>(count);
  append(&number, sizeof number);
}

void Writer::spill(const void* data, std::size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  bytes_.insert(bytes_.end(), stage_.data(), stage_.data() + staged_);
  staged_ = 0;
  if (size > stage_.size()) {
    bytes_.insert(bytes_.end(), from, from + size);
  } else {
    std::memcpy(stage_.data(), from, size);
    staged_ = size;
  }
}

Bytes Writer::take(std::string_view type) {
  if (refused_ != nullptr) {
    throw LimitExceeded({ErrorCode::kLimit, "cannot send a " + std::string(type), refused_,
                         "send it in parts, or give it a flatter shape"});
  }
  if (bytes_.empty()) return Bytes(stage_.data(), stage_.data() + staged_);
  bytes_.insert(bytes_.end(), stage_.data(), stage_.data() + staged_);
  return std::move(bytes_);
}

ErrorInfo Reader::error(std::string_view type) const {
  TROUPE_ASSERT(why_ != nullptr, "a reader that failed says why");
  return {ErrorCode::kBadInput, "cannot decode a " + std::string(type),
          std::string(why_) + ", at byte " + std::to_string(failed_at_) + " of " + std::to_string(bytes_.size()),
          "the sender must send this very type"};
}

}  // namespace troupe::wire
