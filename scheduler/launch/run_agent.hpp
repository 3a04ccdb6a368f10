/// The ranks of one node of a cluster, on behalf of a `troupe run` elsewhere. An isolated actor.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/client/future.hpp"
#include "runtime/node/event_loop.hpp"
#include "scheduler/launch/run_driver.hpp"

namespace troupe::launch {

/// Its calls may come twice (a link that broke and was made again): each does its work once.
class RunAgent {
 public:
  /// Throws IoError when the node has no room for logs.
  RunAgent(const RunSpec& spec, std::uint32_t node);
  /// Kills what runs.
  ~RunAgent();
  RunAgent(const RunAgent&) = delete;
  RunAgent& operator=(const RunAgent&) = delete;

  void take_port(std::uint32_t attempt);
  void start(const RankPlan& plan);
  void signal(std::uint32_t attempt, std::int32_t signal);
  /// What happened from the `first`-th event on; answered when there is something.
  Future<std::vector<RunEvent>> events(std::uint64_t first);
  /// Answered once nothing runs and all output is written.
  Future<bool> close();
  /// Where the logs stay; empty: nowhere.
  std::string log_folder() const { return log_folder_; }

 private:
  void happened(RunEvent event);
  void answer();
  void run(const RunSpec& spec, const std::string& host, Promise<bool> up);

  const std::uint32_t number_;  ///< of this node in the run
  EventLoop loop_;              ///< of thread_, which the ranks' processes end with
  std::unique_ptr<LocalNode> node_;
  std::string log_folder_;
  std::optional<std::uint32_t> port_attempt_;       ///< the newest that was asked for
  std::optional<std::uint32_t> start_attempt_;      ///< the newest that was started
  std::optional<std::uint32_t> signalled_attempt_;  ///< if it is started later than that, it has ended
  std::mutex mutex_;
  std::vector<RunEvent> events_;  ///< under mutex_, as the two below
  std::uint64_t asked_ = 0;
  std::optional<Promise<std::vector<RunEvent>>> asking_;
  std::thread thread_;
};

}  // namespace troupe::launch
