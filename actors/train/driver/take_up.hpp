/// Which of a folder's checkpoints a job takes up.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/train/driver/driver_types.hpp"

namespace troupe::train {

struct TakenUp {
  std::vector<CheckpointInfo> checkpoints;     ///< all of the job's, oldest first
  std::optional<checkpoint::JobIdentity> job;  ///< that of the newest
  std::string bad;                             ///< what is wrong with those that were passed over
};

/// Pure. `listed`: oldest first. Those of another job, or of a longer run of this one, are not what comes
/// before the newest. Throws BadConfig where the newest readable one is of another job than `job`.
TakenUp take_up(const std::vector<checkpoint::ListedCheckpoint>& listed, const checkpoint::JobIdentity& job);

}  // namespace troupe::train
