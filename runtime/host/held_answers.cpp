#include "runtime/host/held_answers.hpp"

#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe {

void HeldAnswers::add(Give give) {
  if (changes_ == held_) return give(nullptr);
  waiting_.push_back({changes_, std::move(give)});
}

bool HeldAnswers::begin_save() {
  if (begun_ != held_ || changes_ == held_) return false;
  begun_ = changes_;
  return true;
}

std::vector<HeldAnswers::Give> HeldAnswers::end_save() {
  TROUPE_ASSERT(begun_ != held_, "a save that ends has begun");
  held_ = begun_;
  std::vector<Give> leave;
  for (; !waiting_.empty() && waiting_.front().changes <= held_; waiting_.pop_front())
    leave.push_back(std::move(waiting_.front().give));
  return leave;
}

}  // namespace troupe
