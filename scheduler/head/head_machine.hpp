/// The head's rules as a pure machine: the cluster machine, and what is said of its decisions when. README.md
/// gives the rule for a store that fails.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/log.hpp"
#include "scheduler/cluster/cluster_machine.hpp"
#include "scheduler/head/commit_queue.hpp"

namespace troupe {

/// What is refused since the head's store has that trouble.
ErrorInfo refused_for(std::string what, const ErrorInfo& trouble);

/// Not thread-safe.
class HeadMachine {
 public:
  /// More messages than this that wait for the store mean that it is too slow: no new work until it is not.
  static constexpr std::size_t kMaxHeld = 1'000'000;

  struct LogLine {
    LogLevel level{};
    std::string text;
  };
  /// What the shell does now: in this order.
  struct Output {
    std::vector<LogLine> log;
    std::vector<NodeId> died;  ///< nodes, also those that nobody is told of
    std::vector<HeadMessage> send;
    std::shared_ptr<const StoreBatch> write;  ///< if any: write it, then call written(). One at a time
  };

  /// `ids` must outlive the machine.
  HeadMachine(cluster::ClusterConfig config, Random& ids, std::size_t max_held = kMaxHeld)
      : cluster_(config, ids), max_held_(max_held) {}

  /// REQUIRES: called first, if at all.
  Output restore(std::vector<cluster::Record> records, Instant now);
  Output on(const cluster::ClusterEvent& event, Instant now);
  /// Changes and answers of the head's own (who may come in): durable in the same order. A reply that has a
  /// request is an error at once when the store fails, and the submission that it made never was.
  Output store(const StoreBatch& changes, Instant now);
  Output reply(HeadReply reply, Instant now);
  /// How Output::write went.
  Output written(const Result<void>& how, Instant now);
  /// See ClusterMachine::set_wall_clock.
  void set_wall_clock(std::int64_t now_ms) { cluster_.set_wall_clock(now_ms); }
  /// Call it a few times a second.
  Output tick(Instant now);

  const cluster::ClusterMachine& cluster() const { return cluster_; }
  /// A submission in its last state that is durable; none: there is none.
  std::optional<cluster::SubmissionRecord> shown(const std::string& id) const;
  const CommitQueue& queue() const { return queue_; }
  /// Why new work is refused now; none if it is not.
  const std::optional<ErrorInfo>& trouble() const { return trouble_; }

 private:
  bool is_taken_in_trouble(const cluster::ClusterEvent& event, Instant now, Output& out);
  void refuse_spawn(const cluster::SpawnRequested& spawn, Instant now, Output& out);
  void log_detached(Output& out) const;
  void look_at_store(Instant now, Output& out);
  void take(std::vector<cluster::ClusterAction> actions, Output& out);
  void show(SubmissionShown shown);
  void finish(Instant now, Output& out);
  void fail_replies(Instant now, Output& out);

  cluster::ClusterMachine cluster_;
  CommitQueue queue_;
  const std::size_t max_held_;
  std::map<std::string, cluster::SubmissionRecord>
      shown_;  ///< of each submission what is durable, but its spec
  std::optional<ErrorInfo> trouble_;
  Instant said_{};        ///< when the log last told of it
  bool dropped_ = false;  ///< events that somebody must repeat
};

}  // namespace troupe
