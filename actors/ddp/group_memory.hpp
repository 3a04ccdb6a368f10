/// Memory of a process group for gradients. A group gives memory for as long as it lives, so what a wrapped
/// module leaves is kept here for the next one: wrapping again takes no more.
#pragma once

#include <cstddef>
#include <memory>

#include "collectives/process_group.hpp"

namespace troupe::train {

/// A run of a group's memory, 64-byte aligned, and the group behind it. Its end gives the run back to the
/// next take_group_memory().
class GroupMemory {
 public:
  virtual ~GroupMemory() = default;
  void* data() const { return data_; }

 protected:
  void* data_ = nullptr;
};

/// At least `bytes`, where the group's buffers are. Collective: all ranks call it with the same bytes, in the
/// same order. Ranks may give their memory back at different times: it is used again once every rank has
/// some. Null, on every rank, where the group has no room left or gives no memory; operations then copy.
/// Throws as the group's operations do.
std::shared_ptr<GroupMemory> take_group_memory(const std::shared_ptr<collectives::ProcessGroup>& group,
                                               std::size_t bytes);

}  // namespace troupe::train
