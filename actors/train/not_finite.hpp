#pragma once

#include <cstdint>

namespace troupe::train {

/// What becomes of a step whose loss is no finite number on some leaf.
enum class NotFinite : std::uint8_t {
  kGoOn,  ///< it is applied as any other
  kSkip,  ///< it is left out: parameters, buffers and what optimizers keep stay; schedules go on
  kStop,  ///< the same, and the job ends behind it, with a checkpoint where those are kept
};

}  // namespace troupe::train
