/// How much of its stack a thread has used, for code that calls itself as deep as its user says.
#pragma once

#include <cstddef>

namespace troupe {

struct StackRoom {
  std::size_t all = 0;   ///< bytes; of the main thread as `ulimit -s` says
  std::size_t left = 0;  ///< below the caller
};
/// Of this thread. All zero: the system does not say.
StackRoom stack_room();

}  // namespace troupe
