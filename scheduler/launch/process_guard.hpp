/// Ends process groups when the process that watches over them is killed.
#pragma once

#include <sys/types.h>

#include <string>

#include "runtime/core/fd.hpp"

namespace troupe::launch {

/// A small process beside this one. A rank's own process is killed by the kernel when we are
/// (PR_SET_PDEATHSIG); what it has forked is not. When this process ends in whatever way, the guard kills the
/// groups that it still knows and removes the folder.
class ProcessGuard {
 public:
  /// `folder`: removed with all that is in it when the guard ends; empty: none.
  static Result<ProcessGuard> start(const std::string& folder);
  ProcessGuard() = default;
  ProcessGuard(ProcessGuard&&) = default;
  ProcessGuard& operator=(ProcessGuard&&) = default;
  /// Waits for the guard's end, which comes at once.
  ~ProcessGuard();

  void add(pid_t group);
  /// REQUIRES: the group's leader is not reaped yet.
  void remove(pid_t group);

 private:
  void tell(pid_t group, bool is_there);
  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace troupe::launch
