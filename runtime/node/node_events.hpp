/// What a NodeMachine is told (events), and what it asks its shell to do (actions). Plain aggregates.
///
/// A descriptor never appears here: a region, a ring, an executable or a worker has a number or a name, and
/// the shell attaches what belongs to it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/one_of.hpp"
#include "runtime/core/result.hpp"
#include "runtime/node/memory_watch.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe::node {

/// A region of shared memory on this node: never used again once it is dropped.
using RegionId = Id<struct RegionTag>;

/// What a process that this node started asked for, and has.
struct MemoryClaim {
  ProcessId process{};  ///< a worker; none: a submission's program
  std::string submission;
  std::int32_t attempt = 0;  ///< of that
  MemoryUse use;
  std::int64_t pid = -1;  ///< as the shell knows it
};

// Events.

/// A connection to the head is there: it is told who we are, and again what it has not answered.
struct HeadConnected {};
struct HeadLost {
  std::string why;
};
/// There was no connection for that TellHead any more.
struct HeadUnsent {
  cluster::ClusterEvent event;
};
/// The head's handshake refused our key.
struct HeadRefused {
  std::string why;
};
/// Nobody has answered at the head's address yet; it is tried again.
struct HeadUnreachable {
  std::string why;
};
struct HeadSaid {
  cluster::ClusterAction action;
};
/// The link to whoever started this node is a driver's from now on.
struct DriverAttached {};
/// A control message of a local process to its node; `fds` descriptors came with it.
struct LocalSaid {
  ProcessId process;
  wire::Control message;
  std::size_t fds = 0;
};
/// A local process broke the protocol (a frame that does not decode, or Verdict::kBreach).
struct LocalBroke {
  ProcessId process;
  std::string why;
};
struct WorkerNotStarted {
  ProcessId process;
  ErrorInfo error;
};
/// Whole lines of a worker's output.
struct WorkerWrote {
  ProcessId process;
  bool error = false;
  std::string text;
};
/// A process is about to end, as its lock or its link tells. Its memory may still be in use.
struct ProcessEnding {
  ProcessId process;
  std::string how;  ///< "killed by signal 9 (SIGKILL)", "exit code 3"
};
/// The answer to DrainOutput.
struct OutputDrained {
  ProcessId process;
  std::string last_line;  ///< that it wrote to standard error; empty: none
};
/// The answer to a look at NodeMachine::memory_claims, which took its time.
struct MemoryMeasured {
  NodeMemory node;
  std::vector<MemoryClaim> claims;  ///< with what each has
};
/// A process is gone, and was reaped if it was a child.
struct ProcessEnded {
  ProcessId process;
  std::string how;
};
/// The answer to MakeRegion.
struct RegionMade {
  RegionId region;
  std::optional<ErrorInfo> error;
};
/// The answer to MakeRing.
struct RingMade {
  ProcessId first;
  ProcessId second;
  std::uint64_t request = 0;
  std::optional<ErrorInfo> error;
};
/// Our connection to a peer is up: what we send arrives.
struct PeerConnected {
  NodeId node;
};
/// Our connection to a peer could not be made at all: its address or key is no good.
struct PeerUnusable {
  NodeId node;
  ErrorInfo error;
};
/// A peer connected to us; a connection that it had before has ended.
struct PeerCameIn {
  NodeId node;
};
/// A connection with a peer ended: ours to it (`outgoing`, tried again by itself), or its own to us.
struct PeerLost {
  NodeId node;
  bool outgoing = true;
  std::string why;
};
/// The peer says that something we wait for may never come (its TellIncoming).
struct PeerFailed {
  NodeId node;
  std::string why;
};
/// A control message of a peer's node or process, for this node or (Output) for one of its processes.
struct PeerSaid {
  wire::FrameHeader header;
  wire::Control message;
};
/// The answer to TakePart; and of each of ExecutablesFound whether it is here now.
struct PartTaken {
  std::string hash;
  std::uint64_t next = 0;  ///< first byte that is missing
  bool whole = false;
  std::optional<ErrorInfo> error;
};
/// So much waits for a process that does not read that it has to go; see Overflow.
struct LocalStuck {
  ProcessId process;
  std::size_t bytes = 0;
};
/// The same of a peer.
struct PeerStuck {
  NodeId node;
  std::size_t bytes = 0;
};
/// Submissions of which the node had files when it began.
struct JobFilesFound {
  std::vector<std::string> ids;
};
/// Executables that the node before this one kept, and that are being read.
struct ExecutablesFound {
  std::vector<std::string> hashes;
};
/// The answer to UnpackJob.
struct JobUnpacked {
  std::string id;
  bool is_missing = false;  ///< the package is not here
  std::optional<ErrorInfo> error;
};
/// A piece of a job's package, from the head.
struct HeadGavePart {
  wire::PackagePart part;
};
/// The answer to TakeJobPart.
struct JobPartTaken {
  std::string package;
  std::uint64_t next = 0;  ///< first byte that is missing
  bool whole = false;
  std::optional<ErrorInfo> error;
};
/// The answers to StartProgram.
struct ProgramStarted {
  std::string id;
  std::int32_t attempt = 0;
};
struct ProgramNotStarted {
  std::string id;
  std::int32_t attempt = 0;
  ErrorInfo error;
};
/// It is gone and reaped, what it left behind was ended, and all that it wrote is kept.
struct ProgramEnded {
  std::string id;
  std::int32_t attempt = 0;
  std::int32_t code = 0;
  std::int32_t signal = 0;  ///< that killed it; 0: none
  bool for_memory = false;  ///< the kernel did, since that ran out
};
/// A process of a submission's program wants to be its driver. Answered by AdoptDriver or DropKnock.
struct DriverKnocked {
  std::uint64_t connection = 0;
  std::string id;
  wire::DriverHello hello;
};
/// End: the launcher is gone, or a signal says so.
struct LeaveAsked {
  std::string reason;
};
/// Leave when nothing runs here any more, or when that time is over: this machine wants it so.
struct DrainAsked {
  Duration grace{};
  std::string reason;
};
/// Every second.
struct Tick {};

struct NodeEvent
    : OneOf<HeadConnected, HeadLost, HeadUnsent, HeadRefused, HeadUnreachable, HeadSaid, DriverAttached,
            LocalSaid, LocalBroke, WorkerNotStarted, WorkerWrote, ProcessEnding, OutputDrained, ProcessEnded,
            RegionMade, RingMade, PeerConnected, PeerUnusable, PeerCameIn, PeerLost, PeerFailed, PeerSaid,
            PartTaken, LocalStuck, PeerStuck, LeaveAsked, Tick, JobFilesFound, ProgramStarted,
            ProgramNotStarted, ProgramEnded, DriverKnocked, JobUnpacked, HeadGavePart, JobPartTaken,
            DrainAsked, MemoryMeasured, ExecutablesFound> {
  using OneOf::OneOf;
  NodeEvent();
  NodeEvent(const NodeEvent&);
  NodeEvent(NodeEvent&&) noexcept;
  NodeEvent& operator=(const NodeEvent&);
  NodeEvent& operator=(NodeEvent&&) noexcept;
  ~NodeEvent();
};

// Actions: to be carried out in the order given. An action on a process or peer that is gone does nothing.

/// What travels beside a message to a local process.
struct Attach {
  enum Kind { kNothing, kLifeLock, kRegion } kind = kNothing;
  RegionId region{};
};
struct SendLocal {
  ProcessId process;
  wire::Control message;
  Attach attach;
};
/// As `from` (process 0: this node) to `to`. `hold`: behind the frames that wait for the connection.
struct SendPeer {
  ProcessAddress to;
  wire::Control message;
  ProcessId from{};
  JobId job{};
  bool hold = false;
};
struct TellHead {
  cluster::ClusterEvent event;
};
/// Answered by WorkerNotStarted if it fails; else by what the worker does.
struct StartWorker {
  ProcessId process;
  std::string label;
  std::string package;  ///< as package_name() has it; empty: our own
  /// All the GPUs that it sees, as CUDA_VISIBLE_DEVICES names them.
  std::vector<std::string> gpus{};
  ProcessAddress driver{};  ///< whose worker it is
  JobId job{};
};
/// The link to whoever started this node is that driver's from now on.
struct AdoptDriver {
  ProcessId process;
  std::uint64_t connection = 0;  ///< or this one's, with the executable that came with its hello
  std::string package{};         ///< that executable's hash
};
/// Its hello is good: keep the doorbell that came with it, and watch its lock.
struct Welcome {
  ProcessId process;
};
/// SIGKILL; a driver's link is closed instead.
struct KillProcess {
  ProcessId process;
  std::string reason;
};
/// Read at once what a dying worker wrote last, told by WorkerWrote and then OutputDrained. Drop its link.
struct DrainOutput {
  ProcessId process;
};
/// All that is kept about it can go.
struct ForgetProcess {
  ProcessId process;
  std::string reason{};  ///< for which it ended
};
/// That life of an actor is in that process from now on.
struct ActorBegins {
  ActorId actor;
  std::uint32_t incarnation = 1;
  ProcessId process;
  std::string name{};
};
/// Keep the lines, and do not read that pipe of the worker: its driver takes none now.
struct HoldOutput {
  ProcessId process;
  bool error = false;
  std::string text;
};
/// Tell again, by WorkerWrote, of the lines that were kept.
struct RetryOutput {};
/// Makes a ring's memory and sends each end its offer with it; `offer_to_second` first. Answered by RingMade.
struct MakeRing {
  ProcessId first;
  ProcessId second;
  std::uint64_t request = 0;
  wire::RingOffer offer_to_first;
  wire::RingOffer offer_to_second;
};
/// Makes sparse, sealed memory and touches no page of it. Answered by RegionMade.
struct MakeRegion {
  RegionId region;
  std::string name;
  std::uint64_t bytes = 0;
  RegionId instead_of;  ///< this one's memory becomes it, if nobody uses that any more; it has as many bytes
};
struct DropRegion {
  RegionId region;
};
/// Sets the abort words of these regions.
struct AbortRegions {
  std::vector<RegionId> regions;
  std::string reason;
};
/// Lets the peer in by its key, under its id's name.
struct AllowPeer {
  NodeId node;
  std::string public_key;
};
struct RevokePeer {
  NodeId node;
  std::string public_key;
};
struct ConnectPeer {
  cluster::NodeInfo peer;
};
struct DisconnectPeer {
  NodeId node;
};
/// Tells the node that is connected to us, over that connection, that what it waits for may never come:
/// NodeLost of this node. There is no other way when it can reach us and we cannot reach it.
struct TellIncoming {
  NodeId node;
  std::string reason;
};
/// Send what was held for a peer.
struct ReleaseHeld {
  NodeId node;
};
/// Drop what was held for a peer; who waits for an answer to it gets `error`.
struct RefuseHeld {
  NodeId node;
  ErrorInfo error;
};
/// Read that piece of the executable and send it to the node (a part with total 0 if it cannot be read).
struct GivePart {
  NodeId to;
  wire::PackageAsk ask;
  bool own = false;  ///< of our own executable
  bool hold = false;
};
/// Append the piece to the download of its hash. Answered by PartTaken.
struct TakePart {
  wire::PackagePart part;
};
/// Drop the executable of that hash, or what came of it.
struct ForgetPackage {
  std::string hash;
};
/// Have the executable of that hash on the disk, too, until it is forgotten: the node that is started after
/// this one was killed has it then.
struct KeepExecutable {
  std::string hash;
};
/// Drop the link to the head, and connect again on sockets and threads of their own: the present ones may be
/// stuck.
struct ConnectHeadAnew {};
/// Have there what travels with a submission's program: unpacked from its package, if that is here, or kept
/// from an earlier attempt. Answered by JobUnpacked, after a while.
struct UnpackJob {
  cluster::SubmissionSpec spec;
};
/// Ask the head for that piece of a job's package. No answer finds no link: it is asked again.
struct AskJobPart {
  wire::PackageAsk ask;
};
/// Append the piece to its package. Answered by JobPartTaken, after a while.
struct TakeJobPart {
  wire::PackagePart part;
};
struct DropJobPackage {
  std::string package;
};
/// Starts a submission's program, with its output to files. Answered by ProgramStarted or ProgramNotStarted,
/// at once.
struct StartProgram {
  cluster::SubmissionSpec spec;
  std::int32_t attempt = 0;
  std::vector<std::string> gpus{};  ///< all that it sees, as CUDA_VISIBLE_DEVICES names them
};
/// To its process group.
struct SignalProgram {
  std::string id;
  int signal = 0;
};
/// SIGKILL to its process group and to all that it left elsewhere.
struct KillProgram {
  std::string id;
};
/// Output and files of a submission.
struct RemoveJobFiles {
  std::string id;
};
struct DropKnock {
  std::uint64_t connection = 0;
  std::string reason;
};
/// Once: this node is a member, or never will be.
struct TellMember {
  Result<void> joined;
};
/// All is said and done: stop.
struct EndLoop {};
struct Log {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

struct NodeAction
    : OneOf<SendLocal, SendPeer, TellHead, StartWorker, AdoptDriver, Welcome, KillProcess, DrainOutput,
            ForgetProcess, HoldOutput, RetryOutput, MakeRing, MakeRegion, DropRegion, AbortRegions, AllowPeer,
            RevokePeer, ConnectPeer, DisconnectPeer, TellIncoming, ReleaseHeld, RefuseHeld, GivePart,
            TakePart, ForgetPackage, KeepExecutable, TellMember, EndLoop, Log, ConnectHeadAnew, StartProgram,
            SignalProgram, KillProgram, RemoveJobFiles, DropKnock, UnpackJob, AskJobPart, TakeJobPart,
            DropJobPackage, ActorBegins> {
  using OneOf::OneOf;
  NodeAction();
  NodeAction(const NodeAction&);
  NodeAction(NodeAction&&) noexcept;
  NodeAction& operator=(const NodeAction&);
  NodeAction& operator=(NodeAction&&) noexcept;
  ~NodeAction();
};
using Actions = std::vector<NodeAction>;

}  // namespace troupe::node
