/// The reader's end of direct connections: brings objects into shared memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "runtime/objects/direct_connections.hpp"
#include "runtime/objects/direct_io.hpp"

namespace troupe::objects {

/// Thread-safe. A few threads, started when they are needed, take the parts of all objects in turn, each over
/// a connection of its own.
class DirectClient {
 public:
  using Wanted = DirectConnections::Wanted;
  using Then = DirectConnections::Then;

  explicit DirectClient(TransferDeadline::Limits limits = {}) : limits_(limits) {}
  /// Ends what is under way; all `then` are called before it returns.
  ~DirectClient();
  DirectClient(const DirectClient&) = delete;
  DirectClient& operator=(const DirectClient&) = delete;

  /// False: there is no thread to be had, and `then` is not called.
  bool fetch(Wanted wanted, Then then);
  /// Their owners are gone.
  void abort(const std::function<bool(ProcessAddress)>& is_down, const std::string& reason);

  static constexpr std::size_t kThreads = 4;
  static constexpr Duration kConnect = std::chrono::seconds(3);

 private:
  struct Transfer {
    Wanted wanted;
    Then then;
    // Guarded by the client's mutex.
    std::size_t parts_left = 0;
    std::set<int> sockets;
    std::optional<ErrorInfo> failed;
  };
  using TransferPtr = std::shared_ptr<Transfer>;
  struct Task {
    TransferPtr transfer;
    Part part;
  };

  void run();
  Result<void> fetch_part(Transfer& transfer, const Part& part);
  static void fail(Transfer& transfer, const ErrorInfo& why);
  void end_part(const TransferPtr& transfer, Result<void> result);

  const TransferDeadline::Limits limits_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<Task> tasks_;
  std::set<TransferPtr> transfers_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;  ///< of the threads: they wait for a task
};

}  // namespace troupe::objects
