/// Ranks of a group of GPUs by name, as threads over the double of NCCL (nccl_double.hpp), whose device
/// memory is the host's, so that LibTorch computes there on the CPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/actors/ddp/on_host.hpp"
#include "tests/actors/ddp/support.hpp"
#include "tests/collectives/nccl_double.hpp"

namespace troupe::train::testing {

/// Runs `body` on a thread a rank with init_process_group's group: "native", or "nccl" over the library, as
/// on_host makes it. What each returned, or "threw: " and the message.
std::vector<std::string> run_by_name(const std::string& backend, int ranks,
                                     collectives::testing::NcclDouble& library, const DdpBody& body);
/// The same, with a library of its own, of which it checks that nobody misused it.
std::vector<std::string> run_by_name(const std::string& backend, int ranks, const DdpBody& body);

/// LibTorch's generator is the process's: what `make` draws with the seed is the same in every thread.
Pair seeded_pair(int width);

}  // namespace troupe::train::testing
