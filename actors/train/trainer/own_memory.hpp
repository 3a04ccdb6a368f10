/// The memory of groups of one rank.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>

#include "runtime/core/fd.hpp"

namespace troupe::train {

/// One region of the node's, kept from group to group: no other process has it, and to take it from the
/// kernel anew, page by page, takes longer than to copy a clone's state. Thread-safe.
class OwnMemory {
 public:
  /// Opens a region, all zeros, that is dropped when its last holder goes.
  using Open = std::function<std::shared_ptr<SharedMemory>(std::size_t bytes)>;
  /// `bytes` or more, of which the first `zeroed` are zeros. The region of before, where nobody holds it any
  /// more and it is of about that size; else what `open` gives. Throws what that throws.
  std::shared_ptr<SharedMemory> take(std::size_t bytes, std::size_t zeroed, const Open& open);
  /// What is kept goes, now or when its last holder does.
  void drop();

 private:
  std::mutex mutex_;  ///< guards what follows
  std::shared_ptr<SharedMemory> kept_;
};

}  // namespace troupe::train
