/// Which tasks of a process run where: a pure machine. What happens comes in by a method, what is to be done
/// about it goes out as actions, each with its reason.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"
#include "runtime/wire/address.hpp"
#include "runtime/wire/resources.hpp"

namespace troupe::tasks {

/// What a task asks of its worker: tasks that ask for the same share workers.
struct Demand {
  std::int64_t cpu_e4 = 0;
  std::int64_t gpu_e4 = 0;
  NodeId node{};    ///< on this node and no other
  GroupId group{};  ///< in the room of that placement group
  std::int32_t bundle = -1;
  cluster::OtherResources other{};
  /// Whether a worker that holds `held` has what this asks for.
  bool fits_in(const Demand& held) const {
    return cpu_e4 <= held.cpu_e4 && gpu_e4 <= held.gpu_e4 && (!node || node == held.node) &&
           (!group || group == held.group) && (bundle < 0 || bundle == held.bundle) &&
           cluster::has_amounts(held.other.amounts, {}, other.amounts) &&
           cluster::has_labels(held.other.labels, other.labels);
  }
  auto operator<=>(const Demand&) const = default;
};

using TaskNumber = std::uint64_t;   ///< in the order of submission
using LeaseNumber = std::uint64_t;  ///< never used again

inline constexpr std::size_t kPlaces = 16;  ///< tasks that a worker has at most: one runs

struct PoolLimits {
  std::size_t queued = std::size_t{1} << 18;              ///< tasks that have not begun
  std::uint64_t queued_bytes = std::uint64_t{256} << 20;  ///< of their arguments
  std::size_t asked = 4;                                  ///< leases of one demand that are not granted yet
  std::size_t leases = 1024;                              ///< of one demand
  std::size_t free_leases = 16;                           ///< of a demand for nothing, which no node bounds
  int failed_asks = 3;                                    ///< one after another, until what waits fails
  Duration idle = std::chrono::milliseconds(500);         ///< a worker without a task is given back
  Duration unneeded = std::chrono::milliseconds(100);  ///< nothing waits: leases are not asked for any more
  /// Behind tasks of functions that take less than this another one stands where many wait: it is there when
  /// the first is done. A longer one would keep it waiting, and another worker could begin it.
  Duration short_task = std::chrono::milliseconds(5);
  /// Behind tasks that take much less, more of them, so that a worker has so much to do: what passes between
  /// it and this process is then passed for several at once.
  Duration in_hand = std::chrono::microseconds(500);
  /// What stands behind goes to another worker when the first has run so long: it was none of the short ones,
  /// and may wait for just those.
  Duration runs_long = std::chrono::milliseconds(20);
  /// What comes back from a lost worker, and may be why it was lost, is left to a new one so long; then the
  /// task that submitted it may run it.
  Duration new_worker = std::chrono::seconds(10);
};

/// Not thread-safe. `now` never goes back.
///
/// A lease is a worker process that runs tasks of this process alone, one after another. Every end of a lease
/// goes through end_lease(): its tasks wait again or fail, and the worker is given back.
class LeasePool {
 public:
  struct AskLease {
    LeaseNumber lease = 0;
    Demand demand;
  };
  /// Nobody needs it: whatever becomes of the ask.
  struct CancelAsk {
    LeaseNumber lease = 0;
    std::string reason;
  };
  struct ReturnLease {
    LeaseNumber lease = 0;
    std::string reason;
  };
  struct Push {
    LeaseNumber lease = 0;
    TaskNumber task = 0;
    std::uint32_t attempt = 0;
  };
  /// Ask its worker to cancel it.
  struct Interrupt {
    LeaseNumber lease = 0;
    TaskNumber task = 0;
  };
  /// Ask its worker for it, which has not begun it, or says that it has: taken_back() if not.
  struct TakeBack {
    LeaseNumber lease = 0;
    TaskNumber task = 0;
    std::uint32_t attempt = 0;
  };
  /// One of its retries is used: its worker was lost, or its code threw.
  struct Retry {
    TaskNumber task = 0;
  };
  /// It will not run (again).
  struct Fail {
    TaskNumber task = 0;
    ErrorInfo error;
  };
  /// Call tick() then, with its number.
  struct WakeAt {
    Instant at{};
    std::uint64_t number = 0;
  };
  using Action =
      std::variant<AskLease, CancelAsk, ReturnLease, Push, Interrupt, TakeBack, Retry, Fail, WakeAt>;
  using Actions = std::vector<Action>;

  LeasePool() = default;
  explicit LeasePool(const PoolLimits& limits) : limits_(limits) {}

  struct Submitted {
    Demand demand;
    int retries = 0;           ///< after a death of its worker
    std::uint64_t parent = 0;  ///< the task that submitted it; 0: none
    std::uint64_t bytes = 0;
    std::uint64_t function = 0;  ///< which the task calls: how long it takes is known by function
    NodeId prefers{};            ///< where most of its arguments are; none: anywhere
  };
  /// REQUIRES: has_room().
  TaskNumber submitted(const Submitted& task, Instant now, Actions& out);
  bool has_room() const { return queued_ < limits_.queued && queued_bytes_ < limits_.queued_bytes; }
  /// So much room that it pays to wake who waits for it.
  bool has_much_room() const {
    return queued_ <= limits_.queued / 8 * 7 && queued_bytes_ <= limits_.queued_bytes / 8 * 7;
  }
  /// Takes the oldest task that `parent` submitted and that has no worker yet, if `mine` can hold it: it is
  /// for the caller to run, and forgotten here. Not one whose worker was lost a moment ago. 0: there is none.
  struct Own {
    TaskNumber task = 0;
    int retries = 0;  ///< that are left
  };
  Own take_own(std::uint64_t parent, const Demand& mine, Instant now, Actions& out);

  /// Somebody waits for what it computes: among those that wait for a worker it goes before those for which
  /// nobody does, of which one goes after every sixteen. O(log tasks); again: nothing.
  void hasten(TaskNumber task);

  /// Nobody wants it any more. True: it was waiting, and is forgotten. Else its worker is asked to end it,
  /// and is given back (killed) if it runs it after `grace` still; it is not tried again.
  bool cancel(TaskNumber task, Duration grace, Instant now, Actions& out);
  /// `at`: the worker's node.
  void granted(LeaseNumber lease, Instant now, Actions& out, NodeId at = {});
  void refused(LeaseNumber lease, const ErrorInfo& why, Instant now, Actions& out);
  /// Its node drains (`stays`: not any more): while another worker with its demand is up no task goes there,
  /// and it is given back after those that it has.
  void leaves(LeaseNumber lease, bool stays, Instant now, Actions& out);
  /// Others have waited for its room (`why`): no task goes there any more, and it is given back after the one
  /// that it runs.
  void wanted(LeaseNumber lease, const std::string& why, Instant now, Actions& out);
  /// That attempt of the task ended with an answer, or what its code threw. False: it is not the present one.
  bool ended(TaskNumber task, std::uint32_t attempt, Instant now, Actions& out);
  /// That attempt ended with what its code threw, and is to be tried again for that. False: it has no retry
  /// left, or is not the present one.
  bool threw(TaskNumber task, std::uint32_t attempt, Instant now, Actions& out);
  /// That attempt does not begin on its worker, which was asked for it.
  void taken_back(TaskNumber task, std::uint32_t attempt, Instant now, Actions& out);
  /// That attempt has no answer, since its worker died or cannot be reached.
  void lost(TaskNumber task, std::uint32_t attempt, const ErrorInfo& why, Instant now, Actions& out);
  /// What an end of a lease says of the tasks that were there.
  enum class Begun {
    kOldest,  ///< its process is dead, which is told after most of what it answered: what stood behind had
              ///< hardly begun (one that may run once alone stands behind none)
    kAll,     ///< answers may have been lost with the link or the node: each may have run
  };
  void lease_lost(LeaseNumber lease, Begun begun, const ErrorInfo& why, Instant now, Actions& out);
  /// `wake`: the number of a WakeAt. One of an earlier time has been asked for since, or was here: no tick.
  void tick(std::uint64_t wake, Instant now, Actions& out);
  /// All ends.
  void close(const ErrorInfo& why, Actions& out);

  /// Why a task has no answer yet.
  struct Waiting {
    LeaseNumber runs_on = 0;         ///< has it; 0: it waits for one
    std::size_t before = 0;          ///< tasks before it: there, or of those that wait with its demand
    std::size_t workers = 0;         ///< that are up with its demand
    std::vector<LeaseNumber> asked;  ///< with its demand
  };
  /// REQUIRES: contains(task). O(tasks before it).
  Waiting waiting(TaskNumber task) const;

  /// Whether it has not ended.
  bool contains(TaskNumber task) const { return tasks_.contains(task); }
  std::size_t queued() const { return queued_; }
  std::size_t tasks() const { return tasks_.size(); }
  std::size_t leases() const { return leases_.size(); }

 private:
  struct Task {
    Submitted what;
    std::uint32_t attempt = 0;
    std::uint32_t lost = 0;  ///< attempts that may have begun when their worker was lost
    LeaseNumber lease = 0;   ///< 0: it waits
    bool cancelled = false;
    bool is_wanted = false;  ///< somebody waits for it
    int passed = 0;      ///< later ones went first, as their arguments were there or somebody waits for them
    Instant own_from{};  ///< not before does the task that submitted it run it
  };
  struct Lease {
    Demand demand;
    NodeId node{};  ///< if it is up
    bool up = false;
    std::deque<TaskNumber> tasks;  ///< the oldest runs
    Instant begun{};               ///< when the oldest began, as far as is known
    bool is_long = false;  ///< the oldest runs long: nothing goes behind it, and what was there is asked for
    std::string why_leaves{};  ///< why no more tasks go there; empty: they do
    bool for_others = false;   ///< so not even while no other worker is up
    Instant idle_since{};
  };
  /// Of a task in the queue: those come first that somebody waits for.
  struct Turn {
    bool is_plain = true;
    TaskNumber task = 0;
    auto operator<=>(const Turn&) const = default;
  };
  struct Class {
    std::set<Turn> queue;
    std::set<LeaseNumber> asked;
    std::set<LeaseNumber> leaving;  ///< they get tasks while none is up, unless others want them
    std::array<std::set<LeaseNumber>, kPlaces + 1> up;  ///< by how many tasks they have
    /// Of those the ones where another may stand behind, if the first is of a short function: by that.
    std::array<std::map<std::uint64_t, std::set<LeaseNumber>>, kPlaces + 1> open;
    int failed_asks = 0;
    Instant empty_since{};
  };
  using Leases = std::map<LeaseNumber, Lease>;

  static Turn turn_of(TaskNumber number, const Task& task) { return {!task.is_wanted, number}; }
  void enqueue(TaskNumber number, Task& task);
  void dequeue(TaskNumber number, Task& task);
  /// Gives what waits to workers with a place, and asks for more of them.
  void fill(const Demand& demand, Instant now, Actions& out);
  /// So many tasks a worker has at a time if they are of that function.
  std::size_t places(std::uint64_t function) const;
  bool is_open(const Lease& lease) const;
  LeaseNumber with_place(const Class& group, std::size_t load, NodeId prefers) const;
  /// Of those that nobody waits for. 0: there is none.
  static TaskNumber oldest_plain(const Class& group);
  /// REQUIRES: one waits.
  TaskNumber first_of(const Class& group) const;
  /// The one of the queue that the idle worker `to` gets: the first, or soon after it one whose arguments are
  /// there, if those of the first are elsewhere and nobody waits for it.
  TaskNumber next_for(const Class& group, LeaseNumber to);
  /// Into the class's sets and out of them, around every change of the lease's tasks.
  void place(LeaseNumber number, const Lease& lease, Class& group);
  void unplace(LeaseNumber number, const Lease& lease, Class& group);
  void set_leaving(Leases::iterator at, const std::string& why, bool for_others, Instant now, Actions& out);
  bool is_present(TaskNumber number, std::uint32_t attempt) const;
  /// Its worker has it no more.
  void leave(TaskNumber number, Instant now);
  /// Whether somebody waits for what runs there.
  bool has_behind(const Lease& lease) const;
  Instant ends_for(const Lease& lease, Instant until) const;
  void runs_long(LeaseNumber number, Lease& lease, Actions& out);
  void again(TaskNumber number, bool had_begun, const ErrorInfo& why, Instant now, Actions& out);
  void emptied(Class& group, Instant now, Actions& out);
  void end_lease(Leases::iterator at, Begun begun, const ErrorInfo& why, Instant now, Actions& out);
  void wake(Instant at, Actions& out);
  static bool has_up(const Class& group);
  /// When it is given back, if it gets no task until then.
  Instant idle_until(const Lease& lease) const;
  void wake_if_idle(const Lease& lease, Actions& out);

  const PoolLimits limits_{};  // Clang wants it said
  TaskNumber last_task_ = 0;
  LeaseNumber last_lease_ = 0;
  std::unordered_map<TaskNumber, Task> tasks_;
  std::map<std::uint64_t, std::set<TaskNumber>> own_;  ///< those that wait, by the task that submitted them
  Leases leases_;
  std::map<Demand, Class> classes_;
  std::unordered_map<std::uint64_t, Duration> means_;  ///< of a task, by function
  std::size_t queued_ = 0;                             ///< Invariant: of all classes' queues.
  std::uint64_t queued_bytes_ = 0;
  std::map<TaskNumber, Instant> cancelled_;  ///< those that have a worker, and until when they may run
  Instant wake_at_ = Instant::max();
  std::uint64_t last_wake_ = 0;  ///< whose time that is
  bool closed_ = false;
};

}  // namespace troupe::tasks
