/// The requests of one proxy: which goes to which replica in which batch, what is refused, tried again or
/// given up. Pure. A deployment's machine has one for its program's own HTTP; each proxy on another node has
/// one.
///
/// Requests are bound late: they wait here. A replica grants each proxy credits, so many batches at a time:
/// two where it hears of one proxy alone (one that it computes, one behind it), one where it hears of
/// several, since the batches of the others keep it busy. An idle replica, one with no batch of this proxy,
/// gets what waits at once; a busy one gets a second batch when that is full. So batches grow by load.
///
/// Of several replicas the one that is expected to finish first gets the batch. What a batch takes is the
/// time that the deployment's batches of as many rows take, times the replica's own pace: the average of how
/// its batches compare to that, the newest counting most. Idle ones of about the same pace take turns. A
/// batch waits for a replica that computes, rather than go to an idle one that would take much longer. A pace
/// is forgotten in time, so that a replica that was slow is tried again.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/serve/autoscaler.hpp"
#include "actors/serve/deployment_types.hpp"

namespace troupe::serve {

/// Not thread-safe. What it orders is appended to `out`.
class RequestRouter {
 public:
  /// `times`: what batches take.
  RequestRouter(const DeploymentConfig& config, const Autoscaler& times, std::vector<Action>& out);
  RequestRouter(const RequestRouter&) = delete;
  RequestRouter& operator=(const RequestRouter&) = delete;

  /// Before anything else at a time.
  void set_now(Instant now) { now_ = now; }

  // The replicas that it may send to.

  /// From here on it gets batches.
  void open(ReplicaId id, VersionId version);
  /// It gets no more; what it has it answers.
  void close(ReplicaId id);
  /// It is gone, and what it had is tried again, or fails.
  void lose(ReplicaId id, const std::string& why);
  /// REQUIRES: it has no batch.
  void forget(ReplicaId id);
  /// Of the weights that roll out; 0: none do.
  void set_newest(VersionId version) { newest_ = version; }
  bool has_batches(ReplicaId id) const;
  bool has_batch(ReplicaId id, BatchId batch) const;
  /// When the oldest batch that it has was sent. REQUIRES: it has one.
  Instant oldest_sent(ReplicaId id) const;
  std::vector<ReplicaId> busy() const;
  std::vector<ReplicaId> known() const;

  // Requests.

  void arrive(const Arrived& event);
  /// The client is gone.
  void leave(RequestId id);
  /// Refuses a request that was not accepted, or ends one that was.
  void fail(RequestId id, Failure failure, std::string why, Duration retry_after = {},
            std::string inside = {});
  void fail_all(Failure failure, const std::string& why, bool queued_alone, const std::string& inside = {});
  /// REQUIRES: has_batch(). Returns the rows of a batch that was computed as a whole, 0 of another.
  std::int64_t done(const BatchDone& event);
  void expire();
  void dispatch();
  /// No batch waits to fill from here on.
  void hold_no_more() { holds_ = false; }
  void set_max_queue(std::int64_t rows) { max_queue_ = rows; }
  /// Nobody was there to hear for so long.
  void excuse_pause(Duration pause);

  std::int64_t queued_rows() const { return queued_rows_; }
  std::int64_t requests() const { return static_cast<std::int64_t>(requests_.size()); }
  /// When a deadline comes, or a batch is held no longer.
  Instant next_wake() const;

 private:
  struct Request {
    std::int64_t rows = 0;
    Instant deadline{};
    Instant arrived{};
    bool running = false;
    bool suspect = false;  ///< a replica died with it: it goes alone, and not a third time
  };
  struct Batch {
    BatchId id = 0;
    std::vector<RequestId> requests;
    std::int64_t rows = 0;
    Instant sent{};
  };
  struct Replica {
    VersionId version = 0;
    bool open = false;
    std::size_t credits = 2;
    std::deque<Batch> batches;
    BatchId last = 0;  ///< that it was sent
    Instant began{};   ///< with the first of batches
    double pace = 1;   ///< what its batches take, relative to the deployment's
    Instant paced{};   ///< when that was measured
  };
  struct Idle {
    ReplicaId id = 0;
    Replica* replica = nullptr;
    double pace = 1;
  };
  struct Choice {
    ReplicaId id = 0;
    Replica* replica = nullptr;           ///< null: none may have it now
    Instant look_again = Instant::max();  ///< an idle one may have it then
  };

  Instant hold_until() const;
  Choice choose();
  double pace_of(const Replica& replica) const;
  Duration time_of(const Replica& replica, std::int64_t rows) const;
  Duration time_until_free(const Replica& replica) const;
  void measure(Replica& replica, std::int64_t rows, Duration computed);
  void send(ReplicaId id, Replica& replica);
  void take_back(const Batch& batch, bool begun, const std::string& why);
  void end(std::unordered_map<RequestId, Request>::iterator at);
  bool answers_with_old() const;
  Duration time_of_queue() const;

  const std::int64_t max_batch_;
  const Duration batch_wait_;
  std::int64_t max_queue_;
  const Autoscaler& times_;
  std::vector<Action>& out_;
  Instant now_{};
  bool holds_ = true;

  std::unordered_map<RequestId, Request> requests_;
  std::set<std::pair<Instant, RequestId>> deadlines_;
  std::deque<RequestId> queue_;  ///< of requests that left it lazily
  std::int64_t queued_rows_ = 0;
  std::map<ReplicaId, Replica> replicas_;
  std::vector<Idle> idle_;  ///< choose()'s, kept for its memory
  VersionId newest_ = 0;
  BatchId last_batch_ = 0;
  double retries_ = 0;  ///< requests that may be tried again
  Instant look_again_ = Instant::max();
};

}  // namespace troupe::serve
