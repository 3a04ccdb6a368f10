/// Forked ranks of a native group, for tests of DistributedDataParallel.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::train::testing {

using DdpBody = std::function<std::string(std::shared_ptr<collectives::ProcessGroup> group)>;

/// Runs `body` in a process a rank; what each returned, or "threw: " and the message. Processes, as in
/// production: LibTorch has one generator and one autograd engine a process.
std::vector<std::string> fork_ddp(int ranks, const DdpBody& body, std::size_t data_bytes = 8 << 20);

}  // namespace troupe::train::testing
