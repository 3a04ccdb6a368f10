/// What modules that are wrapped over one process group share, though they know nothing of each other.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "collectives/process_group.hpp"

namespace troupe::train {

/// The T of this group: made at the first call, the same one for as long as the group lives. Thread-safe.
template <class T>
std::shared_ptr<T> of_group(const std::shared_ptr<collectives::ProcessGroup>& group) {
  struct Known {
    std::weak_ptr<collectives::ProcessGroup> group;
    std::shared_ptr<T> value;
  };
  static std::mutex mutex;
  static std::map<const collectives::ProcessGroup*, Known> all;
  const std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.group.expired(); });
  Known& known = all[group.get()];
  if (!known.value) known = {group, std::make_shared<T>()};
  return known.value;
}

}  // namespace troupe::train
