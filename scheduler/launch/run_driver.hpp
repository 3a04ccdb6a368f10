/// Runs a RunMachine: carries out its actions on nodes, tells it what happens, and says why to the user.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/core/held_port.hpp"
#include "runtime/node/event_loop.hpp"
#include "scheduler/launch/run_machine.hpp"
#include "scheduler/launch/worker_group.hpp"

namespace troupe::launch {

/// Where ranks run. Events go to RunDriver::on.
class RunNode {
 public:
  virtual ~RunNode() = default;
  virtual void take_port(std::uint32_t attempt) = 0;
  virtual void start(const RankPlan& plan) = 0;
  virtual void signal(std::uint32_t attempt, int signal) = 0;
  /// The run has ended: calls `done` once all output is out.
  virtual void close(std::function<void()> done) = 0;
};

/// Of one thread, whose ranks' processes end with it.
class RunDriver {
 public:
  /// Takes over SIGTERM, SIGINT, SIGHUP, SIGQUIT and SIGPIPE, as far as they are not ignored. REQUIRES: one
  /// thread.
  explicit RunDriver(RunConfig config);
  EventLoop& loop() { return loop_; }
  /// In the loop's thread, or before run().
  void add(std::uint32_t id, std::unique_ptr<RunNode> node) { nodes_[id] = std::move(node); }
  void remove(std::uint32_t id) { nodes_.erase(id); }
  void on(RunEvent event);
  /// Until the run has ended. Returns the exit code.
  int run();

 private:
  void perform(const RunAction& action);
  void close_nodes();

  EventLoop loop_;
  RunMachine machine_;
  std::map<std::uint32_t, std::unique_ptr<RunNode>> nodes_;
  std::deque<RunEvent> events_;
  bool is_stepping_ = false;
  std::optional<Instant> wakes_at_;
  UniqueFd signals_;
  std::optional<int> code_;
  std::size_t closing_ = 0;
};

/// Where rank 0 listens, as far as the user said so, and which part of the world this machine is.
struct MasterChoice {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;       ///< 0: a fresh one each attempt
  std::uint32_t node_rank = 0;  ///< --node-rank, without a cluster
  std::uint32_t nodes = 1;
};

/// Ranks on this machine, as processes of this one.
class LocalNode final : public RunNode {
 public:
  using OnEvent = WorkerGroup::OnEvent;
  LocalNode(std::uint32_t node, MasterChoice master, std::unique_ptr<WorkerGroup> group, OnEvent on_event)
      : node_(node), master_(std::move(master)), group_(std::move(group)), on_event_(std::move(on_event)) {}

  void take_port(std::uint32_t attempt) override;
  void start(const RankPlan& plan) override;
  void signal(std::uint32_t attempt, int signal) override;
  void close(std::function<void()> done) override { group_->when_quiet(std::move(done)); }

 private:
  const std::uint32_t node_;
  const MasterChoice master_;
  const std::unique_ptr<WorkerGroup> group_;
  const OnEvent on_event_;
  HeldPort port_;
  std::uint32_t attempt_ = 0;
  bool told_one_thread_ = false;
};

}  // namespace troupe::launch
