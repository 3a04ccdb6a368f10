/// The tasks that a process submitted: the shell around LeasePool. Workers are actors of class Runner,
/// isolated, which the head places; a task is a call of one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "runtime/core/condition.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/host/responder.hpp"
#include "runtime/host/this_thread.hpp"
#include "runtime/tasks/lease_pool.hpp"

namespace troupe::tasks {

/// A task to be run.
struct TaskSpec {
  std::uint64_t function = 0;  ///< its number in the registry
  std::string_view name;       ///< REQUIRES: lives as long as the program
  CallBody args;
  Demand demand;
  int retries = 0;
};

/// The operation of a process by which it is asked to cancel a task that was pushed to it.
inline constexpr std::uint64_t kCancelTask = 0x7461736b;

/// What runs tasks, one after another. It ends when the process that leased it is gone.
struct Runner {
  Runner() = default;
  Runner(ProcessAddress owner, Demand demand);
};

/// Thread-safe.
class Tasks : public std::enable_shared_from_this<Tasks> {
 public:
  /// `gate` must outlive the use of it, which close() ends.
  Tasks(ProcessGate& gate, Waiter* waiter) : gate_(gate), waiter_(waiter) {}

  /// Resolved with the task's encoded answer. Waits while too many tasks wait. In a task that waits it runs
  /// this one instead. Throws LimitExceeded where the thread must not wait.
  std::shared_ptr<CallState> submit(TaskSpec spec);
  /// Runs a task, in the worker that it came to or here: what waits in it runs those of its own tasks that
  /// have no worker yet (a tree of tasks needs no more CPUs than one).
  void run(const std::function<void()>& function);
  /// This process runs tasks of `owner`, and holds this much.
  void serve(ProcessAddress owner, const Demand& demand);
  /// A task that was pushed to this process begins. True: it was cancelled before.
  bool begin_pushed(TaskNumber task);
  void end_pushed();
  /// Whether the one that runs was cancelled.
  bool is_cancelled() const { return cancelled_; }
  void asked_to_cancel(ProcessAddress from, wire::ByteView body, Responder responder);

  void process_down(ProcessAddress process, const std::string& reason);
  void node_down(NodeId node, const std::string& reason);
  void close(const std::string& reason);

  struct Counts {
    std::size_t tasks = 0;
    std::size_t queued = 0;
    std::size_t leases = 0;
  };
  Counts counts() const;
  /// What the task waits for whose answer that is; empty: it runs, or is no task of this process. O(tasks).
  std::string why_waits(const CallState& answer) const;

 private:
  class Frame;
  struct Pending {
    TaskSpec spec;
    std::shared_ptr<CallState> answer;
  };
  struct Worker {
    std::shared_ptr<CallState> ask;
    ActorAddress actor;
    bool up = false;
  };

  void carry_out(LeasePool::Actions actions);
  void act(const LeasePool::AskLease& ask);
  void act(const LeasePool::CancelAsk& cancel);
  void act(const LeasePool::ReturnLease& back);
  void act(const LeasePool::Push& push);
  void act(const LeasePool::Interrupt& interrupt);
  void act(const LeasePool::Fail& fail);
  void act(const LeasePool::WakeAt& wake);
  void lease_answered(LeaseNumber lease, const Outcome& outcome);
  void task_answered(TaskNumber task, std::uint32_t attempt, const Outcome& outcome);
  void cancel(TaskNumber task, Duration grace);
  void lose(const std::function<bool(ProcessAddress)>& is_down, const std::string& reason);
  /// Takes it out of pending_ and wakes who waits for room.
  std::optional<Pending> take(TaskNumber task);  ///< REQUIRES: mutex_ is held
  bool run_own(std::uint64_t frame);
  void run_here(Pending task);

  ProcessGate& gate_;
  Waiter* const waiter_;
  const MonotonicClock clock_;
  mutable std::mutex mutex_;  ///< guards all below
  Condition room_;
  std::size_t waiting_for_room_ = 0;
  std::string closed_;  ///< why
  LeasePool pool_;
  std::unordered_map<TaskNumber, Pending> pending_;
  std::unordered_map<LeaseNumber, Worker> workers_;
  std::uint64_t last_frame_ = 0;
  // Of a process that runs tasks.
  Demand holds_;
  ProcessAddress owner_;
  TaskNumber running_ = 0;
  std::set<TaskNumber> not_wanted_;     ///< cancelled, and not begun when that was heard
  std::atomic<bool> cancelled_{false};  ///< the one that runs
};

}  // namespace troupe::tasks
