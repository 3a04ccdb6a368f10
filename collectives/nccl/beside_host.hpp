/// A group of GPUs beside a group of the same ranks for the host's memory, with one end for both.
#pragma once

#include <string>
#include <vector>

#include "collectives/nccl/nccl_group.hpp"

namespace troupe::collectives {

/// Collective over a group for the host's memory: what every rank says, by rank, on every rank. Throws as the
/// group's operations do.
std::vector<std::string> said_by_all(ProcessGroup& group, const std::string& mine);

namespace nccl {

/// Lets `options.host`, if there is one, carry the aborts of the group to be made, and its exchange if the
/// options have none. Throws BadConfig where it is of other ranks, or the options have a board besides.
void use_host(NcclGroupOptions& options);

}  // namespace nccl
}  // namespace troupe::collectives
