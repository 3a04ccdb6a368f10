/// The submissions that the head knows: by id, by name, in the order in which they came, and what waits for a
/// node.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "runtime/core/error.hpp"
#include "runtime/wire/cluster.hpp"
#include "runtime/wire/submissions.hpp"
#include "scheduler/cluster/time_queue.hpp"

namespace troupe::cluster {

// Bounds at the door (check_submission).

/// Arguments and environment together.
inline constexpr std::size_t kMaxSubmissionBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMaxSubmissionWords = 4096;
inline constexpr std::int32_t kMaxRetries = 1000;

/// Why no head takes that spec, whatever it knows (kBadInput, kLimit), or nothing.
std::optional<ErrorInfo> check_submission(const SubmissionSpec& spec);
/// Whether it may be the id of a submission: 1 to 64 of A-Z a-z 0-9 _ - and ., the first a letter or digit.
/// It names a folder.
bool is_submission_id(const std::string& id);
/// What its driver asks of a node: a process of its own.
inline ActorDemand demand_of(const SubmissionSpec& spec) {
  return {spec.cpu_e4, true, {}, spec.gpu_e4};
}
/// "QUEUED", "RUNNING": as people and programs read it.
const char* state_name(SubmissionState state);

/// Not thread-safe. Everything takes O(log n).
///
/// Invariants: what is queued is in the queue or waits for its time (`delayed`), and holds no node. What has
/// ended is in the history. A name leads to the one submission of that name that has not ended.
class SubmissionTable {
 public:
  SubmissionRecord& add(SubmissionRecord record);
  SubmissionRecord* find(const std::string& id);
  const SubmissionRecord* find(const std::string& id) const;
  /// The one of that name that has not ended.
  const SubmissionRecord* named(const std::string& name) const;

  /// Of a queued one that is not in the queue yet: into the queue, or into it at `due`.
  void enqueue(const SubmissionRecord& record) { queue_.emplace(record.number, record.spec.id); }
  void delay(const SubmissionRecord& record, Instant due) { delayed_.set(record.spec.id, due); }
  /// It waits no more.
  void dequeue(const SubmissionRecord& record);
  /// The next one whose time has come: it is in the queue from now on.
  std::optional<std::string> pop_due(Instant now);
  /// It has ended: it is forgotten at `forget_at`.
  void ended(const SubmissionRecord& record, Instant forget_at);
  /// Forgets one that is due at `now` or beyond `most`, and returns its record.
  std::optional<SubmissionRecord> trim(Instant now, std::size_t most);

  /// Those that wait for a node, the first that came first.
  const std::map<std::uint64_t, std::string>& queue() const { return queue_; }
  bool is_delayed(const std::string& id) const { return delayed_.contains(id); }
  std::uint64_t next_number() { return ++last_number_; }
  std::size_t unfinished() const { return all_.size() - history_.size(); }
  const std::map<std::string, SubmissionRecord>& all() const { return all_; }
  /// Their ids by number.
  const std::map<std::uint64_t, std::string>& by_number() const { return by_number_; }
  /// Aborts if an invariant does not hold.
  void check() const;

 private:
  std::map<std::string, SubmissionRecord> all_;
  std::map<std::uint64_t, std::string> by_number_;
  std::map<std::string, std::string> names_;  ///< id by name
  std::map<std::uint64_t, std::string> queue_;
  TimeQueue<std::string> delayed_;
  TimeQueue<std::string> history_;
  std::uint64_t last_number_ = 0;
};

}  // namespace troupe::cluster
