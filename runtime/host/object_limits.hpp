/// Bounds of how a process reads others' objects; see runtime/objects/copy_plan.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe {

struct ObjectLimits {
  std::uint64_t part_bytes = std::uint64_t{1} << 20;  ///< of an object, in one message
  std::size_t parts_under_way = 4;  ///< of one object: half of what may be under way between two processes
  int broken_links = 240;           ///< who cannot be reached is asked again so often
  int gone_memory = 20;  ///< so often may an object be gone from where it is said to be, until it is mapped
};

}  // namespace troupe
