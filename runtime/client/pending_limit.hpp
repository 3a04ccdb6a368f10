/// A bound on the calls of one handle that are under way: an error instead of waiting (Ray's max_pending_calls).
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/host/call_state.hpp"

namespace troupe {

/// Thread-safe.
class PendingLimit {
 public:
  /// At most `most` (>= 1) calls at a time.
  explicit PendingLimit(std::size_t most);
  /// Throws LimitExceeded if as many calls have no answer yet.
  void check();
  /// One more is under way.
  void add(const std::shared_ptr<CallState>& call);

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<CallState>> calls_;  // under mutex_; answered ones go when there is no room
};

}  // namespace troupe
