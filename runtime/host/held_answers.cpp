#include "runtime/host/held_answers.hpp"

#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe {

void HeldAnswers::changed() {
  const std::lock_guard lock(mutex_);
  ++changes_;
}

void HeldAnswers::add(Give give) {
  {
    const std::lock_guard lock(mutex_);
    if (changes_ != held_) {
      waiting_.push_back({changes_, std::move(give)});
      return;
    }
  }
  give(nullptr);
}

bool HeldAnswers::begin_save() {
  const std::lock_guard lock(mutex_);
  if (begun_ != held_ || changes_ == held_) return false;
  begun_ = changes_;
  return true;
}

std::vector<HeldAnswers::Give> HeldAnswers::end_save() {
  const std::lock_guard lock(mutex_);
  TROUPE_ASSERT(begun_ != held_, "a save that ends has begun");
  held_ = begun_;
  std::vector<Give> leave;
  for (; !waiting_.empty() && waiting_.front().changes <= held_; waiting_.pop_front())
    leave.push_back(std::move(waiting_.front().give));
  return leave;
}

bool HeldAnswers::empty() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty();
}

void HeldAnswers::clear() {
  std::deque<Waiting> dropped;  // after the lock: their callers are told
  const std::lock_guard lock(mutex_);
  dropped.swap(waiting_);
}

}  // namespace troupe
