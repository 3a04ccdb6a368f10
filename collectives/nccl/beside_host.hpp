/// A group of GPUs beside a group of the same ranks for the host's memory, with one end for both.
#pragma once

#include "collectives/nccl/nccl_group.hpp"

namespace troupe::collectives::nccl {

/// Lets `options.host`, if there is one, carry the aborts of the group to be made, and its exchange if the
/// options have none. Throws BadConfig where it is of other ranks, or the options have a board besides.
void use_host(NcclGroupOptions& options);

}  // namespace troupe::collectives::nccl
