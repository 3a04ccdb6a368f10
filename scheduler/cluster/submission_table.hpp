/// The submissions that the head knows: by id, by name, in the order in which they came, and what waits for a
/// node.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
inline constexpr std::int32_t kMaxPriority = 1'000'000;  ///< and its negative

/// Of a refusal, whose job ends: then another one may have the name.
inline constexpr std::string_view kHasTheName = " has the name ";

/// Why no head takes that spec, whatever it knows (kBadInput, kLimit), or nothing.
std::optional<ErrorInfo> check_submission(const SubmissionSpec& spec);
/// Whether it may be the id of a submission: 1 to 64 of A-Z a-z 0-9 _ - and ., the first a letter or digit.
/// It names a folder.
bool is_submission_id(const std::string& id);
/// What its driver asks of a node: a process of its own.
inline ActorDemand demand_of(const SubmissionSpec& spec) {
  return {spec.cpu_e4, true, {}, spec.gpu_e4, {}, -1, spec.other};
}
/// Whether one could take from the other.
inline bool competes(const ActorDemand& a, const ActorDemand& b) {
  return (a.cpu_e4 > 0 && b.cpu_e4 > 0) || (a.gpu_e4 > 0 && b.gpu_e4 > 0) ||
         share_resource(a.other.amounts, b.other.amounts);
}
/// What several ask for, together.
template <class Demand>
void add_room(ActorDemand& all, const Demand& more) {
  all.cpu_e4 += more.cpu_e4;
  all.gpu_e4 += more.gpu_e4;
  add_amounts(all.other.amounts, more.other.amounts, 1);
}
/// The queue that it is in.
const std::string& queue_of(const SubmissionSpec& spec);
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
  void enqueue(const SubmissionRecord& record);
  void delay(const SubmissionRecord& record, Instant due) { delayed_.set(record.spec.id, due); }
  /// It waits no more.
  void dequeue(const SubmissionRecord& record);
  /// The next one whose time has come: it is in the queue from now on.
  std::optional<std::string> pop_due(Instant now);
  /// It has ended: it is forgotten at `forget_at`.
  void ended(const SubmissionRecord& record, Instant forget_at);
  /// It never was.
  void remove(const SubmissionRecord& record);
  /// Forgets one that is due at `now` or beyond `most`, and returns its record. One that is needed is due
  /// again `later`.
  std::optional<SubmissionRecord> trim(Instant now, std::size_t most, Duration later,
                                       const std::function<bool(const std::string& id)>& is_needed);

  /// Where it stands in its queue: the highest priority first, then who came first.
  struct QueuePlace {
    std::int32_t priority = 0;
    std::uint64_t number = 0;
    bool operator<(const QueuePlace& other) const {
      return priority != other.priority ? priority > other.priority : number < other.number;
    }
  };
  static QueuePlace place_of(const SubmissionRecord& record) { return {record.spec.priority, record.number}; }
  /// Those of all queues that wait for a node, each queue's in its order.
  const std::map<QueuePlace, std::string>& queue() const { return queue_; }
  /// Queues of which some wait for a node.
  std::vector<std::string> waiting_queues() const;
  /// Submissions of that queue that have not ended. O(all).
  std::size_t unfinished_of(const std::string& queue) const;
  /// What is asked for.
  using Size = BundleDemand;
  /// The next of a queue's that wait, leaving out those of some sizes; null: there is none. O(sizes).
  SubmissionRecord* next_of(const std::string& queue, const std::function<bool(const Size&)>& left_out);
  /// Whether the record of any, also of one that has ended, names that package.
  bool names_package(const std::string& package) const { return packages_.contains(package); }
  bool is_delayed(const std::string& id) const { return delayed_.contains(id); }
  std::uint64_t next_number() { return ++last_number_; }
  std::size_t unfinished() const { return all_.size() - history_.size(); }
  const std::map<std::string, SubmissionRecord>& all() const { return all_; }
  /// Their ids by number.
  const std::map<std::uint64_t, std::string>& by_number() const { return by_number_; }
  /// Aborts if an invariant does not hold.
  void check() const;

 private:
  void leave(const SubmissionRecord& record);
  void forget_package(const SubmissionRecord& record);

  std::map<std::string, SubmissionRecord> all_;
  std::map<std::uint64_t, std::string> by_number_;
  std::map<std::string, std::string> names_;  ///< id by name
  std::map<std::string, int> packages_;       ///< how many records name each
  std::map<QueuePlace, std::string> queue_;
  /// queue_, each under its queue and what it asks for.
  std::map<std::string, std::map<Size, std::set<QueuePlace>>> by_size_;
  TimeQueue<std::string> delayed_;
  TimeQueue<std::string> history_;
  std::uint64_t last_number_ = 0;
};

}  // namespace troupe::cluster
