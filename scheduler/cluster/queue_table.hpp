/// Queues of submissions, and what those of each hold.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "runtime/core/error.hpp"
#include "scheduler/placement/queue_order.hpp"

namespace troupe::cluster {

inline constexpr std::size_t kMaxQueues = 1000;
inline constexpr std::int64_t kMostWeight_e4 = 1'000'000 * 10'000LL;

/// Why no head takes that queue, whatever it knows (kBadInput), or nothing.
std::optional<ErrorInfo> check_queue(const QueueRecord& queue);

/// Not thread-safe. Everything takes O(log n).
///
/// Invariants: kDefaultQueue is always there. What is held by nobody of a queue is 0 and above.
class QueueTable {
 public:
  struct Queue {
    scheduler::QueueLoad load;
    std::uint64_t number = 0;  ///< names it where strings would cost: from 1 on
  };
  QueueTable() { at(kDefaultQueue); }

  const Queue* find(const std::string& name) const;
  /// Makes one without a quota where there is none: of records without their queue.
  Queue& at(const std::string& name);
  void set(const QueueRecord& record) { at(record.name).load.queue = record; }
  /// REQUIRES: nothing is held of it. The default one forgets what it was set to.
  void remove(const std::string& name);
  const std::map<std::string, Queue>& all() const { return queues_; }

 private:
  std::map<std::string, Queue> queues_;
  std::uint64_t last_number_ = 0;
};

}  // namespace troupe::cluster
