#include "actors/train/batches/prefetcher.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::train {
namespace {

constexpr Duration kNextRound = std::chrono::milliseconds(50);

}  // namespace

Prefetcher::Prefetcher(int logical_ranks, int capacity, Duration retry_after, NodeId here)
    : logical_ranks_(logical_ranks), capacity_(capacity), retry_after_(retry_after), here_(here) {
  TROUPE_ASSERT(logical_ranks >= 1 && capacity >= 1, "a prefetcher has something to fetch and room for it");
}

void Prefetcher::set_capacity(int capacity) {
  TROUPE_ASSERT(capacity >= 1, "a prefetcher has room for a batch");
  capacity_ = capacity;
}

std::map<Prefetcher::Key, Prefetcher::Wanted>::iterator Prefetcher::drop(std::map<Key, Wanted>::iterator at,
                                                                         std::vector<SlotId>& freed) {
  if (at->second.slot) freed.push_back(*at->second.slot);
  return batches_.erase(at);
}

std::vector<SlotId> Prefetcher::restart(LeafInterval leaves, std::int64_t next_step, std::int64_t end_step) {
  leaves_ = leaves;
  next_step_ = next_step;
  next_leaf_ = leaves.begin;
  end_step_ = end_step;
  std::vector<SlotId> freed;
  for (auto it = batches_.begin(); it != batches_.end();) {
    const auto& [step, leaf] = it->first;
    // What was fetched far ahead must not take the room of what is needed first.
    const std::int64_t before = (step - next_step) * leaves.size() + (leaf - leaves.begin);
    const bool fits = next_step <= step && step < end_step && leaves.begin <= leaf && leaf < leaves.end &&
                      before < capacity_;
    it = fits ? std::next(it) : drop(it, freed);
  }
  return freed;
}

void Prefetcher::set_loaders(const std::vector<LoaderInfo>& loaders) {
  loaders_ = loaders;
  const auto far = std::stable_partition(loaders_.begin(), loaders_.end(),
                                         [&](const LoaderInfo& l) { return l.node == here_; });
  near_ = static_cast<std::size_t>(far - loaders_.begin());
  std::erase_if(batches_, [&](const auto& entry) {
    const Wanted& batch = entry.second;
    return !batch.slot && std::none_of(loaders.begin(), loaders.end(),
                                       [&](const LoaderInfo& l) { return l.actor == batch.loader; });
  });
}

std::vector<BatchRequest> Prefetcher::requests(Instant now) {
  std::vector<BatchRequest> wanted;
  if (loaders_.empty() || leaves_.size() == 0) return wanted;
  // The first `capacity_` batches from the next one on are the window.
  int seen = 0;
  int leaf = next_leaf_;
  for (std::int64_t step = next_step_; step < end_step_; ++step, leaf = leaves_.begin) {
    for (; leaf < leaves_.end; ++leaf) {
      if (seen++ == capacity_) return wanted;
      Wanted& batch = batches_[{step, leaf}];
      if (batch.slot || (batch.tries > 0 && now < batch.retry_at)) continue;
      const auto first =
          static_cast<std::size_t>(step * logical_ranks_ + leaf) % (near_ > 0 ? near_ : loaders_.size());
      const std::size_t which = (first + static_cast<std::size_t>(batch.tries)) % loaders_.size();
      batch = {loaders_[which].actor, batch.tries + 1, batch.errors, now, now + retry_after_, std::nullopt};
      wanted.push_back({step, leaf, batch.loader});
    }
  }
  return wanted;
}

bool Prefetcher::arrived(std::int64_t step, int leaf, SlotId slot) {
  const auto it = batches_.find({step, leaf});
  if (it == batches_.end() || it->second.slot) return false;
  it->second.slot = slot;
  return true;
}

int Prefetcher::failed(std::int64_t step, int leaf, bool error) {
  const auto it = batches_.find({step, leaf});
  if (it == batches_.end() || it->second.slot) return 0;
  Wanted& batch = it->second;
  // A link that is down refuses at once, as often as it is asked.
  const bool all_asked = !loaders_.empty() && static_cast<std::size_t>(batch.tries) % loaders_.size() == 0;
  batch.retry_at = all_asked ? batch.asked_at + kNextRound : Instant::min();
  return error ? ++batch.errors : batch.errors;
}

void Prefetcher::ask_again(std::int64_t step, int leaf) {
  const auto it = batches_.find({step, leaf});
  if (it != batches_.end()) it->second.retry_at = Instant::min();
}

std::optional<SlotId> Prefetcher::slot_of(std::int64_t step, int leaf) const {
  const auto it = batches_.find({step, leaf});
  return it == batches_.end() ? std::nullopt : it->second.slot;
}

bool Prefetcher::waits_for(std::int64_t step, int leaf) const {
  const auto it = batches_.find({step, leaf});
  return it != batches_.end() && !it->second.slot;
}

bool Prefetcher::ready(std::int64_t step) const {
  for (int leaf = leaves_.begin; leaf < leaves_.end; ++leaf) {
    if (!ready(step, leaf)) return false;
  }
  return leaves_.size() > 0;
}

std::optional<SlotId> Prefetcher::used(std::int64_t step, int leaf) {
  const auto it = batches_.find({step, leaf});
  if (keeps_used() || step != next_step_ || it == batches_.end()) return std::nullopt;
  TROUPE_ASSERT(it->second.slot && leaf == next_leaf_, "leaves are used in order, once they are here");
  next_leaf_ = leaf + 1;
  const auto slot = it->second.slot;
  batches_.erase(it);
  return slot;
}

std::vector<SlotId> Prefetcher::release(std::int64_t step) {
  std::vector<SlotId> freed;
  for (auto it = batches_.begin(); it != batches_.end() && it->first.first <= step;) it = drop(it, freed);
  if (step >= next_step_) {
    next_step_ = step + 1;
    next_leaf_ = leaves_.begin;
  }
  return freed;
}

}  // namespace troupe::train
