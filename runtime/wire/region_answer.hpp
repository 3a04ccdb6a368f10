/// What a node says to a process that asks for shared memory (messages.hpp, RegionAsk).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/core/ids.hpp"
#include "runtime/wire/codec.hpp"

namespace troupe::wire {

/// Names of memory that is lent for objects start so. An owner's goes when it dies; a copy of another node's
/// object when the last process dies that has opened it.
inline constexpr std::string_view kObjectRegions = "object/";
inline constexpr std::string_view kCopyRegions = "copy/";

/// With the memory's descriptor, or, when the store is full, without. Then `why` says so, and `holders` are
/// the job's processes on the node that hold memory of objects, the one with the most of it first.
struct RegionAnswer {
  std::uint64_t store_bytes = 0;  ///< the bound of all regions of the node
  bool full = false;
  ErrorInfo why;
  std::vector<ProcessId> holders;
};

}  // namespace troupe::wire
