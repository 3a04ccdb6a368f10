/// What trials cost beside their training.
#pragma once

#include <string>

#include "scheduler/init/init.hpp"

namespace troupe::bench {

/// From the start of a trial in the workers of the one before to its first step's commit, less a step.
double trial_start_ms(const DriverSession& session, int times);

/// From the decision that a trial copies another one's state to its first step's commit, less a step. The
/// state is of an MLP under Adam: 100 MB.
double clone_ms(const DriverSession& session, int times);

}  // namespace troupe::bench
