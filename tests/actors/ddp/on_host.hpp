/// A group over the double of NCCL whose memory LibTorch takes for the CPU's, as it is.
#pragma once

#include <memory>

#include "collectives/process_group.hpp"

namespace troupe::train::testing {

/// A group over the double that says its memory is the CPU's, and whose waits are the host's. What the group
/// of GPUs below it reduces, and what goes over host_group(), is as on GPUs.
std::shared_ptr<collectives::ProcessGroup> on_host(std::shared_ptr<collectives::ProcessGroup> gpus);
/// REQUIRES: on_host made it.
collectives::ProcessGroup& gpus_of(collectives::ProcessGroup& group);

}  // namespace troupe::train::testing
