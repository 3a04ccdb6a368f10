/// Submitted jobs (`troupe job`): what somebody asks to have run, what the head records of it, and what head
/// and nodes say to each other about it. A *submission* is what a person calls a job; a `Job` of cluster.hpp
/// is a driver's registration, of which a submitted program may make none or several.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/ids.hpp"
#include "runtime/wire/queues.hpp"
#include "runtime/wire/resources.hpp"

namespace troupe::cluster {

/// What is to be run. The id is its client's: the same id with the same spec is the same submission, however
/// often it is asked for.
struct SubmissionSpec {
  std::string id;
  std::string name;                  ///< for people; empty for none. Of those that have not ended, one has it
  std::vector<std::string> program;  ///< the program and its arguments; never a shell's line
  std::vector<std::string> environment;  ///< NAME=VALUE each
  std::string folder;                    ///< where it runs, on its node; empty: in one of its own
  std::int64_t cpu_e4 = 0;               ///< that its driver holds while it runs, in 1/10000
  std::int64_t gpu_e4 = 0;
  std::int32_t retries = 0;  ///< how often a driver that failed is started again
  std::string package{};     ///< what travels with it: the package's id; empty: nothing
  /// The package is that program alone, of this SHA-256: a node that has such a file at program[0] needs no
  /// copy. Empty: the package is the folder in which it runs.
  std::string executable{};
  std::int32_t priority = 0;  ///< of its queue the higher starts first
  std::string queue{};        ///< empty: kDefaultQueue
  OtherResources other{};     ///< that its driver holds beside CPUs and GPUs, and labels of its node
  bool operator==(const SubmissionSpec&) const = default;
};

enum class SubmissionState : std::uint8_t {
  kQueued,    ///< waits for resources, or for its next attempt
  kStarting,  ///< its node was told
  kRunning,
  kStopping,   ///< its node was told to end it
  kSucceeded,  ///< from here on it has ended
  kFailed,
  kStopped,
};
constexpr SubmissionState troupe_last(SubmissionState) {
  return SubmissionState::kStopped;
}
constexpr bool has_ended(SubmissionState state) {
  return state >= SubmissionState::kSucceeded;
}

/// What the store keeps of a submission. Times are of the wall clock, in milliseconds, for people alone; 0:
/// not yet.
struct SubmissionRecord {
  SubmissionSpec spec;
  SubmissionState state = SubmissionState::kQueued;
  std::uint64_t number = 0;           ///< counts submissions: who came first starts first
  std::int32_t attempt = 0;           ///< of its driver, from 1 on
  NodeId node{};                      ///< of the latest attempt
  std::string node_name;              ///< the same, for people
  std::vector<std::uint32_t> gpus{};  ///< which of its node's GPUs the driver holds
  std::int64_t submitted_ms = 0;
  std::int64_t started_ms = 0;  ///< of the first attempt
  std::int64_t ended_ms = 0;
  std::int32_t exit_code = -1;  ///< of the last attempt that ended, 128 + number for a signal; -1: none
  std::string message;          ///< why it is in its state
  bool operator==(const SubmissionRecord&) const = default;
};

/// How an attempt ended.
struct DriverEnd {
  bool ran = false;             ///< the program was started
  bool again = false;           ///< it never ran, and not by its own fault: it is to start elsewhere
  std::int32_t exit_code = -1;  ///< -1: it has none
  std::int32_t signal = 0;      ///< that killed it; 0: none
  std::string how;              ///< in words
  bool operator==(const DriverEnd&) const = default;
};

/// What a node holds of a submission.
struct HeldDriver {
  std::string id;
  std::int32_t attempt = 0;
  enum class State : std::uint8_t {
    kStarts,
    kRuns,
    kEnded,  ///< and the head has not said that it knows
    kFiles,  ///< only its output and files are there
  } state = State::kFiles;
  friend constexpr State troupe_last(State) { return State::kFiles; }
  DriverEnd end;  ///< if it has ended
};

/// Why a submission waits, or does not.
struct WaitReport {
  enum class Verdict : std::uint8_t {
    kDoesNotWait,
    kLater,  ///< its next attempt has its time
    kWaits,  ///< no node that could hold it has the room now
    kHeld,   ///< a node has the room, which is kept for the first that waits
    kNever,  ///< no node of the cluster could hold it
    kQuota,  ///< its queue may hold no more
  } verdict = Verdict::kDoesNotWait;
  friend constexpr Verdict troupe_last(Verdict) { return Verdict::kQuota; }

  /// One resource that it asks for, in 1/10000; memory in bytes.
  struct Resource {
    std::string name;  ///< "CPU", "GPU", "memory", or a custom one's
    std::int64_t need_e4 = 0;
    std::int64_t most_free_e4 = 0;  ///< on one node
    std::int64_t most_e4 = 0;       ///< that one node has
    std::int64_t free_e4 = 0;       ///< on all nodes
    std::int64_t total_e4 = 0;
  };
  struct OnNode {
    std::string name;
    std::vector<std::string> lacks;  ///< "3 of 4 CPU"; empty: it has the room
  };
  /// What holds what it needs, on one node.
  struct Holder {
    std::string id;  ///< the submission; of a program that nobody submitted its job's name
    std::string node_name;
    std::int64_t cpu_e4 = 0;
    std::int64_t gpu_e4 = 0;
    std::string what{};  ///< of it, and what frees that: "its program, until it ends"
    ResourceAmounts other{};
  };
  std::string sentence;
  std::uint32_t position = 0;  ///< 1: the next to start; 0: it is not in the queue
  std::vector<std::string> ahead;
  std::vector<Resource> resources;
  std::vector<OnNode> nodes;     ///< those that lack least first
  std::uint32_t more_nodes = 0;  ///< that are not listed
  std::vector<Holder> holders;
  std::vector<QueueStatus> queues{};  ///< its own first, then those that go before it
};

// Events.

/// From a client, past the door (submission_refused): it is queued, or known already.
struct SubmissionRequested {
  SubmissionSpec spec;
};
struct SubmissionStopRequested {
  std::string id;
};
struct DriverStarted {
  NodeId node{};
  std::string id;
  std::int32_t attempt = 0;
};
/// Said until DriverSettled.
struct DriverEnded {
  NodeId node{};
  std::string id;
  std::int32_t attempt = 0;
  DriverEnd end;
};

// Actions.

/// To `node`. May be sent again: a node that has, or had, this attempt ignores it.
struct StartDriver {
  NodeId node{};
  SubmissionSpec spec;
  std::int32_t attempt = 0;
  std::string reason;               ///< why there
  std::vector<std::string> gpus{};  ///< what it sees as CUDA_VISIBLE_DEVICES
};
/// SIGTERM to its process group, SIGKILL to what is left after `grace_s`.
struct StopDriver {
  NodeId node{};
  std::string id;
  std::int32_t attempt = 0;
  std::int32_t grace_s = 0;
  std::string reason;
};
/// The end of that attempt is recorded: it need not be told again.
struct DriverSettled {
  NodeId node{};
  std::string id;
  std::int32_t attempt = 0;
};
/// The head keeps no record of it any more: its output and files can go.
struct ForgetSubmission {
  NodeId node{};
  std::string id;
};

}  // namespace troupe::cluster
