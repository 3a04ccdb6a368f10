#include "actors/train/driver/checkpoint_list.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::train {

const CheckpointInfo& CheckpointList::newest() const {
  TROUPE_ASSERT(!all_.empty(), "there is a checkpoint");
  return all_.back();
}

const CheckpointInfo& CheckpointList::oldest() const {
  TROUPE_ASSERT(!all_.empty(), "there is a checkpoint");
  return all_.front();
}

std::int64_t CheckpointList::saved_step() const {
  const auto newest =
      std::find_if(all_.rbegin(), all_.rend(), [](const auto& one) { return !one.in_memory; });
  return newest == all_.rend() ? kNoState : newest->step;
}

std::optional<std::string> CheckpointList::accept(const CheckpointInfo& written, bool is_best) {
  all_.push_back(written);
  written_.push_back(written.path);
  if (is_best) best_ = written.path;
  const auto keep = static_cast<std::size_t>(keep_);
  if (written_.size() < keep) return std::nullopt;
  written_.erase(written_.begin(), written_.end() - static_cast<std::ptrdiff_t>(keep));
  all_.erase(all_.begin(), std::find_if(all_.begin(), all_.end(), [&](const CheckpointInfo& one) {
               return one.path == written_.front();
             }));
  return written_.front();
}

void CheckpointList::set_best(std::int64_t step) {
  for (const CheckpointInfo& one : all_) {
    if (one.step == step && !one.in_memory) best_ = one.path;
  }
}

bool CheckpointList::drop_newest(const std::string& reasons) {
  const std::string path = newest().path;
  all_.pop_back();
  std::erase(written_, path);
  unusable_ += (unusable_.empty() ? "" : ", ") + path + " (" + reasons + ")";
  if (path != best_) return false;
  best_.clear();
  return true;
}

void CheckpointList::load(bool from_newest) {
  loading_ = from_newest ? std::optional(newest()) : std::nullopt;
}

std::optional<CheckpointInfo> CheckpointList::take_loaded() {
  return std::exchange(loading_, std::nullopt);
}

}  // namespace troupe::train
