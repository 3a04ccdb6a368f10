/// The shared memory of a node by name: who holds which region, and the abort word that is set when a holder
/// dies.
#pragma once

#include <map>
#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/core/ids.hpp"

namespace troupe {

/// Not thread-safe: the node's loop owns it. The memory itself lives as long as anybody maps it: a region
/// that is dropped here is never handed out again, so nothing that a late writer does can reach its
/// successor.
class Regions {
 public:
  /// The region's descriptor; makes it first if need be. `label` names `process` when it dies.
  Result<int> open(const std::string& key, std::size_t bytes, bool abortable, ProcessId process,
                   const std::string& label);
  void drop(const std::string& key) { regions_.erase(key); }
  /// Sets the abort word of every abortable region that `process` holds, before anybody is told of its death.
  /// Regions that nobody holds any more are dropped.
  void process_died(ProcessId process, const std::string& reason);
  std::size_t size() const { return regions_.size(); }

 private:
  struct Region {
    SharedMemory memory;
    bool abortable = false;
    std::map<ProcessId, std::string> holders;
  };
  std::map<std::string, Region> regions_;
};

}  // namespace troupe
