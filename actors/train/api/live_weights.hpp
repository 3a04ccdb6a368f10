/// The weights of a run that trains on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/client/actor_handle.hpp"

namespace troupe::train {

class TrainDriver;

/// As they were after a committed step.
struct RunWeights {
  std::int64_t step = 0;  ///< steps in them
  std::string job;        ///< the run's struct: "Digits{\"mnist\", 0.02}"
  /// Parameters and buffers as a safetensors file; of a job with ema() the averages, too ("user/ema/...").
  std::shared_ptr<const wire::Bytes> file;
};

/// Takes them from a trainer of that driver's. Throws Unavailable where the job is over, Timeout, and what
/// the trainer says.
RunWeights copy_live_weights(const ActorHandle<TrainDriver>& driver, ProcessGate& process, std::string job,
                             Duration timeout);

}  // namespace troupe::train
