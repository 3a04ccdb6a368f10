#include "actors/train/batches/slot_pool.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::train {
namespace {

constexpr int kBatchesALeaf = 3;
constexpr int kLeastSlots = 4;

std::uint32_t region_of(SlotId slot) {
  return static_cast<std::uint32_t>(slot >> 32);
}
std::size_t index_of(SlotId slot) {
  return static_cast<std::size_t>(slot & 0xffffffffU);
}

}  // namespace

SlotPlan plan_slots(int leaves, std::size_t batch_bytes, std::size_t budget_bytes) {
  TROUPE_ASSERT(leaves >= 1 && batch_bytes >= 1, "a trainer hosts a leaf, and a batch has bytes");
  const auto wanted = static_cast<std::size_t>(2 * kBatchesALeaf) * static_cast<std::size_t>(leaves);
  const std::size_t fit = std::max<std::size_t>(budget_bytes / batch_bytes, kLeastSlots);
  return {batch_bytes, static_cast<int>(std::min(wanted, fit))};
}

SlotPool::SlotPool(RegionSource source, std::string name)
    : source_(std::move(source)), name_(std::move(name)) {}

SlotPool::~SlotPool() {
  for (const auto& [number, region] : regions_) source_.drop(name_of(number));
}

SlotPool::Region SlotPool::make(const SlotPlan& plan, std::uint32_t number) const {
  Region made{
      number, plan, source_.open(name_of(number), plan.bytes * static_cast<std::size_t>(plan.slots)), {}};
  if (source_.pin) made.pinned = source_.pin({made.memory.data(), made.memory.size()});
  return made;
}

void SlotPool::add(Region region) {
  TROUPE_ASSERT(region.number == next_number(), "regions are added in the order of their numbers");
  const std::uint32_t before = newest_;
  newest_ = region.number;
  free_.clear();
  for (int i = region.plan.slots; i > 0; --i)
    free_.push_back(SlotId{newest_} << 32 | static_cast<std::uint32_t>(i - 1));
  regions_.try_emplace(newest_, Held{std::move(region)});
  drop_if_idle(before);
}

SlotPlan SlotPool::plan() const {
  const auto at = regions_.find(newest_);
  return at == regions_.end() ? SlotPlan{} : at->second.of.plan;
}

std::optional<SlotId> SlotPool::take() {
  if (free_.empty()) return std::nullopt;
  const SlotId slot = free_.back();
  free_.pop_back();
  ++regions_.at(newest_).taken;
  return slot;
}

void SlotPool::give_back(SlotId slot) {
  const std::uint32_t number = region_of(slot);
  Held& region = regions_.at(number);
  TROUPE_ASSERT(region.taken > 0, "a slot is given back once");
  --region.taken;
  if (number == newest_) free_.push_back(slot);
  drop_if_idle(number);
}

void SlotPool::drop_if_idle(std::uint32_t number) {
  const auto at = regions_.find(number);
  if (number == newest_ || at == regions_.end() || at->second.taken > 0) return;
  source_.drop(name_of(number));
  regions_.erase(at);
}

const SlotPool::Held& SlotPool::held(SlotId slot) const {
  return regions_.at(region_of(slot));
}

std::span<std::byte> SlotPool::memory(SlotId slot) const {
  const Held& region = held(slot);
  return {region.of.memory.data() + index_of(slot) * region.of.plan.bytes, region.of.plan.bytes};
}

SlotPool::Place SlotPool::place(SlotId slot) const {
  const Held& region = held(slot);
  return {name_of(region_of(slot)), region.of.memory.size(), index_of(slot) * region.of.plan.bytes,
          region.of.plan.bytes};
}

std::vector<std::string> SlotPool::regions() const {
  std::vector<std::string> names;
  for (const auto& [number, region] : regions_) names.push_back(name_of(number));
  return names;
}

}  // namespace troupe::train
