/// A deployment as a pure state machine: the requests of its program's own HTTP (request_router.hpp), which
/// replicas are started and stopped, and what the proxies on other nodes are told of them. Events in, actions
/// out; no clock, no I/O. Every request that was accepted ends in one Deliver or one Fail, unless its client
/// leaves first.
///
/// A replica has the weights of one version for its whole life, and a request is computed by one replica: no
/// answer is of two versions. In a roll-out one replica of the new weights starts beside the others; once it
/// is ready, replicas of the new start as those of the old end, so that as many are ready as before. It fails
/// where a replica of the new does not come up for its weights' sake, or three of them die in a row; then
/// those of the old come back.
///
/// Proxies route their requests themselves. Each is told all routes at every change and four times a second,
/// and answers with what it holds: a replica that is not wanted any more ends when every proxy has seen that
/// and has no batch there. A proxy that does not answer for health_timeout is dropped. Requests in a proxy
/// outlast the absence of whoever tells it.
///
/// Other deployments may ask this one. When it drains it refuses clients at once, and answers those until the
/// last of them has ended.
///
/// A replica that dies before it is ready is followed by another ever later; when they have failed for long
/// enough, the deployment is out of order, and refuses requests. Whatever replicas die of once they were
/// ready, others start at once, and requests wait for them: a client whose requests kill replicas takes time
/// from the others, and no answer. A request that two replicas died of fails.
///
/// A replica whose node drains goes on until another is ready in its place, and ends when it has answered.
///
/// With a least number of none it begins with one replica, which shows that its weights answer. When nobody
/// has asked for downscale_delay the last one ends. A request that then arrives starts one at once, and waits
/// in its router until that is ready, or its deadline comes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/serve/autoscaler.hpp"
#include "actors/serve/deployment_types.hpp"
#include "actors/serve/request_router.hpp"

namespace troupe::serve {

/// Not thread-safe.
class DeploymentMachine {
 public:
  using Actions = std::vector<Action>;

  /// REQUIRES: 0 <= min <= max replicas, max >= 1; max_batch, max_queue >= 1.
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
    bool starts_on_demand = false;  ///< a request that finds no replica waits: one starts for it
    std::uint64_t cold_starts = 0;  ///< requests found no replica, and one came up
    Duration cold_start{};          ///< the last of them: from the first such request to a replica
    int callers = 0;                ///< other deployments that ask it
    VersionId version = 0;          ///< that answers; in a roll-out, the one from before it
    VersionId rolls_out = 0;        ///< 0: no roll-out is under way
  };
  View view() const;
  /// At least the least number of replicas is ready, and one.
  bool is_up() const;
  DeploymentMachine(const DeploymentMachine&) = delete;
  DeploymentMachine& operator=(const DeploymentMachine&) = delete;

 private:
  static constexpr Duration kScaleEvery = std::chrono::seconds(1);
  struct Replica {
    VersionId version = 0;
    ReplicaState state = ReplicaState::kStarting;
    Instant since{};  ///< it began to start
    Instant heard{};
    Instant checked{};  ///< when it was last asked whether it lives
    bool asked = false;
    bool was_ready = false;                 ///< else no proxy was told of it
    bool had_work = false;                  ///< it answered a request or a check, or was sent one of ours
    bool leaves = false;                    ///< its node drains
    std::uint64_t loaded = 0, weights = 0;  ///< bytes that it has of its weights, and all of them
    /// The number of the first routes that say that it gets no more; 0: none did.
    std::uint64_t closed_in = 0;
  };
  struct Proxy {
    bool asked = false;  ///< it was told, and has not answered
    Instant heard{};     ///< or it joined
    Instant next{};      ///< when it is told again though nothing is new
    std::uint64_t told = 0;
    ProxyReport last;
  };

  /// Weights, and how their replicas fare.
  struct Version {
    VersionId id = 0;
    bool was_ready = false;    ///< one of its replicas, once
    int failed_starts = 0;     ///< in a row: no replica was ready since
    int blamed_starts = 0;     ///< of them, those that the replica is to blame for
    int deaths = 0;            ///< in a row, of such starts or later: none has answered since
    int idle_deaths = 0;       ///< in a row, of replicas that were ready and had no work
    Instant idle_death_at{};   ///< the last one that counted
    Instant failing_since{};   ///< the first of failed_starts
    std::string last_why;      ///< of the last start or replica that failed
    std::string start_reason;  ///< why the next replica is started
    Instant not_before{};      ///< and when at the earliest
  };

  void on_event(const Arrived& event);
  void on_event(const Left& event);
  void on_event(const ReplicaUp& event);
  void on_event(const ReplicaLoads& event);
  void on_event(const ReplicaReady& event);
  void on_event(const ReplicaFailed& event);
  void on_event(const ReplicaDied& event);
  void on_event(const ReplicaAlive& event);
  void on_event(const BatchDone& event);
  void on_event(const DrainAsked& event);
  void on_event(const ScaleAsked& event);
  void on_event(const UpdateAsked& event);
  void on_event(const UpdateCancelled& event);
  void on_event(const ReplicaLeaves& event);
  void on_event(const CallerJoined& event);
  void on_event(const CallerLeft& event);
  void on_event(const ProxyJoined& event);
  void on_event(const ProxyLeft& event);
  void on_event(const ProxyAnswered& event);
  void on_event(const Tick& event);

  void excuse_own_pause();
  void look_after_replicas();
  ErrorInfo not_ready_in_time(const Replica& replica) const;
  void scale();
  void scale_from_zero();
  void want(const Autoscaler::Wanted& wanted);
  bool starts_on_demand() const;
  void reconcile();
  void bring(Version& version, int wanted, bool may_start);
  void stop_surplus(const Version& version, int surplus);
  void close_leaving();
  void end_drained_replicas();
  void finish_update();
  void fail_update(ErrorInfo error);
  void give_up_stuck_update();
  void make_ready(ReplicaId id, Replica& replica);
  void make_drain(ReplicaId id, Replica& replica);
  void drop_dead(ReplicaId id, const std::string& why, bool blamed);
  void give_up(const ErrorInfo& why);
  void count_failure(Version& version, const Replica& replica, const std::string& why, bool blamed);
  void count_answer(Replica& replica);
  void dispatch();
  void look_after_proxies();
  void tell_proxies();
  void end_proxies();
  Routes routes_now() const;
  bool is_held(ReplicaId id, const Replica& replica) const;
  std::int64_t rows_queued_beside(ProxyId id) const;
  std::int64_t max_queue_beside(ProxyId id) const;
  bool proxies_have_requests() const;
  Instant next_of_proxies() const;
  void check_drained();
  bool starts_fail() const;
  bool is_out_of_order() const;
  std::size_t count(ReplicaState state) const;
  int live(const Version& version) const;
  int ready(const Version& version) const;
  int wanted_of_update() const;
  bool is_stuck_without(const Version& next) const;
  Version* version_of(const Replica& replica);
  Instant next_deadline(ReplicaId id, const Replica& replica) const;
  Instant next_wake() const;

  DeploymentConfig config_;
  Autoscaler scaler_;
  Instant now_{};
  Instant wake_at_ = Instant::max();
  Actions out_;

  RequestRouter router_;
  std::map<ReplicaId, Replica> replicas_;
  ReplicaId last_replica_ = 0;
  std::map<ProxyId, Proxy> proxies_;
  Routes routes_;                 ///< that proxies are told; max_queue is each one's own
  std::uint64_t drained_in_ = 0;  ///< the number of the first routes that say that the deployment drains

  int wanted_ = 0;
  Version current_;
  std::optional<Version> next_;  ///< that rolls out
  bool was_up_ = false;
  std::optional<Instant> cold_since_;  ///< requests found no replica, and none is ready yet
  std::uint64_t cold_starts_ = 0;
  Duration cold_start_{};
  bool given_up_ = false;
  Instant next_scaling_{};
  bool begun_ = false;
  /// Deployments that ask this one. Below 0 for a moment: who leaves may be told of in another thread than
  /// who joins, and first.
  int callers_ = 0;
  bool draining_ = false;
  Instant drained_by_{};
  bool stopped_ = false;
};

}  // namespace troupe::serve
