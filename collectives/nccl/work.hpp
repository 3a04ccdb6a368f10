/// Work of the NCCL backend, and sends and receives, which are issued together.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/nccl/core.hpp"
#include "collectives/process_group.hpp"

namespace troupe::collectives::nccl {

class Messages;

/// An operation, or its promise.
class NcclWork final : public Work {
 public:
  using Launch = std::function<std::shared_ptr<Flight>()>;
  /// `launch` gives the flight once `messages`, if not null, are flushed. `on_host`: wait() waits on the
  /// host.
  NcclWork(std::shared_ptr<Core> core, std::shared_ptr<Messages> messages, Launch launch, bool on_host);

  void wait() override;
  bool wait_for(Duration limit) override;
  bool is_completed() override;
  std::exception_ptr exception() override;
  std::optional<Duration> duration() override;

 private:
  /// The flight, issued; null when that failed, with the reason in thrown_.
  Flight* flight();
  void rethrow();

  std::shared_ptr<Core> core_;
  std::shared_ptr<Messages> messages_;
  Launch launch_;
  bool on_host_;
  std::shared_ptr<Flight> flight_;
  std::exception_ptr thrown_;
};

/// Sends and receives of one rank, in their own order. NCCL moves a message when both sides have asked for
/// it, and what is issued one by one on a communicator waits one for the other. So messages are noted, and
/// issued as one group by the rank's next collective, or wait or poll of any Work; and those to higher and
/// those to lower ranks have a communicator each, so that ranks which send to each other never wait for each
/// other.
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> up, std::shared_ptr<Communicator> down);
  std::shared_ptr<Work> add(const Buffer& buffer, int peer, bool sends, bool on_host);
  /// Issues what was noted. Throws the group's failure.
  void flush();

 private:
  struct Message {
    Buffer buffer;
    int peer = 0;
    bool sends = false;
  };
  struct Batch {
    std::vector<Message> messages;
    std::shared_ptr<Flight> flight;  ///< null until it was issued
  };
  struct Channel {
    int lane = kUp;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Batch> noted = std::make_shared<Batch>();
    std::uint64_t sequence = 0;
  };
  void issue(Channel& channel, Batch& batch);

  std::shared_ptr<Core> core_;
  Channel up_, down_;
};

/// Puts an operation on the communicator's stream: after what is on `joined`, by `enqueue()`, and watched.
/// What goes wrong fails the group. Throws the group's failure.
std::shared_ptr<Flight> launch(Core& core, Communicator& communicator, Flight flight,
                               const std::function<void(const std::shared_ptr<Flight>&)>& enqueue);

}  // namespace troupe::collectives::nccl
