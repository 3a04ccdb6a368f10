/// The shared memory of a generation, for copies between it and a GPU.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "runtime/core/fd.hpp"

namespace troupe::train {

/// Pins memory until what it returns goes (TrainEngine::pin).
using Pin = std::function<std::shared_ptr<const void>(std::span<std::byte>)>;

/// `region`, pinned as a whole: what a rank copies to and from is at any place in it, and CUDA registers
/// no page twice. When the last holder goes it is unpinned, unmapped, and then dropped.
std::shared_ptr<SharedMemory> pin_region(SharedMemory region, const Pin& pin, std::function<void()> drop);

}  // namespace troupe::train
