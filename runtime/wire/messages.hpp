/// Every control message, in one place. Calls and replies are frames of their own kind (frame.hpp);
/// everything else that processes, nodes and the head say to each other is one of these, as a control frame
/// with the message's number.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/one_of.hpp"
#include "runtime/wire/cluster.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe::wire {

/// What an ActorSpec's payload holds: opaque to the head, which never stores it (it may hold a secret), read
/// by the node and the process that start the actor.
struct ActorPayload {
  std::uint64_t constructor = 0;  ///< id in the registry
  std::string label;              ///< prefix of its process's output: "trainer 0"
  ProcessAddress driver;          ///< where its process's output goes
  std::string package;            ///< as package_name() has it; empty: the node's own
  Bytes args;
  std::int32_t max_concurrency = 1;  ///< methods that run at a time
  ProcessAddress owner{};  ///< keeps what it saves for its next life; none: its node does, or nobody
};

// A node and its processes.

/// Node to a process, first: who it is.
struct Configure {
  NodeId node;
  ProcessId process;
  JobId job;
  std::string label;
  std::string host;       ///< address on which its machine is reached: where a data plane listens
  std::string package;    ///< that it runs, as package_name() has it; empty: the node's own
  ProcessAddress driver;  ///< of its job: where the output of what it starts goes
};
/// A process to its node, first; with its doorbell.
struct Hello {
  std::uint8_t version = kProtocolVersion;
};
/// A sign of life, every second.
struct Pulse {};

// Requests of a process; the node answers with Answer and the same number. The job is that of the process,
// which its node knows: a process speaks for no other.

/// An actor that the head places: an isolated one, one that holds CPUs, or one with a name.
struct SpawnAsk {
  std::uint64_t request = 0;
  cluster::ActorSpec spec;
};
/// Nobody waits for the answer of that request any more: the actor is not wanted.
struct SpawnCancel {
  std::uint64_t request = 0;
};
/// A process on `node` in which this job may construct light actors by kSpawn frames, without asking again.
/// The node starts it first if need be, from `package`, with its output to `driver`. Answer: LeaseAnswer.
struct LeaseAsk {
  std::uint64_t request = 0;
  NodeId node;
  std::string package;
  ProcessAddress driver;
};
struct LeaseAnswer {
  ProcessAddress process;
};
struct JobAsk {
  std::uint64_t request = 0;
  std::string name;
};
/// Of a spawn that has no answer yet: it waits for resources, and why.
struct SpawnWaits {
  std::uint64_t request = 0;
  std::string why;
};
/// The driver's goodbye: the job has ended, with all it started.
struct JobEnd {
  std::string reason;
};
struct RingAsk {
  std::uint64_t request = 0;
  ProcessId peer;
};
/// The shared memory named `key` on this node and in this job, made if it is not there.
struct RegionAsk {
  std::uint64_t request = 0;
  std::string key;
  std::uint64_t bytes = 0;
  std::string label;       ///< the member, as named when it dies
  bool abortable = false;  ///< starts with an abort word, which the node sets when a member dies
};
/// The live nodes, as the head has them. Answer: NodesAnswer.
struct NodesAsk {
  std::uint64_t request = 0;
};
/// The living actor of that name in this job. Answer: SpawnAnswer.
struct FindAsk {
  std::uint64_t request = 0;
  std::string name;
};
/// Makes a placement group, or asks about one: see cluster::GroupRequested. Answer: GroupAnswer.
struct GroupAsk {
  std::uint64_t request = 0;
  cluster::GroupVerb verb = cluster::GroupVerb::kShow;
  GroupId group;
  cluster::GroupSpec spec;
};
struct GroupAnswer {
  cluster::GroupStatus status;
};
struct Answer {
  std::uint64_t request = 0;
  bool ok = false;
  ErrorInfo error;
  Bytes value;  ///< encoded; by the request: SpawnAnswer, JobAnswer, ...
};
struct SpawnAnswer {
  ActorAddress address;
};
struct JobAnswer {
  JobId job;
  std::uint32_t incarnation = 0;
};
struct NodesAnswer {
  std::vector<cluster::NodeInfo> nodes;
};
struct RegionDrop {
  std::string key;
};
/// End an actor that the head placed, wherever it is: an isolated one's process is killed. Goes to the head,
/// which repeats it until the actor's node has done it, and to the node at once, unless the actor may be
/// started again: then the head alone decides. With a number the head answers once that is durable.
struct KillAsk {
  ActorAddress actor;
  std::string reason;
  std::uint64_t request = 0;  ///< 0: without an answer
};
/// A ring shared with another process of the node; with the ring's memory and the peer's doorbell.
struct RingOffer {
  ProcessId peer;
  JobId job;           ///< of the peer
  bool first = false;  ///< which direction is the receiver's to write
};
struct StartActorHere {
  ActorId actor;
  bool isolated = false;
  std::uint64_t constructor = 0;
  Bytes args;
  std::int32_t max_concurrency = 1;
  std::uint32_t incarnation = 1;
  ProcessAddress owner{};        ///< keeps what it saves
  bool is_kept = false;          ///< its node does (SaveAsk)
  std::optional<Bytes> state{};  ///< of the life before, of one that its node keeps
};
/// What that actor, which its node keeps, has saved. Answered, with nothing, once its next life has it
/// whichever process or node dies.
struct SaveAsk {
  std::uint64_t request = 0;
  ActorId actor;
  Bytes state;
};
struct StopActor {
  ActorId actor;
  std::string reason;
};
// A process about the actors that its node started in it by StartActorHere (light actors by kSpawn are its
// own affair: who monitors one asked the process).
struct ActorUp {
  ActorId actor;
};
/// Node to process, and back if the actor lives; else ActorEnded comes back.
struct ConfirmActor {
  ActorId actor;
  std::uint64_t question = 0;
};
struct ActorNotUp {
  ActorId actor;
  ErrorInfo error;
};
/// A worker of tasks to its node: the one that it runs waits, or it has none, and needs its CPUs no longer;
/// or it goes on. Node to it: they stay its own, since so many `others` of the node have given theirs away.
struct TaskWaits {
  bool waits = false;
  std::uint64_t others = 0;
};
struct ActorEnded {
  ActorId actor;
  std::string reason;
  bool on_purpose = false;  ///< it ended itself; else its process ends
};
// To processes that may have calls or monitors there: all of this node, and by the nodes that this one is
// linked with.
struct ProcessDown {
  ProcessAddress process;
  std::string reason;
};
/// Every actor of that node is dead.
struct NodeDown {
  NodeId node;
  std::string reason;
};
/// The link to that node broke: what was under way may or may not have arrived (Unavailable). It is no death.
struct NodeLost {
  NodeId node;
  std::string reason;
};
/// Lines that a worker wrote, on their way to its driver.
struct Output {
  std::string label;
  bool error = false;  ///< standard error
  std::string text;    ///< whole lines
  NodeId node{};       ///< where the worker is: OutputTaken goes there
};
/// A driver has written so much of that node's Output: there is room for more in the node's window. Driver to
/// its node, which passes it on.
struct OutputTaken {
  ProcessAddress driver;
  NodeId node;
  std::uint64_t bytes = 0;
};
/// Node to the process that spawned `actor`: see cluster::ActorLeaves.
struct ActorLeaves {
  ActorId actor;
  std::string reason;
  bool stays = false;
  bool for_others = false;
};
/// Node to a process: end now. Driver to its node: all of this cluster is to end.
struct Leave {
  std::string reason;
  bool is_drained = false;  ///< node to its launcher: it has left for good, and is not started again
};
/// Launcher to its node: leave when nothing runs there, or when that time is over.
struct Drain {
  std::int64_t grace_ms = 0;
  std::string reason;
};

// The launcher and what it starts.

/// A head's or node's configuration arrives over its inherited link; with the key bundle's descriptor.
struct HeadConfig {
  std::string address;        ///< host:port to listen on; port 0 for any
  std::string folder;         ///< of its store
  std::string advertised;     ///< host under which other machines reach it; empty: the one it listens on
  std::int32_t launcher = 0;  ///< the process with which the folder goes; 0: it stays
};
struct NodeConfig {
  NodeId id;
  std::string name;
  std::string head;     ///< host:port
  std::string address;  ///< host:port for other nodes; port 0 for any
  std::int64_t cpu_e4 = 0;
  bool gateway = false;
  bool hosts_driver = false;     ///< the launcher's link is also a driver's
  std::string temporary_folder;  ///< of the cluster's head; removed when head and launcher are gone
  std::int32_t launcher = 0;
  std::string package;         ///< its own, which it gives to other nodes; empty: it gives nothing
  std::int32_t gpus = -1;      ///< that it offers; below 0: all that there are for it
  std::int32_t gpu_part = 0;   ///< of the machine's GPUs it may have each gpu_parts-th, from this one on
  std::int32_t gpu_parts = 1;  ///< nodes that share the machine
  std::int64_t drain_ms = 0;   ///< SIGTERM drains it within that time; 0: it leaves at once
  std::string folder{};        ///< where it keeps files and output of submitted jobs; empty: it runs none
  std::int64_t memory = -1;    ///< bytes that it offers; below 0: a share of what it may use
  cluster::OtherResources other{};  ///< custom resources and labels that it offers
};
struct Ready {
  std::string address;  ///< where it listens
};
struct NotReady {
  ErrorInfo error;
};

// Nodes and the head.

struct ToHead {
  cluster::ClusterEvent event;
};
struct FromHead {
  cluster::ClusterAction action;
};

// Asking the head: whoever has a key of the cluster and is no node.

/// A guest that came in with a join token brings the permanent key of its folder, and is let in with it from
/// then on.
struct EnrollAsk {
  std::uint64_t request = 0;
  std::string public_key;
};
/// The holder of a permanent key brings a node: an id and a key for one start of it.
struct AdmitAsk {
  std::uint64_t request = 0;
  NodeId node;
  std::string public_key;
};
/// The head's owner wants a join token.
struct TokenAsk {
  std::uint64_t request = 0;
  std::uint32_t lifetime_s = 0;
};
struct TokenAnswer {
  std::string token;
};
/// The head's owner wants to know who is let in for good, or has a machine shut out, with all nodes that it
/// brought. The answer to the latter is empty.
struct KeysAsk {
  std::uint64_t request = 0;
};
struct KeyRemoveAsk {
  std::uint64_t request = 0;
  std::string name;
};
struct KeyEntry {
  std::string name;  ///< "machine/...", or a node's id
  std::string public_key;
  std::string brought_by;  ///< name of who brought it; empty: a join token
};
struct KeysAnswer {
  std::vector<KeyEntry> keys;
};
struct StatusAsk {
  std::uint64_t request = 0;
};
/// A node by its name or id; by its own machine, or by the head's owner. Asked again and again it says how
/// far it is. Answer: DrainAnswer.
struct DrainAsk {
  std::uint64_t request = 0;
  std::string node;
  std::int64_t grace_ms = 0;
  bool cancel = false;
  bool only_asks = false;  ///< how far it is; changes nothing
};
struct DrainAnswer {
  NodeId node;
  std::string name;
  bool is_gone = false;  ///< no live node has that name or id
  bool drains = false;   ///< or leaves
  std::string why;       ///< what it waits for, or how it died; empty: nothing, or it left by itself
};
struct NodeStatus {
  cluster::NodeInfo node;
  std::int64_t cpu_used_e4 = 0;
  std::int64_t gpu_used_e4 = 0;  ///< of all its GPUs together
  std::int32_t actors = 0;
  /// "alive", "silent", "expected" (the head came back and it did not say hello yet), "draining", "leaving"
  std::string state;
  std::string why{};                      ///< of one that drains: what it waits for
  cluster::ResourceAmounts other_used{};  ///< memory and custom resources that are held
};
struct ActorStatus {
  cluster::ActorRecord record;  ///< without its payload
  std::string reason;           ///< why it is where it is
};
/// Upper bounds of the times that HeadFigures::write_times counts, in seconds; one more is above all of them.
inline constexpr double kWriteBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                                          0.025,  0.05,    0.1,    0.25,  0.5,    1,     2.5};
/// What the head has done since it started.
struct HeadFigures {
  std::uint64_t messages = 0, message_bytes = 0;  ///< that it received
  std::uint64_t changes = 0;                      ///< durable in its store
  /// Writes to the store, each with its sync, by how long they took.
  std::vector<std::uint64_t> write_times{};
  std::int64_t write_ns = 0;  ///< all of them together
  std::uint64_t held = 0;     ///< messages that wait for the store now
};
struct StatusAnswer {
  std::string address;  ///< where the head is reached
  std::vector<NodeStatus> nodes;
  std::vector<cluster::JobRecord> jobs;
  std::vector<ActorStatus> actors;
  std::vector<std::string> waiting;  ///< spawns that no node can hold now, and why
  std::vector<cluster::GroupStatus> groups{};
  HeadFigures head{};
};

// Packages.

/// A node asks the node of a job's driver for the executable, or the head for the package of a submitted job,
/// a piece at a time.
struct PackageAsk {
  std::string hash;
  std::uint64_t offset = 0;
};
struct PackagePart {
  std::string hash;
  std::uint64_t offset = 0;
  std::uint64_t total = 0;  ///< length of the whole; 0: who was asked does not have it
  Bytes bytes;
};
/// A client brings a package's next piece, or asks with none how much of it the head has. Answer:
/// PackageHeld.
struct PackagePut {
  std::uint64_t request = 0;
  PackagePart part;
};
struct PackageHeld {
  std::uint64_t next = 0;  ///< the first byte that is missing
  bool whole = false;
};

/// A node asks another one for a process that holds light actors of a job (see LeaseAsk; the numbers are the
/// asking node's own). Answered by Answer.
struct PeerLeaseAsk {
  std::uint64_t request = 0;
  JobId job;
  std::string package;
  ProcessAddress driver;
};

// Submitted jobs.

/// Sets a queue, removes it, or (neither) asks for all of them. To change one is the head's owner's alone.
/// Answer: QueuesAnswer.
struct QueuesAsk {
  std::uint64_t request = 0;
  bool set = false;
  bool remove = false;
  cluster::QueueRecord queue{};
};
struct QueuesAnswer {
  std::vector<cluster::QueueStatus> queues;
};

/// A program that a node started for a submission, over the socket that its environment names, with the
/// descriptor of its own executable. Answered by Configure: it is a driver of that node then.
struct DriverHello {
  std::uint8_t version = kProtocolVersion;
  std::string package;  ///< as package_name() has it
};
/// The holder of a permanent key brings a key for one conversation, in which many questions can be asked.
struct ClientAsk {
  std::uint64_t request = 0;
  std::string public_key;
};
/// Answer: SubmissionAnswer, once it is recorded.
struct SubmitAsk {
  std::uint64_t request = 0;
  cluster::SubmissionSpec spec;
};
struct SubmissionAsk {
  std::uint64_t request = 0;
  std::string id;
};
/// Answer: WhyAnswer.
struct WhyAsk {
  std::uint64_t request = 0;
  std::string id;
};
struct WhyAnswer {
  cluster::SubmissionRecord record;  ///< without its environment
  cluster::WaitReport report;
};
/// Answer: SubmissionAnswer; it stops, or has ended before.
struct StopSubmissionAsk {
  std::uint64_t request = 0;
  std::string id;
};
struct SubmissionAnswer {
  cluster::SubmissionRecord record;  ///< without its environment
  std::string why;                   ///< one sentence: what it waits for, or why it is in its state
};
/// The newest first, below that number (0: from the newest on).
struct SubmissionsAsk {
  std::uint64_t request = 0;
  std::uint64_t below = 0;
};
struct SubmissionsAnswer {
  std::vector<cluster::SubmissionRecord> records;  ///< without their environment
  bool more = false;
};
/// A piece of a submission's output, at an offset that counts all that was ever written, or from the
/// beginning of the segment that has it. Answer: LogPart.
struct LogAsk {
  std::uint64_t request = 0;
  std::string id;
  std::int32_t attempt = 0;  ///< 0: the latest
  std::uint64_t offset = 0;
  std::uint32_t most_bytes = 0;
  bool from_segment = false;
};
/// Head to the node that has it; answered by LogRead with the same number.
struct ReadLog {
  std::uint64_t number = 0;
  LogAsk ask;
};
/// Frames of log_frames.hpp, cut anywhere but at the front.
struct LogPart {
  std::int32_t attempt = 0;
  std::uint64_t first = 0;   ///< the oldest that is kept: all before it is gone
  std::uint64_t offset = 0;  ///< of `bytes`
  std::uint64_t end = 0;     ///< of what was written so far
  bool closed = false;       ///< nothing follows `end`
  Bytes bytes;
};
struct LogRead {
  std::uint64_t number = 0;
  bool ok = false;
  ErrorInfo error;
  LogPart part;
};

// Actors that are started again when they die.

/// Process to node: where is it, now and whenever it moves?
struct ResolveAsk {
  ActorId actor;
};
/// The answer, and every change from then on.
struct ActorAt {
  cluster::ActorPlace place;
};

struct Control
    : OneOf<Configure, Hello, Pulse, SpawnAsk, SpawnCancel, LeaseAsk, JobAsk, JobEnd, RingAsk, RegionAsk,
            NodesAsk, FindAsk, Answer, RegionDrop, KillAsk, RingOffer, StartActorHere, StopActor, ActorUp,
            ConfirmActor, ActorNotUp, ActorEnded, ProcessDown, NodeDown, NodeLost, Output, Leave, HeadConfig,
            NodeConfig, Ready, NotReady, ToHead, FromHead, PackageAsk, PackagePart, PeerLeaseAsk, EnrollAsk,
            AdmitAsk, TokenAsk, StatusAsk, SpawnWaits, OutputTaken, DriverHello, ClientAsk, SubmitAsk,
            SubmissionAsk, StopSubmissionAsk, SubmissionsAsk, LogAsk, ReadLog, LogRead, ResolveAsk, ActorAt,
            KeysAsk, KeyRemoveAsk, PackagePut, WhyAsk, ActorLeaves, Drain, DrainAsk, GroupAsk, QueuesAsk,
            SaveAsk, TaskWaits> {
  using OneOf::OneOf;
  Control();
  Control(const Control&);
  Control(Control&&) noexcept;
  Control& operator=(const Control&);
  Control& operator=(Control&&) noexcept;
  ~Control();
};

/// The body of a control frame; the header's `id` is the message's number.
Bytes encode_control(const Control& message, FrameHeader& header);
/// A whole control frame, header and body, for a link that takes messages of any length.
Bytes control_frame(const Control& message, ProcessAddress from = {}, ProcessAddress to = {});
Result<Control> decode_control(const FrameHeader& header, ByteView body);

}  // namespace troupe::wire
