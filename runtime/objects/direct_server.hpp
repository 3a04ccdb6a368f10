/// The owner's end of direct connections: gives the bytes of objects that lie in this process's memory.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/core/connect/tcp.hpp"
#include "runtime/objects/direct_connections.hpp"
#include "runtime/objects/direct_io.hpp"

namespace troupe::objects {

/// Thread-safe. A thread accepts, and each connection has one, too, which ends with it. A connection gives
/// one part.
class DirectServer {
 public:
  using Find = DirectConnections::Find;
  /// `host`: a numeric address of this host. Errors: kBadConfig, kIo.
  static Result<std::unique_ptr<DirectServer>> start(const std::string& host, Find find,
                                                     TransferDeadline::Limits limits = {});
  /// Ends what is under way.
  ~DirectServer();
  DirectServer(const DirectServer&) = delete;
  DirectServer& operator=(const DirectServer&) = delete;

  DirectAddress address() const;
  /// Connections that are open.
  std::size_t connections();

  /// With more of them the next is closed at once.
  static constexpr std::size_t kMostConnections = 256;
  /// For the handshake and the question.
  static constexpr Duration kHandshake = std::chrono::seconds(5);

 private:
  struct Connection {
    UniqueFd socket;
    std::thread thread;
    bool over = false;
  };
  DirectServer(DataListener listener, Find find, TransferDeadline::Limits limits);
  void run();
  void accept_one();
  Result<void> serve(int fd);
  void reap();

  const DataListener listener_;
  const Find find_;
  const TransferDeadline::Limits limits_;
  std::array<std::byte, 32> key_{};
  std::mutex mutex_;  ///< guards what follows
  bool stopping_ = false;
  std::list<Connection> connections_;
  std::thread thread_;  ///< not guarded: of start and the destructor
};

}  // namespace troupe::objects
