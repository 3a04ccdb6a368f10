/// The ranks of one node: their processes, what they print, and how they end.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/node/event_loop.hpp"
#include "runtime/node/program.hpp"
#include "scheduler/launch/output_relay.hpp"
#include "scheduler/launch/process_guard.hpp"
#include "scheduler/launch/run_events.hpp"
#include "scheduler/launch/run_spec.hpp"

namespace troupe::launch {

/// Each rank leads a process group of its own, which is signalled as a whole, and ends with the thread that
/// started it. Of one thread, that of its loop.
class WorkerGroup {
 public:
  using OnEvent = std::function<void(RunEvent)>;
  /// Makes the folder for logs and error files, and starts the guard. Errors: kIo.
  /// `interface`: of this node's address, for Gloo and NCCL; empty: they choose.
  static Result<std::unique_ptr<WorkerGroup>> make(EventLoop& loop, RunSpec spec, std::uint32_t node,
                                                   std::string interface, OnEvent on_event);
  /// Kills what runs.
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  /// Starts the ranks of `plan`; WorkerEnded follows for each. Errors: none of them runs. REQUIRES: none
  /// runs.
  Result<void> start(const RankPlan& plan);
  /// Sends the group of each rank that runs a signal; one that is stopped goes on, to hear of it.
  void signal(int signal);
  /// Nothing runs, and all output is where it belongs.
  bool is_quiet() const { return workers_.empty() && relays_.empty(); }
  /// Called once it is quiet again.
  void when_quiet(std::function<void()> callback);
  /// Where logs stay; empty: nowhere.
  const std::string& log_folder() const { return log_folder_; }

 private:
  struct Worker {
    node::Program program;
    std::string error_file;
    std::vector<std::weak_ptr<OutputRelay>> relays;
  };
  struct Streams;

  WorkerGroup(EventLoop& loop, RunSpec spec, std::uint32_t node, std::string interface, OnEvent on_event);
  Result<void> start_one(const RankPlan& plan, std::uint32_t local_rank);
  Result<Streams> open_streams(std::uint32_t local_rank, const std::string& folder);
  void relay(Worker& worker, UniqueFd pipe, const std::string& file, int console, std::uint32_t local_rank);
  void on_ended(std::uint32_t local_rank);
  void kill_all();
  WorkerEnd reap(Worker& worker);
  void check_quiet();

  EventLoop& loop_;
  const RunSpec spec_;
  const std::uint32_t node_;
  const std::string interface_;
  const OnEvent on_event_;
  std::string log_folder_;
  std::string temporary_;  ///< in place of log_folder_
  ProcessGuard guard_;
  std::uint32_t attempt_ = 0;
  std::map<std::uint32_t, Worker> workers_;  ///< that run, by local rank
  std::vector<std::shared_ptr<OutputRelay>> relays_;
  std::function<void()> when_quiet_;
};

}  // namespace troupe::launch
