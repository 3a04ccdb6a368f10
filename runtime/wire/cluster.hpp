/// What the head's state machine is told (events) and what it asks for (actions). Plain aggregates: the wire
/// carries some of them, the store others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/core/error.hpp"
#include "runtime/core/ids.hpp"
#include "runtime/core/one_of.hpp"
#include "runtime/wire/address.hpp"
#include "runtime/wire/bytes.hpp"
#include "runtime/wire/groups.hpp"
#include "runtime/wire/payload.hpp"
#include "runtime/wire/resources.hpp"
#include "runtime/wire/submissions.hpp"

namespace troupe::cluster {

/// CPUs and GPUs are counted in 1/10000: num_cpus = 0.5 is 5000.
inline constexpr std::int64_t kCpu = 10000;
inline constexpr std::int64_t kGpu = 10000;

/// What the reason of a refused spawn ends with if its name is another living actor's.
inline constexpr std::string_view kNameIsTaken = " is taken";

/// The class of workers of tasks, which no program can register.
inline constexpr std::string_view kWorkerOfTasks = "worker of tasks";

/// What an actor asks of a node.
struct ActorDemand {
  std::int64_t cpu_e4 = 0;   ///< CPUs in 1/10000; 0 asks for nothing
  bool isolated = false;     ///< a process of its own; such actors are spread
  NodeId affinity{};         ///< this node and no other; none by default
  std::int64_t gpu_e4 = 0;   ///< GPUs in 1/10000: a part of one, or whole ones; for isolated actors alone
  GroupId group{};           ///< of the room of this placement group, and no other; none by default
  std::int32_t bundle = -1;  ///< of that one of its bundles; -1: of any
  OtherResources other{};    ///< memory, custom resources and labels
  bool operator==(const ActorDemand&) const = default;
};

/// A node as everybody knows it.
struct NodeInfo {
  NodeId id{};
  std::string name;        ///< for people: "a", "gpu-7"
  std::string address;     ///< where other nodes connect to
  std::string public_key;  ///< its CURVE key, as Z85 text; empty in an embedded cluster
  std::int64_t cpu_e4 = 0;
  bool gateway = false;  ///< a driver's or session's own link into the cluster: zero resources, runs no actor
  /// Its GPUs, each as CUDA_VISIBLE_DEVICES names it. The order is theirs while the node lives.
  std::vector<std::string> gpus{};
  OtherResources other{};  ///< its memory for actors, custom resources and labels
  bool operator==(const NodeInfo&) const = default;
};

struct ActorSpec {
  JobId job{};
  std::string type;     ///< registered name of its class
  std::string name;     ///< found by this name while it lives; empty for none
  std::string payload;  ///< encoded ActorPayload; opaque to the head, and never stored by it
  ActorDemand demand;
  std::int32_t max_restarts = 0;      ///< when its process or node dies; -1: without end
  std::int32_t max_task_retries = 0;  ///< of a call that died with a life of it
  bool detached = false;              ///< outlives its job's driver; has a name and a process of its own
  bool operator==(const ActorSpec&) const = default;
  bool is_restartable() const { return max_restarts != 0; }
  /// What it is constructed with is kept by head and nodes, and not by whoever spawned it.
  bool is_kept() const { return detached && is_restartable(); }
  /// A process leases it for its tasks.
  bool is_worker_of_tasks() const { return type == kWorkerOfTasks; }
};

/// What an actor saved last, encoded; opaque to head and nodes, which keep it in memory alone, as the
/// payload.
struct SavedState {
  std::uint64_t version = 0;  ///< rises with each save, of whichever life; 0: it has saved nothing
  wire::Bytes bytes;
};
/// Why a state is not kept beside `payload_bytes` of its actor; nothing: it is.
std::optional<ErrorInfo> state_too_large(ActorId actor, std::size_t payload_bytes, const SavedState& state);

enum class ActorState : std::uint8_t {
  kStarting,  ///< placed, its node was told
  kAlive,
  kEnding,  ///< its node was told to kill it; it holds its CPUs until the node says it is gone
  kDead,
  kRestarting,  ///< it died, and starts again; it is on no node
};
// (An actor that waits for resources is a PendingSpawn of the machine: it has no id and no record yet.)

/// Who asked for something, and under which number. The number makes a request that is sent again (after the
/// head came back, say) the same request.
struct Requester {
  ProcessAddress from;
  std::uint64_t request = 0;
  auto operator<=>(const Requester&) const = default;
};

// What the store keeps.

struct NodeRecord {
  NodeInfo node;
  bool dead = false;  ///< kept so that a dead id stays refused after the head itself restarted
  bool operator==(const NodeRecord&) const = default;
};
struct JobRecord {
  std::string name;
  std::uint32_t incarnation = 0;  ///< counts every registration under this name
  JobId job{};                    ///< the latest one
  ProcessAddress driver;
  std::uint64_t request = 0;  ///< the number under which the driver asked
  bool ended = false;
  std::string
      submission{};  ///< the submitted job whose program it is or was last, or a part of that; empty: none
  /// It has detached actors and no driver, and goes on under the next driver of its name.
  bool parked = false;
  std::string started_by{};  ///< name of the machine whose program it is; empty: the head's owner's
  bool operator==(const JobRecord&) const = default;
};
struct ActorRecord {
  ActorId actor{};
  ActorSpec spec;
  Requester requester;
  NodeId node{};
  ProcessId process{};
  ActorState state = ActorState::kStarting;
  std::vector<std::uint32_t> gpus{};  ///< which of its node's GPUs it holds, by their place in NodeInfo::gpus
  std::uint32_t incarnation = 1;      ///< its life, or the next one while it restarts; never given twice
  std::int32_t restarts = 0;          ///< that it has used up
  std::int32_t bundle = -1;           ///< of its placement group that it is in
  std::string started_by{};  ///< of a detached one: as its spawner's, or its job's when it was spawned
  std::string submission{};  ///< the same
  std::string ends_for{};    ///< why it ends, while it does
  NodeId died_on{};          ///< of a kept one that restarts: that node has what it saved last
  bool has_saved = false;    ///< of a kept one: it has a state, and no life begins without
  bool operator==(const ActorRecord&) const = default;
};
struct GroupRecord {
  GroupId group{};
  GroupSpec spec;
  Requester requester;
  GroupState state = GroupState::kWaiting;
  std::uint32_t generation = 0;        ///< counts how often bundles of it were placed
  std::vector<PlacedBundle> placed{};  ///< one entry a bundle
  bool operator==(const GroupRecord&) const = default;
};
/// Their bytes, with a version: scheduler/store/records.hpp. Append kinds; change no layout without a new
/// version.
using Record = std::variant<NodeRecord, JobRecord, ActorRecord, SubmissionRecord, GroupRecord, QueueRecord>;

// Events.

struct LiveActor {
  ActorId actor{};
  ProcessId process{};  ///< none while it is starting
  std::uint32_t incarnation = 1;
  bool waits = false;  ///< see ActorWaits
};
/// First registration, or again: after a reconnect, or when the head asked (RequestRegistration). Answered by
/// NodeAccepted or RefuseNode. The node then repeats every request that has no answer yet.
struct NodeJoined {
  NodeInfo node;
  std::vector<LiveActor> actors;      ///< what runs or is starting there now, of what the head placed
  std::vector<JobId> leases;          ///< jobs of which it holds light actors
  std::vector<NodeId> peers;          ///< nodes that it is linked with: it wants to hear of their death
  bool leaving = false;               ///< see NodeLeaving
  std::vector<HeldDriver> drivers{};  ///< submissions of which it runs a driver, or has files
  std::int64_t drain_left_ms = -1;    ///< it drains, and has so long; below 0: it does not
  std::string drain_reason{};
};
struct Heartbeat {
  NodeId node{};
};
/// A node ends its processes, and starts nothing more. NodeLeft follows when they are gone.
struct NodeLeaving {
  NodeId node{};
  std::string reason;
};
/// A node drains: it starts nothing more, and leaves when nothing runs there, or when the time is over.
struct NodeDrains {
  NodeId node{};
  std::int64_t left_ms = 0;  ///< below 0: not any more, the drain was cancelled
  std::string reason;
};
/// Said by a client of the head: drain that node, or (`cancel`) go on using it.
struct DrainRequested {
  NodeId drained{};
  std::int64_t grace_ms = 0;
  std::string reason;
  bool cancel = false;
};
/// The reason of a node that says goodbye.
inline constexpr const char* kLeftByItself = "it left";
/// A node says goodbye (its processes are gone), or its supervisor saw it die.
struct NodeLeft {
  NodeId node{};
  std::string reason;
};
struct JobRegistered {
  std::string name;
  ProcessAddress driver;
  std::uint64_t request = 0;
  std::string submission{};  ///< whose program it is, as its node knows; empty: nobody submitted it
  std::string started_by{};  ///< see JobRecord; the head's shell says it, whatever the node said
};
/// Said by the node of the job's driver.
struct JobEnded {
  NodeId node{};
  JobId job{};
  std::string reason;
  ProcessId driver{};  ///< a newer one may have the job by now
};
/// `node` may hold light actors of `job`, and is to be told when it ends. Answered by LeaseAnswered.
struct LeaseRequested {
  NodeId node{};
  JobId job{};
};
/// `node` is about to talk to `peer`. Answered by PeerAnswered; the peer is told first (ExpectPeer). From
/// then on each of the two is told of the other's death.
struct PeerWanted {
  NodeId node{};
  NodeId peer{};
};
/// Answered by NodesAnswered.
struct NodesWanted {
  Requester requester;
};
struct SpawnRequested {
  Requester requester;
  ActorSpec spec;
};
/// The requester does not want it any more, started or not.
struct SpawnCancelled {
  Requester requester;
};
struct ActorStarted {
  NodeId node{};
  ActorId actor{};
  ProcessId process{};
  std::uint32_t incarnation = 1;
};
/// The node could not start it, or its constructor threw.
struct ActorFailed {
  NodeId node{};
  ActorId actor{};
  ErrorInfo error;
  std::uint32_t incarnation = 1;
  bool not_begun = false;  ///< its node never heard of that life, or has no executable (another may have it)
};
struct ActorDown {
  NodeId node{};
  ActorId actor{};
  std::string reason;
  std::uint32_t incarnation = 1;
  bool on_purpose = false;  ///< it ended itself, and does not start again
};
/// A worker of tasks has one that waits, for an object or an answer, or has long had none, and gives its CPUs
/// to others meanwhile; or it goes on, and holds them again. The last word counts, which a node repeats when
/// it joins.
struct ActorWaits {
  NodeId node{};
  ActorId actor{};
  std::uint32_t incarnation = 1;
  bool waits = false;
};
/// The answer to ConfirmActor: it lives. One that does not is told by ActorDown or ActorFailed.
struct ActorLives {
  NodeId node{};
  ActorId actor{};
  std::uint64_t question = 0;
};
/// Answered by NameAnswered. Names are the job's own.
struct LookupActor {
  Requester requester;
  JobId job{};
  std::string name;
};
/// A process of `job` on `node` wants `actor` gone. Of the same job only. With a number it is answered by
/// Acknowledged, and repeated until then.
struct KillRequested {
  NodeId node{};
  JobId job{};
  ActorId actor{};
  std::string reason;
  ProcessId process{};        ///< which asks
  std::uint64_t request = 0;  ///< 0: it wants no answer
};
/// A process of `job` on `node` calls `actor`, which may be started again: the node wants to hear where it
/// is, now and whenever that changes. Answered by ActorPlaced.
struct ResolveActor {
  NodeId node{};
  JobId job{};
  ActorId actor{};
};
/// The answer to ArgumentsWanted. Not kept: whoever spawned it is gone.
struct ActorArguments {
  Requester requester;
  ActorId actor{};
  bool kept = false;
  std::string payload;
  NodeId node{};  ///< which says so
  SavedState state{};
};
/// A life of a kept actor has saved its state, for the next one. Answered by Acknowledged, and repeated until
/// then.
struct StateSaved {
  Requester requester;
  ActorId actor{};
  std::uint32_t incarnation = 1;
  SavedState state;
};
/// The answer to KeepState and, with a state, to KeepArguments: `node` has that state, or a newer one.
struct StateKept {
  NodeId node{};
  ActorId actor{};
  std::uint64_t version = 0;
};
/// A process of that job makes a placement group, or asks about one. Answered by GroupAnswered; one that it
/// awaits and that waits, by SpawnWaits before.
struct GroupRequested {
  Requester requester;
  JobId job{};
  GroupVerb verb = GroupVerb::kShow;
  GroupId group{};  ///< none: kMake, or kShow by the name in `spec`
  GroupSpec spec{};
};
struct Tick {};
/// The store's records, before any other event of a head that starts again.
struct Restored {
  std::vector<Record> records;
};

struct ClusterEvent
    : OneOf<NodeJoined, Heartbeat, NodeLeft, JobRegistered, JobEnded, SpawnRequested, SpawnCancelled,
            ActorStarted, ActorFailed, ActorDown, ActorLives, LeaseRequested, PeerWanted, NodesWanted,
            LookupActor, KillRequested, Tick, Restored, NodeLeaving, SubmissionRequested,
            SubmissionStopRequested, DriverStarted, DriverEnded, ResolveActor, ActorArguments, NodeDrains,
            DrainRequested, GroupRequested, QueueChanged, StateSaved, StateKept, ActorWaits> {
  using OneOf::OneOf;
  ClusterEvent();
  ClusterEvent(const ClusterEvent&);
  ClusterEvent(ClusterEvent&&) noexcept;
  ClusterEvent& operator=(const ClusterEvent&);
  ClusterEvent& operator=(ClusterEvent&&) noexcept;
  ~ClusterEvent();
};

// Actions: to be carried out in the order given.

/// Make `record` durable under `key` before any later action of the list is carried out.
struct Persist {
  std::string key;  ///< "node/1f", "job/mnist", "actor/3c"
  Record record;
};
/// Forget `key`.
struct Erase {
  std::string key;
};
/// To `node`. May be sent again: a node that has (or had) this actor ignores it.
struct StartActor {
  NodeId node{};
  ActorId actor{};
  ActorSpec spec;
  std::string reason;               ///< why there
  std::vector<std::string> gpus{};  ///< what its process sees as CUDA_VISIBLE_DEVICES
  std::uint32_t incarnation = 1;
  /// The job's driver, which gets its output, and a node that has the executable; without the latter both are
  /// as its payload says, but that a detached actor's driver is this one.
  ProcessAddress driver{};
  NodeId package_from{};
  SavedState state{};  ///< of the lives before
};
struct KillActor {
  NodeId node{};
  ActorId actor{};
  std::string reason;
  std::uint32_t incarnation = 1;
};
/// Ask the actor's process whether it lives: somebody wants its name, who may have heard of its end before
/// the head.
struct ConfirmActor {
  NodeId node{};
  ActorId actor{};
  std::uint64_t question = 0;
  std::uint32_t incarnation = 1;
};
/// It waits for resources; why, if it asks for GPUs. Said once, when it begins to wait.
struct SpawnWaits {
  Requester to;
  std::string reason;
};
struct SpawnAnswered {
  Requester to;
  bool ok = false;
  ActorId actor{};
  ProcessAddress address;
  ErrorInfo error;     ///< if not ok
  std::string reason;  ///< the placement's sentence
};
struct NameAnswered {
  Requester to;
  bool ok = false;
  ActorId actor{};
  ProcessAddress address;
  ErrorInfo error;
};
struct JobAnswered {
  ProcessAddress to;
  std::uint64_t request = 0;
  JobId job{};  ///< none: refused, see `error`
  std::uint32_t incarnation = 0;
  std::string reason;
  ErrorInfo error;
};
/// To `node`: it is a member now.
struct NodeAccepted {
  NodeId node{};
};
struct LeaseAnswered {
  NodeId to{};
  JobId job{};
  bool ok = false;
  std::string reason;
  ProcessAddress driver{};  ///< of the job, now
};
/// To `to`: `peer` will connect, with that key.
struct ExpectPeer {
  NodeId to{};
  NodeInfo peer;
};
struct PeerAnswered {
  NodeId to{};
  bool ok = false;
  NodeInfo peer;       ///< with its id alone if not ok
  std::string reason;  ///< why it is no live node, if not ok: its actors are dead
};
struct NodesAnswered {
  Requester to;
  std::vector<NodeInfo> nodes;
};
/// To `to`, which wanted to hear of it: close connections to `node`, end what depends on it.
struct NodeDead {
  NodeId to{};
  NodeId node{};
  std::string reason;
};
/// To `to`, which holds actors of it or its driver: kill the job's workers.
struct EndJob {
  NodeId to{};
  JobId job{};
  std::string reason;
  std::vector<ActorId> stays{};  ///< but not those of these: the job is parked
  bool is_recorded = true;       ///< else the head may forget it when it dies: JobEnded is repeated
};
/// To `to`, which holds detached actors of that job: it has a driver again, which gets their output.
struct JobTaken {
  NodeId to{};
  JobId job{};
  ProcessAddress driver;
};
/// To `to`: keep what that actor is constructed with, its state, and the executable that `from` has, until it
/// has ended.
struct KeepArguments {
  NodeId to{};
  JobId job{};
  ActorId actor{};
  std::string payload;
  NodeId from{};
  SavedState state{};
};
/// To `to`, which keeps that actor's arguments: keep this state, too. Answered by StateKept.
struct KeepState {
  NodeId to{};
  ActorId actor{};
  SavedState state;
};
/// Tell a peer that it is dead here: it kills its workers and may join under a new id.
struct RefuseNode {
  NodeId node{};
  std::string reason;
};
/// Ask a node to send NodeJoined again.
struct RequestRegistration {
  NodeId node{};
  std::string reason;
};

/// To `node`: its heartbeat was heard. Said at once, whatever else waits: a node that hears none is cut off.
struct HeartbeatAnswered {
  NodeId node{};
};

enum class ActorLife : std::uint8_t { kLives, kRestarts, kEnded };
constexpr ActorLife troupe_last(ActorLife) {
  return ActorLife::kEnded;
}
/// Where an actor is that is started again when it dies.
struct ActorPlace {
  ActorId actor{};
  std::uint32_t incarnation = 0;  ///< while it restarts: of the next life
  ActorLife life = ActorLife::kEnded;
  ProcessAddress process;  ///< if it lives
  std::string reason;      ///< if it does not: of what the last life died
  std::int32_t max_task_retries = 0;
};
/// To `to`, which asked where that actor is: at once, and whenever it moves.
struct ActorPlaced {
  NodeId to{};
  ActorPlace place;
};
/// To the node of whoever spawned `actor`: what it is constructed with is needed once more.
struct ArgumentsWanted {
  Requester to;
  ActorId actor{};
  NodeId node{};  ///< goes to this one instead, which may keep it
};

/// To `node`: drain, or (grace below 0) go on. Answered by NodeDrains.
struct DrainNode {
  NodeId node{};
  std::int64_t grace_ms = 0;
  std::string reason;
};
/// To the node of whoever spawned `actor`: its node drains, and the actor dies with it unless it ends before;
/// or (`stays`) it does not any more. Of a worker of tasks, too: others have waited for its room.
struct ActorLeaves {
  Requester to;
  ActorId actor{};
  std::string reason;
  bool stays = false;
  bool for_others = false;  ///< it gets no further task, and is given back after the one that it runs
};

/// A placement group, and why it is where it is, or waits.
struct GroupStatus {
  GroupRecord record;
  std::string reason;
};
struct GroupAnswered {
  Requester to;
  bool ok = false;
  GroupStatus status;
  ErrorInfo error;  ///< if not ok
};
/// What was asked for stands, whatever dies from now on: an actor has no other life, or its next one this
/// state.
struct Acknowledged {
  Requester to;
  bool ok = false;
  ErrorInfo error;  ///< if not ok
};

struct ClusterAction
    : OneOf<Persist, Erase, StartActor, KillActor, ConfirmActor, SpawnAnswered, NameAnswered, JobAnswered,
            NodeAccepted, LeaseAnswered, ExpectPeer, PeerAnswered, NodesAnswered, NodeDead, EndJob,
            RefuseNode, RequestRegistration, SpawnWaits, HeartbeatAnswered, StartDriver, StopDriver,
            DriverSettled, ForgetSubmission, ActorPlaced, ArgumentsWanted, DrainNode, ActorLeaves,
            GroupAnswered, JobTaken, KeepArguments, Acknowledged, KeepState> {
  using OneOf::OneOf;
  ClusterAction();
  ClusterAction(const ClusterAction&);
  ClusterAction(ClusterAction&&) noexcept;
  ClusterAction& operator=(const ClusterAction&);
  ClusterAction& operator=(ClusterAction&&) noexcept;
  ~ClusterAction();
};

}  // namespace troupe::cluster
