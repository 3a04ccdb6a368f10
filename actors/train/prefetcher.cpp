#include "actors/train/prefetcher.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::train {

Prefetcher::Prefetcher(int logical_ranks, int slots, Duration retry_after)
    : logical_ranks_(logical_ranks), capacity_(slots), retry_after_(retry_after) {
  TROUPE_ASSERT(logical_ranks >= 1 && slots >= 1, "a prefetcher has something to fetch and room for it");
}

std::vector<std::pair<std::int64_t, int>> Prefetcher::restart(LeafInterval leaves, std::int64_t next_step,
                                                              std::int64_t end_step) {
  leaves_ = leaves;
  next_step_ = next_step;
  end_step_ = end_step;
  std::vector<Key> dropped;
  for (auto it = slots_.begin(); it != slots_.end();) {
    const auto& [step, leaf] = it->first;
    const bool fits = next_step <= step && step < end_step && leaves.begin <= leaf && leaf < leaves.end;
    if (!fits && it->second.here) dropped.push_back(it->first);
    it = fits ? std::next(it) : slots_.erase(it);
  }
  // What was fetched far ahead must not take the room of what is needed first.
  while (!slots_.empty()) {
    const auto last = std::prev(slots_.end());
    const std::int64_t before =
        (last->first.first - next_step) * leaves.size() + (last->first.second - leaves.begin);
    if (before < capacity_) break;
    if (last->second.here) dropped.push_back(last->first);
    slots_.erase(last);
  }
  return dropped;
}

void Prefetcher::set_loaders(const std::vector<LoaderInfo>& loaders) {
  loaders_ = loaders;
  std::erase_if(slots_, [&](const auto& entry) {
    const Slot& slot = entry.second;
    return !slot.here && std::none_of(loaders.begin(), loaders.end(),
                                      [&](const LoaderInfo& l) { return l.actor == slot.loader; });
  });
}

std::vector<BatchRequest> Prefetcher::requests(Instant now) {
  std::vector<BatchRequest> wanted;
  if (loaders_.empty() || leaves_.size() == 0) return wanted;
  // The first `capacity_` slots from next_step_ on are the window.
  int seen = 0;
  for (std::int64_t step = next_step_; step < end_step_ && seen < capacity_; ++step) {
    for (int leaf = leaves_.begin; leaf < leaves_.end && seen < capacity_; ++leaf, ++seen) {
      Slot& slot = slots_[{step, leaf}];
      if (slot.here || (slot.tries > 0 && now < slot.retry_at)) continue;
      const auto which =
          static_cast<std::size_t>(step * logical_ranks_ + leaf + slot.tries) % loaders_.size();
      slot = {loaders_[which].actor, slot.tries + 1, now + retry_after_, false};
      wanted.push_back({step, leaf, slot.loader});
    }
  }
  return wanted;
}

bool Prefetcher::arrived(std::int64_t step, int leaf) {
  const auto it = slots_.find({step, leaf});
  if (it == slots_.end() || it->second.here) return false;
  it->second.here = true;
  return true;
}

void Prefetcher::failed(std::int64_t step, int leaf) {
  const auto it = slots_.find({step, leaf});
  if (it != slots_.end()) it->second.retry_at = Instant::min();
}

bool Prefetcher::ready(std::int64_t step, int leaf) const {
  const auto it = slots_.find({step, leaf});
  return it != slots_.end() && it->second.here;
}

bool Prefetcher::ready(std::int64_t step) const {
  for (int leaf = leaves_.begin; leaf < leaves_.end; ++leaf) {
    if (!ready(step, leaf)) return false;
  }
  return leaves_.size() > 0;
}

void Prefetcher::release(std::int64_t step) {
  std::erase_if(slots_, [&](const auto& entry) { return entry.first.first <= step; });
  next_step_ = std::max(next_step_, step + 1);
}

}  // namespace troupe::train
