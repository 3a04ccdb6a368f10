/// The processes of an embedded cluster, for tests and chaos.
#pragma once

#include <sys/types.h>

#include <vector>

namespace troupe {

/// Thread-safe. Of their latest lives: what dies is started again.
class EmbeddedProcesses {
 public:
  virtual ~EmbeddedProcesses() = default;
  virtual pid_t head_pid() const = 0;
  /// In order.
  virtual std::vector<pid_t> node_pids() const = 0;
};

}  // namespace troupe
