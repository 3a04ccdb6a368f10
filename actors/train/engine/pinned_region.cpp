#include "actors/train/engine/pinned_region.hpp"

namespace troupe::train {
namespace {

struct PinnedRegion {
  ~PinnedRegion() {
    pinned.reset();
    memory = {};
    drop();
  }
  SharedMemory memory;
  std::function<void()> drop;
  std::shared_ptr<const void> pinned{};
};

}  // namespace

std::shared_ptr<SharedMemory> pin_region(SharedMemory region, const Pin& pin, std::function<void()> drop) {
  const std::shared_ptr<PinnedRegion> held(new PinnedRegion{std::move(region), std::move(drop)});
  held->pinned = pin({held->memory.data(), held->memory.size()});
  return {held, &held->memory};
}

}  // namespace troupe::train
