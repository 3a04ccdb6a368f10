/// Work of the NCCL backend, and sends and receives, which are issued together.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/nccl/core.hpp"
#include "collectives/process_group.hpp"

namespace troupe::collectives::nccl {

/// An operation, or its promise: `flight` issues it if need be.
class NcclWork final : public Work {
 public:
  using Launch = std::function<std::shared_ptr<Flight>()>;
  /// `on_host`: wait() waits on the host.
  NcclWork(std::shared_ptr<Core> core, Launch launch, bool on_host);

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
  Launch launch_;
  bool on_host_;
  std::shared_ptr<Flight> flight_;
  std::exception_ptr thrown_;
};

/// Sends and receives of one rank, in their own order and on a communicator of their own. NCCL moves a
/// message when both sides have asked for it, and messages that are issued one by one wait for each other: so
/// they are noted, and issued as one group when the first of them is waited for.
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  Messages(std::shared_ptr<Core> core, std::shared_ptr<Communicator> communicator);
  std::shared_ptr<Work> add(const Buffer& buffer, int peer, bool sends, bool on_host);
  /// Issues what was noted.
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
  void issue(Batch& batch);

  std::shared_ptr<Core> core_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Batch> noted_ = std::make_shared<Batch>();
  std::uint64_t sequence_ = 0;
};

/// Puts an operation on the communicator's stream: after what is on `joined`, by `enqueue()`, and watched.
/// What goes wrong fails the group. Throws the group's failure.
std::shared_ptr<Flight> launch(Core& core, Communicator& communicator, Flight flight,
                               const std::function<void(const std::shared_ptr<Flight>&)>& enqueue);

}  // namespace troupe::collectives::nccl
