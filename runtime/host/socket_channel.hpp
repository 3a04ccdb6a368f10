/// A process's end of the Unix socket to its node, and the thread that receives there.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "runtime/host/node_channel.hpp"
#include "runtime/link/socket/socket_link.hpp"

namespace troupe {

/// Thread-safe.
class SocketChannel final : public NodeChannel {
 public:
  explicit SocketChannel(SocketLink link);
  ~SocketChannel() override;

  void start(ProcessAddress self, UniqueFd doorbell, Handlers handlers) override;
  void stop() override;
  Sent send(const wire::FrameHeader& header, wire::ByteView body) override;

 private:
  void run();
  void wake();
  /// False: nothing more comes.
  bool receive_all();
  /// What was said before the end, as long as a node that reads takes to get it.
  void send_rest();

  SocketLink link_;
  UniqueFd wake_;
  Handlers handlers_;
  std::atomic<bool> refused_{false};  ///< a send was answered with kFull
  std::atomic<bool> stopping_{false};
  std::mutex wake_mutex_;  ///< guards wake_ but for the thread that receives
  std::thread thread_;
};

}  // namespace troupe
