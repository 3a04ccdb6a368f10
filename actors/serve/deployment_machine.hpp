/// A deployment as a pure state machine: which request goes to which replica in which batch, what is refused,
/// tried again or given up, which replicas are started and stopped. Events in, actions out; no clock, no I/O.
///
/// Requests are bound late: they wait here, and a replica has at most two batches, one that it computes and
/// one behind it. An idle replica gets what waits, at once; a busy one gets a second batch when that is full.
/// So batches grow by load. Every request that was accepted ends in one Deliver or one Fail, unless its
/// client leaves first.
///
/// A replica has the weights of one version for its whole life, and a request is computed by one replica: no
/// answer is of two versions. In a roll-out one replica of the new weights starts beside the others; once it
/// is ready, replicas of the new start as those of the old end, so that as many are ready as before. It fails
/// where a replica of the new does not come up for its weights' sake, or three of them die in a row; then
/// those of the old come back.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/serve/autoscaler.hpp"
#include "actors/serve/deployment_types.hpp"

namespace troupe::serve {

/// Not thread-safe.
class DeploymentMachine {
 public:
  using Actions = std::vector<Action>;

  /// REQUIRES: 1 <= min <= max replicas; max_batch, max_queue >= 1.
  explicit DeploymentMachine(const DeploymentConfig& config);

  /// The first replicas. Call once.
  Actions start(Instant now);
  /// `now` never goes back. A Tick is wanted at wake_at(); more of them do no harm.
  Actions on(const Event& event, Instant now);
  /// Instant::max(): nothing is waited for.
  Instant wake_at() const { return wake_at_; }

  struct View {
    int starting = 0, warming = 0, ready = 0, draining = 0;  ///< replicas
    int wanted = 0;
    Replicas range{};
    std::int64_t queued_rows = 0;
    std::int64_t requests = 0;  ///< accepted, without an answer
    bool drains = false;
    VersionId version = 0;    ///< that answers; in a roll-out, the one from before it
    VersionId rolls_out = 0;  ///< 0: no roll-out is under way
  };
  View view() const;
  /// At least the least number of replicas is ready.
  bool is_up() const;

 private:
  static constexpr Duration kScaleEvery = std::chrono::seconds(1);
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
    ReplicaState state = ReplicaState::kStarting;
    Instant since{};  ///< it began to start
    Instant heard{};
    Instant checked{};  ///< when it was last asked whether it lives
    bool asked = false;
    std::deque<Batch> batches;
  };

  /// Weights, and how their replicas fare.
  struct Version {
    VersionId id = 0;
    bool was_ready = false;    ///< one of its replicas, once
    int failures = 0;          ///< of replicas, in a row: none has answered since
    int deaths = 0;            ///< of failures, those that a replica is to blame for
    Instant failing_since{};   ///< the first of failures; in a roll-out, the last that became ready
    std::string last_why;      ///< of the last failure
    std::string start_reason;  ///< why the next replica is started
    Instant not_before{};      ///< and when at the earliest
  };

  void on_event(const Arrived& event);
  void on_event(const Left& event);
  void on_event(const ReplicaUp& event);
  void on_event(const ReplicaReady& event);
  void on_event(const ReplicaFailed& event);
  void on_event(const ReplicaDied& event);
  void on_event(const ReplicaAlive& event);
  void on_event(const BatchDone& event);
  void on_event(const DrainAsked& event);
  void on_event(const ScaleAsked& event);
  void on_event(const UpdateAsked& event);
  void on_event(const UpdateCancelled& event);
  void on_event(const Tick& event);

  void excuse_own_pause();
  void expire_requests();
  void look_after_replicas();
  void scale();
  void reconcile();
  void bring(Version& version, int wanted, bool may_start);
  void stop_surplus(const Version& version, int surplus);
  void end_drained_replicas();
  void finish_update();
  void fail_update(ErrorInfo error);
  void give_up_stuck_update();
  void dispatch();
  Replica* replica_for_batch(ReplicaId& id);
  Instant hold_until() const;
  void send(ReplicaId id, Replica& replica);
  void drop_dead(ReplicaId id, const std::string& why, bool blamed);
  void take_back(const Batch& batch, bool begun, const std::string& why);
  void count_failure(Version& version, const std::string& why, bool blamed);
  void count_answer(const Replica& replica);
  void end(std::unordered_map<RequestId, Request>::iterator at);
  void fail(RequestId id, Failure failure, std::string why, Duration retry_after = {},
            std::string inside = {});
  void fail_all(Failure failure, const std::string& why, bool queued_alone, const std::string& inside = {});
  void check_drained();
  bool is_out_of_order() const;
  std::size_t count(ReplicaState state) const;
  int live(const Version& version) const;
  int ready(const Version& version) const;
  int wanted_of_update() const;
  bool is_stuck_without(const Version& next) const;
  Version* version_of(const Replica& replica);
  Duration time_of_queue() const;
  Instant next_deadline(const Replica& replica) const;
  Instant next_wake() const;

  DeploymentConfig config_;
  Autoscaler scaler_;
  Instant now_{};
  Instant wake_at_ = Instant::max();
  Actions out_;

  std::unordered_map<RequestId, Request> requests_;
  std::set<std::pair<Instant, RequestId>> deadlines_;
  std::deque<RequestId> queue_;  ///< of requests that left it lazily
  std::int64_t queued_rows_ = 0;
  std::map<ReplicaId, Replica> replicas_;
  ReplicaId last_replica_ = 0;
  BatchId last_batch_ = 0;

  int wanted_ = 0;
  Version current_;
  std::optional<Version> next_;  ///< that rolls out
  bool was_up_ = false;
  bool given_up_ = false;
  double retries_ = 0;  ///< requests that may be tried again
  Instant next_scaling_{};
  bool draining_ = false;
  Instant drained_by_{};
  bool stopped_ = false;
};

}  // namespace troupe::serve
