/// Sends and receives of the NCCL backend, which are issued together.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "collectives/nccl/core.hpp"

namespace troupe::collectives::nccl {

/// Sends and receives of one rank, in their own order. NCCL moves a message when both sides have asked for
/// it, and what is issued one by one on a communicator waits one for the other. So messages are noted, and
/// issued as one group by the rank's next collective, or wait or poll of any Work; and those to higher and
/// those to lower ranks have a communicator each, so that ranks which send to each other never wait for each
/// other. A pair connects at its first message, which takes until both have issued it: such a message, and
/// what comes behind it, is issued by a thread of its communicator, which the first one starts.
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> up, std::shared_ptr<Communicator> down);
  ~Messages();
  /// The Work of all messages that are issued with this one.
  std::shared_ptr<Work> add(const Op& op);
  /// Issues what was noted, or queues it behind what is being issued. What goes wrong ends its Work. Throws
  /// the group's failure.
  void flush();
  /// Forgets what was not issued, which has ended with the group, and ends the threads. Nothing can be issued
  /// after that. REQUIRES: nothing is in flight, or the communicators are stopped.
  void clear();

 private:
  struct Channel {
    bool knows(const PendingOp& pending) const;
    int index = kUp;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<PendingOp> noted;              ///< the user's thread has it alone
    std::deque<std::shared_ptr<PendingOp>> queue;  ///< to be issued; the first is, if `issuing`
    bool issuing = false;
    std::set<std::pair<OpKind, int>> connected;  ///< by whether it sends, and the peer
    std::thread thread;
  };
  void run(Channel& channel);
  void issue_first(Channel& channel, std::unique_lock<std::mutex>& hold);
  void issue(Channel& channel, PendingOp& pending);

  std::shared_ptr<Core> core_;
  std::mutex mutex_;  ///< for the channels but `noted`; not held in a call of NCCL
  std::condition_variable changed_;
  bool ending_ = false;
  Channel up_, down_;
};

/// Puts a pending on the communicator's stream: after what is on the streams of its buffers, by `enqueue()`,
/// and watched. What goes wrong fails the group and ends the pending. Throws the group's failure.
void launch(Core& core, Communicator& communicator, const std::shared_ptr<PendingOp>& pending,
            const std::function<void()>& enqueue);

}  // namespace troupe::collectives::nccl
