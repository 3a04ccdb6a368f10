/// What a deployment's machine hears and orders. Plain data: no sockets, no actors, no tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/train/restart_policy.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"

namespace troupe::serve {

using RequestId = std::uint64_t;
using ReplicaId = std::uint64_t;
using BatchId = std::uint64_t;
/// Of a deployment's weights: 1 is what it began with.
using VersionId = std::uint64_t;
/// A proxy on another node than the program's, in one life of it.
using ProxyId = std::uint64_t;

/// How many replicas a deployment may have: {1, 4}, or one number. {0, 4}: none while nobody asks; it begins
/// with one.
struct Replicas {
  int min = 1;
  int max = 1;
  Replicas() = default;
  Replicas(int fixed) : min(fixed), max(fixed) {}  // NOLINT: implicit on purpose
  Replicas(int least, int most) : min(least), max(most) {}
};

struct DeploymentConfig {
  Replicas replicas{};
  std::int64_t max_batch = 64;    ///< rows of one forward
  std::int64_t max_queue = 1024;  ///< rows that may wait; a request above that is refused at once
  /// An idle replica waits so long for a batch to fill, and never beyond what the deadlines leave.
  Duration batch_wait{0};
  Duration start_timeout = std::chrono::seconds(120);  ///< of a replica: its process, weights, first forward
  Duration health_period = std::chrono::seconds(10);   ///< an idle replica is asked whether it lives
  Duration health_timeout = std::chrono::seconds(30);  ///< a batch or a check without an answer: it hangs
  Duration drain_timeout = std::chrono::seconds(20);   ///< for what was accepted before stop()
  Duration downscale_delay = std::chrono::seconds(300);  ///< fewer replicas, or none, must be enough so long
  train::RestartPolicy restart{};
};

/// Why an accepted request, or one that was not accepted, has no answer.
enum class Failure : std::uint8_t {
  kQueueFull,
  kUnavailable,  ///< the deployment drains, or its replicas do not come up
  kDeadline,
  kReplicaDied,  ///< and trying again is not safe
  kModel,        ///< the model threw
};
inline constexpr std::size_t kFailures = 5;

enum class ReplicaState : std::uint8_t { kStarting, kWarming, kReady, kDraining };

/// What a proxy is told: all of it, each time, so that one that missed some misses nothing.
struct Routes {
  struct Replica {
    ReplicaId replica = 0;
    VersionId version = 0;
    bool open = true;  ///< false: it gets no more batches, and ends when it has answered
    bool operator==(const Replica&) const = default;
  };
  std::uint64_t number = 0;  ///< of this state of the replicas: a later one has a higher number
  std::vector<Replica> replicas;
  VersionId version = 0;    ///< of the weights that answer
  VersionId rolls_out = 0;  ///< 0: none do
  std::int64_t max_queue = 0;
  bool drains = false;            ///< no new requests
  bool ended = false;             ///< and those without an answer fail
  bool is_out_of_order = false;   ///< no replica comes up
  bool starts_on_demand = false;  ///< a request that finds no replica waits: one starts for it
  bool operator==(const Routes&) const = default;
};

/// What a proxy says to that.
struct ProxyReport {
  struct Computed {
    std::int64_t rows = 0, ns = 0;
  };
  std::uint64_t seen = 0;  ///< the number of the routes that it keeps to
  std::int64_t requests = 0, queued_rows = 0;
  std::vector<ReplicaId> busy;  ///< have a batch of it
  // Since the last report.
  std::int64_t arrived_rows = 0;
  std::vector<Computed> computed;  ///< batches
  std::vector<ReplicaId> heard;    ///< answered
};

// Events.

struct Arrived {
  RequestId request = 0;
  std::int64_t rows = 1;
  Instant deadline{};
  bool called = false;  ///< by another deployment, not by a client
};
/// The client is gone, and wants no answer.
struct Left {
  RequestId request = 0;
};
/// Its process runs; weights and the first forward are next.
struct ReplicaUp {
  ReplicaId replica = 0;
};
/// It has so many bytes of its weights.
struct ReplicaLoads {
  ReplicaId replica = 0;
  std::uint64_t has = 0, of = 0;
};
struct ReplicaReady {
  ReplicaId replica = 0;
};
/// It did not come up.
struct ReplicaFailed {
  ReplicaId replica = 0;
  ErrorInfo error;
};
struct ReplicaDied {
  ReplicaId replica = 0;
  std::string why;
};
struct ReplicaAlive {
  ReplicaId replica = 0;
};
/// Its node drains, and it ends with it unless it ends before; or (`stays`) it does not any more.
struct ReplicaLeaves {
  ReplicaId replica = 0;
  bool stays = false;
};
struct Verdict {
  enum class What : std::uint8_t {
    kAnswered,
    kThrew,
    kExpired,
    kRefused  ///< by another deployment, which the struct asked
  };
  What what = What::kAnswered;
  std::string why;                    ///< what the model threw, or the other deployment said
  Failure failure = Failure::kModel;  ///< of a refusal
  std::int64_t retry_after_ns = 0;    ///< the same
};
struct BatchDone {
  ReplicaId replica = 0;
  BatchId batch = 0;
  std::vector<Verdict> verdicts;  ///< one a request, in the batch's order
  Duration computed{};
  std::size_t credits = 0;  ///< batches that it takes from this proxy at a time; 0: as before
};
struct DrainAsked {
  bool at_once = false;  ///< what has no answer fails now, instead of after drain_timeout
  /// While deployments ask this one it answers them, for so long beside drain_timeout.
  Duration callers_take{};
};
/// Another deployment asks this one from here on. It ends before this one does.
struct CallerJoined {};
struct CallerLeft {};
/// Other numbers of replicas from here on. REQUIRES: 0 <= min <= max, 1 <= max.
struct ScaleAsked {
  Replicas replicas{};
};
/// New weights: replicas with them take the place of the others. REQUIRES: not those that are current.
struct UpdateAsked {
  VersionId version = 0;
};
/// Ends a roll-out that is under way; the weights from before it stay.
struct UpdateCancelled {};
/// It can be told of the replicas.
struct ProxyJoined {
  ProxyId proxy = 0;
};
/// It is gone, with the requests that it had.
struct ProxyLeft {
  ProxyId proxy = 0;
};
/// Its answer to a TellProxy; no report: that failed.
struct ProxyAnswered {
  ProxyId proxy = 0;
  std::optional<ProxyReport> report;
};
struct Tick {};
using Event =
    std::variant<Arrived, Left, ReplicaUp, ReplicaLoads, ReplicaReady, ReplicaFailed, ReplicaDied,
                 ReplicaAlive, ReplicaLeaves, BatchDone, DrainAsked, CallerJoined, CallerLeft, ScaleAsked,
                 UpdateAsked, UpdateCancelled, ProxyJoined, ProxyLeft, ProxyAnswered, Tick>;

// Actions.

struct StartReplica {
  ReplicaId replica = 0;
  VersionId version = 0;  ///< of its weights, for its whole life
  std::string reason;
};
/// Ends its process, whatever it does.
struct StopReplica {
  ReplicaId replica = 0;
  std::string reason;
  bool has_failed = false;  ///< it died, hung or did not come up
};
struct SendBatch {
  ReplicaId replica = 0;
  BatchId batch = 0;
  std::vector<RequestId> requests;
};
/// Asks whether it lives.
struct CheckReplica {
  ReplicaId replica = 0;
};
/// The request gets the answer at this place of the batch that is just done.
struct Deliver {
  RequestId request = 0;
  std::size_t place = 0;
};
struct Fail {
  RequestId request = 0;
  Failure failure = Failure::kModel;
  std::string why;         ///< for the client
  Duration retry_after{};  ///< zero: nothing is said about it
  std::string inside{};    ///< what else is known, with ids of actors and nodes: not for clients
};
/// No replica came up, and none will.
struct GiveUp {
  ErrorInfo error;
};
/// No replica of other weights is left: whatever is answered from here on, these answer.
struct Updated {
  VersionId version = 0;
};
/// The roll-out ended, and the weights from before it are those that answer.
struct UpdateFailed {
  VersionId version = 0;
  ErrorInfo error;
};
struct TellProxy {
  ProxyId proxy = 0;
  Routes routes;
};
/// It has not answered for too long: its process is to end.
struct DropProxy {
  ProxyId proxy = 0;
  std::string reason;
};
/// Drained: no request is left, and every replica was stopped.
struct Stopped {};
using Action = std::variant<StartReplica, StopReplica, SendBatch, CheckReplica, Deliver, Fail, GiveUp,
                            Updated, UpdateFailed, TellProxy, DropProxy, Stopped>;

}  // namespace troupe::serve
