/// The memory behind a node's regions (region_names.hpp decides on them).
#pragma once

#include <map>

#include "runtime/core/fd.hpp"
#include "runtime/node/node_events.hpp"

namespace troupe::node {

/// Not thread-safe: the node's loop owns it. The memory lives as long as anybody maps it. The node makes it
/// sparse and touches the abort word alone: who asks for it pre-faults it.
class RegionMemory {
 public:
  /// Memory of another region is taken if nobody reads or writes it. Errors: kIo.
  Result<void> make(const MakeRegion& region);
  void drop(RegionId region) { regions_.erase(region); }
  void abort(const AbortRegions& regions);
  /// A descriptor to send. Errors: kIo (no descriptors left), kUnavailable (no such region).
  Result<UniqueFd> descriptor(RegionId region) const;

 private:
  std::map<RegionId, SharedMemory> regions_;
};

}  // namespace troupe::node
