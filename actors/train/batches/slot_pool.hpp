/// The shared memory of a trainer's batches: slots of equal size in regions, which grow in number and size.
///
/// A slot that is too small is not enlarged: a region with larger ones is added, and the old one goes once
/// nobody uses it. So a batch that lies in a slot, or that a loader still writes to one, stays where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/train/batches/prefetcher.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::train {

/// How many slots, and how large.
struct SlotPlan {
  std::size_t bytes = 0;  ///< a slot
  int slots = 0;
  /// Batches to hold: half of the slots, since one that was asked of a loader that went silent stays taken
  /// until its death is certain.
  int capacity() const { return slots / 2; }
};

/// Slots for a trainer that hosts `leaves`: three batches each, in use and to come, as far as `budget_bytes`
/// goes; four slots at least.
SlotPlan plan_slots(int leaves, std::size_t batch_bytes, std::size_t budget_bytes);

/// Opens and drops the named memory; a test has its own. `pin`: for copies to a GPU, until what it returns
/// goes; may be empty.
struct RegionSource {
  std::function<SharedMemory(const std::string& name, std::size_t bytes)> open;
  std::function<void(const std::string& name)> drop;
  std::function<std::shared_ptr<const void>(std::span<std::byte> memory)> pin;
};

/// Not thread-safe; add() blocks while memory is made.
class SlotPool {
 public:
  /// Regions are named `name` with a number.
  SlotPool(RegionSource source, std::string name);
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  /// Makes the memory of a plan, for add(). Takes no part in the pool's state, so it needs no lock.
  struct Region {
    std::uint32_t number = 0;
    SlotPlan plan;
    SharedMemory memory;
    std::shared_ptr<const void> pinned;  ///< goes before the memory does
  };
  Region make(const SlotPlan& plan, std::uint32_t number) const;
  /// From now on slots come from this region alone. Those of before go as they are given back.
  void add(Region region);
  std::uint32_t next_number() const { return newest_ + 1; }
  /// What slots come from: no slots before the first add().
  SlotPlan plan() const;

  std::optional<SlotId> take();
  void give_back(SlotId slot);
  std::span<std::byte> memory(SlotId slot) const;

  /// Where a loader finds a slot.
  struct Place {
    std::string region;
    std::uint64_t region_bytes = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  Place place(SlotId slot) const;
  /// The names of the regions that live: a loader lets go of the others.
  std::vector<std::string> regions() const;

 private:
  struct Held {
    Region of;
    int taken = 0;
  };
  std::string name_of(std::uint32_t number) const { return name_ + "/" + std::to_string(number); }
  const Held& held(SlotId slot) const;
  void drop_if_idle(std::uint32_t number);

  RegionSource source_;
  std::string name_;
  std::uint32_t newest_ = 0;
  std::map<std::uint32_t, Held> regions_;  ///< Invariant: all but the newest have taken slots.
  std::vector<SlotId> free_;               ///< of the newest region
};

}  // namespace troupe::train
