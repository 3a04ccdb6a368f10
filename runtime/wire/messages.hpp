/// Every control message, in one place. Calls and replies are frames of their own kind (frame.hpp);
/// everything else that processes, nodes and the head say to each other is one of these, as a control frame
/// with the message's number.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "runtime/wire/cluster.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe::wire {

/// What an ActorSpec's payload holds: opaque to the head, which never stores it (it may hold a secret), read
/// by the node and the process that start the actor.
struct ActorPayload {
  std::uint64_t constructor = 0;  ///< id in the registry
  std::string label;              ///< prefix of its process's output: "trainer 0"
  ProcessAddress driver;          ///< where its process's output goes
  std::string package;            ///< hash of the executable; empty: the node's own
  Bytes args;
};

// A node and its processes.

/// Node to a process, first: who it is.
struct Configure {
  NodeId node;
  ProcessId process;
  JobId job;
  std::string label;
  std::string host;       ///< address on which its machine is reached: where a data plane listens
  std::string package;    ///< hash of the executable it runs; empty: the node's own
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
/// which repeats it until the actor's node has done it, and to the node at once.
struct KillAsk {
  ActorAddress actor;
  std::string reason;
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
struct ActorEnded {
  ActorId actor;
  std::string reason;
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
};
/// A driver takes no more Output for now (or again, with `on` false): whoever reads what its workers print
/// holds them back. Driver to its node, which tells the nodes that it is linked with.
struct HoldOutput {
  ProcessAddress driver;
  bool on = false;
};
/// Node to a process: end now. Driver to its node: all of this cluster is to end.
struct Leave {
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
  std::string
      package;  ///< hash of its own executable, which it gives to other nodes; empty: it gives nothing
  std::int32_t gpus = -1;      ///< that it offers; below 0: all that there are for it
  std::int32_t gpu_part = 0;   ///< of the machine's GPUs it may have each gpu_parts-th, from this one on
  std::int32_t gpu_parts = 1;  ///< nodes that share the machine
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
struct StatusAsk {
  std::uint64_t request = 0;
};
struct NodeStatus {
  cluster::NodeInfo node;
  std::int64_t cpu_used_e4 = 0;
  std::int64_t gpu_used_e4 = 0;  ///< of all its GPUs together
  std::int32_t actors = 0;
  std::string state;  ///< "alive", "silent", "expected" (the head came back and it did not say hello yet)
};
struct ActorStatus {
  cluster::ActorRecord record;  ///< without its payload
  std::string reason;           ///< why it is where it is
};
struct StatusAnswer {
  std::string address;  ///< where the head is reached
  std::vector<NodeStatus> nodes;
  std::vector<cluster::JobRecord> jobs;
  std::vector<ActorStatus> actors;
  std::vector<std::string> waiting;  ///< spawns that no node can hold now, and why
};

// Packages.

/// A node asks the node of a job's driver for the executable, a piece at a time.
struct PackageAsk {
  std::string hash;
  std::uint64_t offset = 0;
};
struct PackagePart {
  std::string hash;
  std::uint64_t offset = 0;
  std::uint64_t total = 0;  ///< length of the executable; 0: the asked node does not have it
  Bytes bytes;
};

/// A node asks another one for a process that holds light actors of a job (see LeaseAsk; the numbers are the
/// asking node's own). Answered by Answer.
struct PeerLeaseAsk {
  std::uint64_t request = 0;
  JobId job;
  std::string package;
  ProcessAddress driver;
};

using Control =
    std::variant<Configure, Hello, Pulse, SpawnAsk, SpawnCancel, LeaseAsk, JobAsk, JobEnd, RingAsk, RegionAsk,
                 NodesAsk, FindAsk, Answer, RegionDrop, KillAsk, RingOffer, StartActorHere, StopActor,
                 ActorUp, ConfirmActor, ActorNotUp, ActorEnded, ProcessDown, NodeDown, NodeLost, Output,
                 Leave, HeadConfig, NodeConfig, Ready, NotReady, ToHead, FromHead, PackageAsk, PackagePart,
                 PeerLeaseAsk, EnrollAsk, AdmitAsk, TokenAsk, StatusAsk, SpawnWaits, HoldOutput>;

/// The body of a control frame; the header's `id` is the message's number.
Bytes encode_control(const Control& message, FrameHeader& header);
/// A whole control frame, header and body, for a link that takes messages of any length.
Bytes control_frame(const Control& message, ProcessAddress from = {}, ProcessAddress to = {});
Result<Control> decode_control(const FrameHeader& header, ByteView body);

}  // namespace troupe::wire
