/// What a run is told and what it does: the words of RunMachine, of the processes on a node, and of the
/// agents that carry both between nodes.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/error.hpp"

namespace troupe::launch {

/// One node's part of one attempt: what its ranks are told.
struct RankPlan {
  std::uint32_t attempt = 0;   ///< how often the ranks were started before, for whatever reason
  std::uint32_t restarts = 0;  ///< how often because one of them failed
  std::uint32_t max_restarts = 0;
  std::uint32_t group_rank = 0;   ///< of the node
  std::uint32_t group_world = 1;  ///< nodes
  std::uint32_t first_rank = 0;   ///< of this node's
  std::uint32_t processes = 1;    ///< on this node
  std::uint32_t world = 1;        ///< on all
  std::string master_addr;        ///< numeric address of rank 0's node, or what the user named
  std::uint16_t master_port = 0;
};

/// How a worker's process ended.
struct WorkerEnd {
  std::int32_t pid = 0;
  std::int32_t code = 0;    ///< exit code, if no signal ended it
  std::int32_t signal = 0;  ///< that ended it, or 0
  std::string error;        ///< what it left in its error file; empty: nothing
  std::string error_file;   ///< where that stays; empty: nowhere
};

// Events.

/// A node that takes `processes` ranks.
struct NodeCame {
  std::uint32_t node = 0;
  std::string name;  ///< for people; empty: this machine
  std::uint32_t processes = 1;
};
/// It is gone with all that ran on it.
struct NodeWent {
  std::uint32_t node = 0;
  std::string reason;
};
struct PortTaken {
  std::uint32_t attempt = 0;
  std::string address;
  std::uint16_t port = 0;
};
struct PortRefused {
  std::uint32_t attempt = 0;
  ErrorInfo error;
};
/// A node could not start its ranks: none of them runs.
struct NotStarted {
  std::uint32_t attempt = 0;
  std::uint32_t node = 0;
  ErrorInfo error;
};
struct WorkerEnded {
  std::uint32_t attempt = 0;
  std::uint32_t node = 0;
  std::uint32_t local_rank = 0;
  WorkerEnd end;
};
/// The launcher was told to end, or (SIGPIPE) nobody reads its output any more.
struct SignalCame {
  std::int32_t signal = 0;
};
/// No node comes any more.
struct NoMoreNodes {
  std::string reason;
};
/// Output of ranks was lost: a full disk.
struct OutputFailed {
  ErrorInfo error;
};
/// The beginning of a rank's log is gone: the newest `kept_bytes` of it stay.
struct OutputTrimmed {
  std::uint32_t node = 0;
  std::string file;
  std::uint64_t kept_bytes = 0;
};
/// Time has passed (RunMachine::wakes_at).
struct Tick {};
using RunEvent = std::variant<NodeCame, NodeWent, PortTaken, PortRefused, NotStarted, WorkerEnded, SignalCame,
                              NoMoreNodes, Tick, OutputFailed, OutputTrimmed>;

// Actions.

/// Hold a port on that node, for rank 0 to listen at: PortTaken or PortRefused follows.
struct TakePort {
  std::uint32_t attempt = 0;
  std::uint32_t node = 0;
};
/// Start the node's ranks: a WorkerEnded for each follows, or NotStarted.
struct StartWorkers {
  std::uint32_t node = 0;
  RankPlan plan;
};
/// Send the process group of each of the node's ranks that run a signal.
struct SignalWorkers {
  std::uint32_t attempt = 0;
  std::uint32_t node = 0;
  std::int32_t signal = 0;
};
/// Tell the user why.
struct Say {
  std::string text;
};
/// Nothing runs any more. May come again with another code.
struct EndRun {
  std::int32_t code = 0;
};
using RunAction = std::variant<TakePort, StartWorkers, SignalWorkers, Say, EndRun>;

}  // namespace troupe::launch
