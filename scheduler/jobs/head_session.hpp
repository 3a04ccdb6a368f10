/// Many questions to the head, one after the other, over a connection of one's own: for clients of submitted
/// jobs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/link/transport.hpp"
#include "scheduler/init/cluster_folder.hpp"

namespace troupe {

/// Not thread-safe. A head that dies and comes back is asked again: every question must be one that may be
/// asked twice.
class HeadSession {
 public:
  /// At the address that the folder remembers, unless one is given.
  HeadSession(ClusterFolder folder, std::optional<Endpoint> address);
  ~HeadSession();
  HeadSession(const HeadSession&) = delete;
  HeadSession& operator=(const HeadSession&) = delete;

  /// The encoded answer. Errors: what the head says, kRefused (it does not know our folder), kUnavailable and
  /// kTimeout (no head answered within `timeout`).
  template <class Ask>
  Result<wire::Bytes> ask(Ask ask, Duration timeout) {
    ask.request = ++last_request_;
    return ask_again(std::move(ask), last_request_, timeout);
  }

 private:
  struct Connection;
  Result<wire::Bytes> ask_again(const wire::Control& message, std::uint64_t request, Duration timeout);
  Result<void> connect(Duration timeout);

  const ClusterFolder folder_;
  const std::optional<Endpoint> address_;
  MonotonicClock clock_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Connection> connection_;
  std::uint64_t last_request_ = 0;
};

}  // namespace troupe
