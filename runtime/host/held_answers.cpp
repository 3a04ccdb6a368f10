#include "runtime/host/held_answers.hpp"

#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe {

void HeldAnswers::changed() {
  const std::lock_guard lock(mutex_);
  ++changes_;
}

void HeldAnswers::add(ProcessAddress caller, std::size_t bytes, Give give) {
  {
    const std::lock_guard lock(mutex_);
    if (changes_ != held_) {
      bytes_[caller] += bytes;
      waiting_.push_back({changes_, caller, bytes, std::move(give)});
      return;
    }
  }
  give(nullptr);
}

std::size_t HeldAnswers::bytes_for(ProcessAddress caller) const {
  const std::lock_guard lock(mutex_);
  const auto at = bytes_.find(caller);
  return at == bytes_.end() ? 0 : at->second;
}

bool HeldAnswers::begin_save() {
  const std::lock_guard lock(mutex_);
  if (begun_ != held_ || changes_ == held_) return false;
  begun_ = prepared_ = changes_;
  return true;
}

bool HeldAnswers::wants_prepared() const {
  const std::lock_guard lock(mutex_);
  return begun_ != held_ && !waiting_.empty() && waiting_.back().changes > prepared_;
}

bool HeldAnswers::prepare(wire::Bytes state) {
  const std::lock_guard lock(mutex_);
  if (begun_ == held_) return false;
  prepared_ = changes_;
  next_ = std::move(state);
  return true;
}

HeldAnswers::Ended HeldAnswers::end_save() {
  const std::lock_guard lock(mutex_);
  TROUPE_ASSERT(begun_ != held_, "a save that ends has begun");
  held_ = begun_;
  begun_ = prepared_;
  Ended ended;
  ended.next = std::exchange(next_, std::nullopt);
  for (; !waiting_.empty() && waiting_.front().changes <= held_; waiting_.pop_front()) {
    Waiting& first = waiting_.front();
    const auto its = bytes_.find(first.caller);
    if ((its->second -= first.bytes) == 0) bytes_.erase(its);
    ended.leave.push_back(std::move(first.give));
  }
  return ended;
}

bool HeldAnswers::empty() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty();
}

void HeldAnswers::clear() {
  std::deque<Waiting> dropped;  // after the lock: their callers are told
  const std::lock_guard lock(mutex_);
  dropped.swap(waiting_);
  bytes_.clear();
}

}  // namespace troupe
