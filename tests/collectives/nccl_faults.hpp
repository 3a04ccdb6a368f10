/// How a rank's GPU fails in the middle of a job, over the double of NCCL.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "collectives/process_group.hpp"
#include "tests/collectives/nccl_double.hpp"

namespace troupe::collectives::testing {

/// From now on rank 1, which calls this, fails as `how` says. "error": NCCL reports one, though its kernel
/// looks done; "call": a call of NCCL returns one; "hang": its kernel hangs until `group` is aborted, as a
/// node does when a process is gone: by the thread, which is to be joined. Anything else: not at all.
inline std::jthread fail_rank_1(NcclDouble& library, const std::string& how,
                                std::shared_ptr<ProcessGroup> group) {
  if (how == "error") library.async_error(1, 6);  // ncclRemoteError
  if (how == "call") library.fail_call(1, "ncclGroupEnd", 2);
  if (how != "hang") return {};
  library.hang(1);
  return std::jthread([group = std::move(group)] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    group->abort("the process of rank 1 is gone");
  });
}

}  // namespace troupe::collectives::testing
