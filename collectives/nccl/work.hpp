/// Sends and receives of the NCCL backend, which are issued together.
#pragma once

#include <functional>
#include <memory>

#include "collectives/nccl/core.hpp"

namespace troupe::collectives::nccl {

/// Sends and receives of one rank, in their own order. NCCL moves a message when both sides have asked for
/// it, and what is issued one by one on a communicator waits one for the other. So messages are noted, and
/// issued as one group by the rank's next collective, or wait or poll of any Work; and those to higher and
/// those to lower ranks have a communicator each, so that ranks which send to each other never wait for each
/// other.
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> up, std::shared_ptr<Communicator> down);
  /// The Work of all messages that are issued with this one.
  std::shared_ptr<Work> add(const Op& op, bool on_host);
  /// Issues what was noted. What goes wrong ends its Work. Throws the group's failure.
  void flush();

 private:
  struct Channel {
    int index = kUp;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<PendingOp> noted;
  };
  void issue(Channel& channel, const std::shared_ptr<PendingOp>& pending);

  std::shared_ptr<Core> core_;
  Channel up_, down_;
};

/// Puts a pending on the communicator's stream: after what is on the streams of its buffers, by `enqueue()`,
/// and watched. What goes wrong fails the group and ends the pending. Throws the group's failure.
void launch(Core& core, Communicator& communicator, const std::shared_ptr<PendingOp>& pending,
            const std::function<void()>& enqueue);

}  // namespace troupe::collectives::nccl
