#include "runtime/wire/bytes.hpp"

#include <limits>
#include <string>

#include "runtime/core/assert.hpp"

namespace troupe::wire {

void Writer::append_count(std::size_t count) {
  if (count > std::numeric_limits<std::uint32_t>::max())
    refuse("it holds more than 4294967295 elements in one container");
  const auto number = static_cast<std::uint32_t>(count);
  append(&number, sizeof number);
}

void Writer::check_bound(std::size_t more) const {
  const std::size_t so_far = bytes_.size() + staged_;
  if (so_far <= bound_.bytes && more <= bound_.bytes - so_far) return;
  throw LimitExceeded({ErrorCode::kLimit, "cannot send " + std::string(bound_.what) + " " + std::string(of_),
                       "its " + std::to_string(so_far + more) + " bytes or more are above the limit of " +
                           std::to_string(bound_.bytes),
                       std::string(bound_.todo)});
}

void Writer::spill(const void* data, std::size_t size) {
  check_bound(size);
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
  if (!kept_.empty()) {
    throw BadConfig("cannot send a " + std::string(type) + " that holds an ObjectRef",
                    "an ObjectRef travels in the arguments of calls, tasks and constructors and in their "
                    "answers, not in objects",
                    "put or compute the value itself, or submit the task, whose answer may hold it");
  }
  check_bound(0);
  if (bytes_.empty()) return Bytes(stage_.data(), stage_.data() + staged_);
  bytes_.insert(bytes_.end(), stage_.data(), stage_.data() + staged_);
  return std::move(bytes_);
}

ErrorInfo Reader::error(std::string_view type) const {
  TROUPE_ASSERT(why_ != nullptr, "a reader that failed says why");
  return {
      ErrorCode::kBadInput, "cannot decode a " + std::string(type),
      std::string(why_) + ", at byte " + std::to_string(failed_at_) + " of " + std::to_string(bytes_.size()),
      "the sender must send this very type"};
}

}  // namespace troupe::wire
