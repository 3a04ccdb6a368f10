/// What this node says to the head, and what the head has not answered: a head that comes back hears it
/// again.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "runtime/node/limits.hpp"
#include "runtime/node/node_events.hpp"

namespace troupe::node {

/// Not thread-safe.
class HeadLine {
 public:
  explicit HeadLine(const Limits& limits) : limits_(limits) {}

  /// While the head is away: kept for the next join, if it tells what a join does not.
  void tell(cluster::ClusterEvent event, Actions& out);
  /// Asks for a process, until `answered`. Errors: kLimit, when that process has too much unanswered.
  Result<void> ask(ProcessId process, std::uint64_t request, cluster::ClusterEvent event, std::size_t bytes,
                   Actions& out);
  /// Whether somebody waits for that answer; nobody does after it.
  bool answered(ProcessId process, std::uint64_t request);
  /// The same of a spawn whose actor is started again when it dies: what it is constructed with is kept,
  /// until the actor or `process` has ended.
  bool answered_and_kept(ProcessId process, std::uint64_t request, ActorId actor);
  /// What that spawn's actor is constructed with, kept or not answered yet. Null: neither.
  const std::string* arguments(ProcessId process, std::uint64_t request) const;
  /// It has no other life.
  void let_go(ActorId actor);
  /// What the head says that the request waits for.
  void waits(ProcessId process, std::uint64_t request, const std::string& why);
  /// Who asked wants no answer any more.
  void cancel(ProcessId process, std::uint64_t request);
  /// Nobody waits for what `process` asked for: the head is told, so that it stays in no line, unless the end
  /// of its job says so. What it wanted killed is repeated until the head has heard it.
  void forget(ProcessId process, bool job_ends, Actions& out);
  /// Whether it was cancelled or forgotten while it was open. A head that was away may answer a request
  /// twice, and the second answer is not one that nobody wants.
  bool is_unwanted(ProcessId process, std::uint64_t request) const {
    return unwanted_.contains({process, request});
  }
  /// The driver's goodbye: repeated until the head ends the job.
  void end_job(cluster::JobEnded ended, Actions& out);
  void job_ended(JobId job) {
    std::erase_if(ending_, [job](const auto& one) { return one.first.first == job; });
  }

  /// Says what is to be killed, `joined`, then everything that is open: a head that has restarted
  /// acknowledges nothing before that.
  void joined(cluster::NodeJoined joined, Actions& out);
  void lost() { up_ = false; }
  /// Tells who waits for an answer, once each, that the head does not answer.
  void say_away(Actions& out);
  /// It does: they hear again what they waited for.
  void say_back(Actions& out);
  bool up() const { return up_; }
  std::size_t open() const { return open_.size(); }
  /// Whether the head may not have heard that an actor is to be killed.
  bool has_kills() const;

 private:
  struct Open {
    cluster::ClusterEvent event;
    std::size_t bytes = 0;
    std::string waits_for{};  ///< as the head said last
    bool told_away = false;
  };
  struct Load {
    std::size_t requests = 0;
    std::size_t bytes = 0;
  };

  using Key = std::pair<ProcessId, std::uint64_t>;
  struct Kept {
    ActorId actor;
    std::string payload;
  };
  void unload(ProcessId process, std::size_t bytes);

  void remember_unwanted(const Key& key);

  const Limits& limits_;
  bool up_ = false;
  std::map<Key, Open> open_;
  std::set<Key> unwanted_;
  std::deque<Key> unwanted_order_;  ///< the oldest first. Invariant: the elements of unwanted_
  std::map<Key, Kept> arguments_;
  /// Invariant: the sums over open_ and arguments_, by process that lives.
  std::map<ProcessId, Load> loads_;
  std::size_t orphans_ = 0;  ///< kills in open_ of processes that have ended
  bool told_full_ = false;   ///< that further ones are dropped
  /// By driver, too: of two that had the job one after another, one's end is not the other's.
  std::map<std::pair<JobId, ProcessId>, cluster::JobEnded> ending_;
  std::deque<cluster::ClusterEvent> kept_;
};

}  // namespace troupe::node
