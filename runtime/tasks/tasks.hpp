/// The tasks that a process submitted: the shell around LeasePool. Workers are actors of class Runner,
/// isolated, which the head places; a task is a call of one.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/core/condition.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/host/responder.hpp"
#include "runtime/host/this_thread.hpp"
#include "runtime/objects/object_ref.hpp"
#include "runtime/tasks/lease_pool.hpp"
#include "runtime/tasks/lineage.hpp"
#include "runtime/tasks/pushed_tasks.hpp"

namespace troupe::detail {
struct EncodedAnswer;
}

namespace troupe::tasks {

/// A task to be run.
struct TaskSpec {
  std::uint64_t function = 0;  ///< its number in the registry
  std::string_view name;       ///< REQUIRES: lives as long as the program
  CallBody args;
  Demand demand;
  int retries = 0;
  bool retry_exceptions = false;
  std::size_t results = 0;    ///< so many become objects (Tasks::computed_here); 0: it answers its value
  Lineage::Number entry = 0;  ///< whose retries these are; 0: it has none
};

/// The operation of a process by which it is asked to cancel a task that was pushed to it.
inline constexpr std::uint64_t kCancelTask = 0x7461736b;
/// By which it is asked for one that it has not begun. Answer: a bool, whether it never begins there.
inline constexpr std::uint64_t kTakeTaskBack = 0x7461736c;

/// What runs tasks, one after another. It ends when the process that leased it is gone.
struct Runner {
  Runner() = default;
  Runner(ProcessAddress owner, Demand demand);
};

/// Thread-safe.
class Tasks : public std::enable_shared_from_this<Tasks> {
 public:
  /// Calls `then` with a process on that node that lives as long as the job.
  using FindKeeper = std::function<void(NodeId, std::function<void(Result<ProcessAddress>)> then)>;
  /// `gate` must outlive the use of it, which close() ends.
  Tasks(ProcessGate& gate, Waiter* waiter, FindKeeper find_keeper)
      : gate_(gate), waiter_(waiter), find_keeper_(std::move(find_keeper)) {}

  /// Resolved with the task's encoded answer. Waits while too many tasks wait. In a task that waits it runs
  /// this one instead. Throws LimitExceeded where the thread must not wait.
  std::shared_ptr<CallState> submit(TaskSpec spec);
  /// The same, with its results as objects of this process; they stay on the node where they were computed.
  /// What is lost with that is computed again when it is wanted.
  std::vector<objects::HandlePtr> compute(TaskSpec spec);
  /// Once, before the first task: what of these objects is wanted, lost and freed.
  void watch_objects();
  /// The answer of a task that computes objects: these.
  Outcome computed_here(std::span<const wire::ByteView> values, bool is_pushed);
  /// Of what an answer refers to, this process, which is a worker, hands on what it owns: a process of its
  /// node that lives as long as the job gets copies. Waits for those that are being computed.
  void leave_objects(detail::EncodedAnswer& answer);
  /// Runs a task, in the worker that it came to or here: what waits in it runs those of its own tasks that
  /// have no worker yet (a tree of tasks needs no more CPUs than one).
  void run(const std::function<void()>& function);
  /// This process runs tasks of `owner`, and holds this much.
  void serve(ProcessAddress owner, const Demand& demand);
  bool serves() const { return serves_; }
  /// A task that was pushed to this process begins. True: it was cancelled before.
  bool begin_pushed(const TaskAttempt& task);
  void end_pushed();
  /// The task that this worker runs has waited for a while: its CPUs are for others until it goes on.
  void give_cpus_away();
  /// It goes on, or this idle worker's next one begins. Without a word before, nothing happens.
  void take_cpus_back();
  /// The node says: they stay its own, since so many others have given theirs away.
  static void keeps_cpus(std::uint64_t others);
  /// Whether the one that runs was cancelled.
  bool is_cancelled() const { return cancelled_; }
  void asked_to_cancel(ProcessAddress from, wire::ByteView body, Responder responder);
  void asked_for_task(ProcessAddress from, wire::ByteView body, Responder responder);

  void process_down(ProcessAddress process, const std::string& reason);
  void node_down(NodeId node, const std::string& reason);
  /// What is under way fails, and what is submitted from now on. Once more: the latter, with another reason.
  void close(const ErrorInfo& why);

  struct Counts {
    std::size_t tasks = 0;
    std::size_t queued = 0;
    std::size_t leases = 0;
    std::size_t entries = 0;  ///< of lineage
    bool waits = false;       ///< it has given its CPUs away
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
  void act(const LeasePool::TakeBack& take);
  void act(const LeasePool::Retry& retry);
  void act(const LeasePool::Fail& fail);
  void act(const LeasePool::WakeAt& wake);
  void lease_answered(LeaseNumber lease, const Outcome& outcome);
  void watch_leaving(LeaseNumber lease, const ActorAddress& worker);
  ProcessAddress owner_of_worker() const;  ///< none: this process runs no tasks of others
  /// Takes over the answer, which is there. True: that was its end.
  bool task_answered(TaskNumber task, std::uint32_t attempt, CallState& answer);
  bool task_answered(TaskNumber task, std::uint32_t attempt, Outcome outcome);
  /// REQUIRES: mutex_ is held.
  bool tries_again(TaskNumber task, const ErrorInfo* why) const;
  void cancel(TaskNumber task, Duration grace);
  void lose(const std::function<bool(ProcessAddress)>& is_down, LeasePool::Begun begun,
            const std::string& reason);
  /// Takes it out of pending_ and wakes who waits for room.
  std::optional<Pending> take(TaskNumber task);  ///< REQUIRES: mutex_ is held
  void tell_of_room();                           ///< REQUIRES: mutex_ is held
  TaskNumber add(TaskSpec spec, std::uint64_t frame, const std::shared_ptr<CallState>& answer,
                 LeasePool::Actions& actions);  ///< REQUIRES: mutex_ is held
  void look_if_unused(Duration after);
  bool run_own(std::uint64_t frame);
  void run_here(Pending task);
  void run_once(const TaskSpec& spec, wire::Bytes args, Responder responder);

  // Computed objects, and tasks that read them (computing.cpp).
  struct Recipe {
    TaskSpec spec;                            ///< without the references to the values that it reads
    std::vector<Lineage::Number> reads;       ///< those of this process's computed objects
    std::vector<objects::ObjectName> others;  ///< computed objects of other processes that it reads
    std::uint64_t frame = 0;                  ///< of the task that submitted it
    std::shared_ptr<CallState> answer;        ///< null: it computes an object
    TaskNumber task = 0;                      ///< of the last time; its answer:
    std::shared_ptr<CallState> run;
    // One of several results of a task:
    Lineage::Number part_of = 0;  ///< the task's own number
    std::size_t part = 0;
  };
  struct Decided {
    Lineage::Actions actions;
    std::vector<std::shared_ptr<const void>> kept;  ///< until they are carried out
  };
  void wait_for_room(std::string_view name);
  void start(Lineage::Number number, TaskSpec spec, std::shared_ptr<CallState> answer,
             const std::vector<objects::HandlePtr>& parts = {});
  std::shared_ptr<CallState> submit_when_computed(TaskSpec& spec);
  std::pair<TaskNumber, std::shared_ptr<CallState>> submit_ready(TaskSpec spec, std::uint64_t frame);
  // Results that outlive their worker (results.cpp).
  /// What a task that computes objects answers, of each: a small value, or the object that its worker put.
  struct Computed {
    objects::ObjectName name;
    wire::Bytes value;
  };
  void keep_results(TaskNumber task, std::uint32_t attempt, const Outcome& outcome);
  void keep_results(TaskNumber task, std::uint32_t attempt, std::vector<Computed> results, std::size_t next);
  void keep(const objects::ObjectName& name, int tries, std::function<void(Result<objects::HandlePtr>)> then);
  Result<objects::HandlePtr> keep_own(const objects::ObjectName& name);
  objects::HandlePtr arrived(const objects::ObjectName& name);
  std::vector<objects::HandlePtr> take_results(const Outcome& outcome, std::size_t count);
  void take_part(Lineage::Number number, Lineage::Number of, std::size_t part);
  template <class Change>
  void change(Change change);
  void decide(Decided decided);  ///< REQUIRES: lineage_mutex_ is held
  void carry_out_decided();
  void act(const Lineage::Submit& submit);
  void act(const Lineage::Hold& hold);
  void act(const Lineage::Release& release);
  void act(const Lineage::Fail& fail);
  void act(const Lineage::Forget& forget);
  void act(const Lineage::Hasten& hasten);
  void hasten(const Recipe& recipe);  ///< REQUIRES: lineage_mutex_ is held
  void run_entry(Lineage::Number number, std::size_t next);
  void ended(Lineage::Number number, const std::shared_ptr<CallState>& answer, std::size_t results,
             CallState& run);
  void has_come(const Recipe& recipe, Lineage::Number number);  ///< REQUIRES: lineage_mutex_ is held
  /// Waits a while for a task of that frame whose arguments are not there. False: there is none, or it is
  /// too late.
  bool wait_for_own(std::uint64_t frame, Instant deadline);
  std::string why_no_value(Lineage::Number number) const;
  static ErrorInfo cancelled();
  void cancel_entry(Lineage::Number number, Duration grace);
  void fail_recipes(const ErrorInfo& why);

  ProcessGate& gate_;
  Waiter* const waiter_;
  const FindKeeper find_keeper_;
  const MonotonicClock clock_;
  mutable std::mutex mutex_;  ///< guards all below
  Condition room_;
  std::size_t waiting_for_room_ = 0;
  std::optional<ErrorInfo> closed_;  ///< why a task has no answer
  LeasePool pool_;
  std::unordered_map<TaskNumber, Pending> pending_;
  std::unordered_map<LeaseNumber, Worker> workers_;
  std::uint64_t last_frame_ = 0;
  // Of a process that runs tasks.
  Demand holds_;
  ProcessAddress owner_;
  PushedTasks pushed_;
  std::atomic<bool> cancelled_{false};  ///< the one that runs
  std::atomic<bool> serves_{false};
  std::atomic<bool> waits_{false};  ///< it has given its CPUs away; between tasks guarded by mutex_

  mutable std::mutex lineage_mutex_;  ///< guards what follows; taken before mutex_
  Lineage lineage_;
  std::map<Lineage::Number, Recipe> recipes_;
  std::deque<Decided> decided_;                                          ///< to be carried out
  bool acts_ = false;                                                    ///< some thread does that
  std::unordered_map<objects::ObjectName, objects::HandlePtr> arrived_;  ///< results that ended() takes
  std::unordered_map<Lineage::Number, objects::HandlePtr> held_;         ///< values that tasks read
  std::unordered_map<Lineage::Number, std::vector<objects::HandlePtr>> parts_;  ///< of several, until taken
  std::map<std::uint64_t, std::set<Lineage::Number>> coming_;  ///< by frame: not submitted yet
  Condition has_come_;                                         ///< one of these
  std::atomic<bool> lineage_has_room_{true};                   ///< written under lineage_mutex_
};

}  // namespace troupe::tasks
