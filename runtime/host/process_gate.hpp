/// What a process does for the sessions, handles and futures in it: the one interface between the templates
/// that users include and the process behind them.
///
/// `Process` implements it over CAF and links; tests implement it in a few lines. Kept light on purpose:
/// every translation unit of a user's program includes this header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/fork_guard.hpp"
#include "runtime/host/call_state.hpp"
#include "runtime/wire/address.hpp"
#include "runtime/wire/groups.hpp"
#include "runtime/wire/payload.hpp"

namespace troupe {

class SharedMemory;

namespace objects {
class Objects;
}
namespace tasks {
class Tasks;
}
using ObjectsPtr = std::shared_ptr<objects::Objects>;
using TasksPtr = std::shared_ptr<tasks::Tasks>;

/// The arguments of a call.
struct CallBody {
  CallBody() = default;
  CallBody(wire::Bytes arguments) : bytes(std::move(arguments)) {}  // NOLINT: implicit on purpose

  wire::Bytes bytes;
  /// Objects that they refer to, which live until the call is answered. If there are any, the bytes end with
  /// the names of those to be fetched (runtime/objects/references.hpp).
  wire::Kept kept;
  /// Of arguments that became objects since no message should carry them.
  std::uint64_t object_bytes = 0;
};

/// Who a process is. Set before actors are spawned.
struct ProcessConfig {
  NodeId node;
  ProcessId process;
  JobId job;
  std::uint32_t incarnation = 0;  ///< how many drivers this job has had; a driver's own
  std::string label;
  std::string host;       ///< address on which its machine is reached
  std::string package;    ///< that this job's workers run; empty: the node's own
  ProcessAddress driver;  ///< where the output of workers goes that this process starts; none: here
};

/// Told once when a monitored actor is gone for good.
using OnDown = std::function<void(const std::string& reason)>;
/// A death of a monitored actor.
struct Death {
  std::string reason;
  bool restarts = false;  ///< it starts again: another life follows, and maybe another death
};
/// Told of each death, up to the one that no life follows.
using OnDeath = std::function<void(const Death&)>;

/// An actor's node drains, and the actor ends with it unless it ends before; or (`stays`) it does not any
/// more. Or it is a worker of tasks, and others have waited for its room.
struct Leaving {
  std::string reason;
  bool stays = false;
  bool for_others = false;  ///< it gets no further task, and is given back after the one that it runs
};
using OnLeaving = std::function<void(const Leaving&)>;

/// Xored to a constructor's number where its arguments are the name of an object that holds them.
inline constexpr std::uint64_t kArgumentsInObject = 0x6f626a6563742121;

/// An actor to be started. Checked: `cpu_e4`, `gpu_e4` and `other` are within limits, `args` are.
struct ActorSpawn {
  std::uint64_t constructor = 0;  ///< id in the registry
  wire::Bytes args;
  std::string type;   ///< its class, for people
  std::string label;  ///< prefix of its process's output
  std::string name;   ///< found by it within the job; empty for none
  std::int64_t cpu_e4 = 0;
  std::int64_t gpu_e4 = 0;  ///< of isolated actors alone
  cluster::OtherResources other{};
  bool isolated = false;
  bool here = false;  ///< in this process
  NodeId node{};      ///< on this node and no other
  GroupId group{};    ///< in the room of that placement group
  std::int32_t bundle = -1;
  std::int32_t max_restarts = 0;
  std::int32_t max_task_retries = 0;
  bool detached = false;
  std::int32_t max_concurrency = 1;  ///< of isolated actors: threads that run its methods
  /// Whether the head places it. Others are constructed straight in a leased process.
  bool through_head() const {
    return !here && (isolated || cpu_e4 != 0 || !other.empty() || !name.empty() || group);
  }
};

/// Thread-safe. No method blocks, except open_region.
class ProcessGate {
 public:
  /// The first gate of a program is its current one until it ends.
  ProcessGate();
  virtual ~ProcessGate();
  ProcessGate(const ProcessGate&) = delete;
  ProcessGate& operator=(const ProcessGate&) = delete;

  /// The gate that a decoded handle belongs to: of a ProcessGateScope in this thread, of the actor whose turn
  /// it is, or the program's only one. Null if there is none.
  static ProcessGate* current();

  /// Throws BadConfig in a child that was forked from the gate's process.
  void check_not_forked() const { fork_guard_.check(); }
  bool is_in_child() const { return fork_guard_.is_in_child(); }

  virtual const ProcessConfig& config() const = 0;
  ProcessAddress address() const { return {config().node, config().process}; }

  /// Starts a call; the state is resolved with the encoded answer or an error. Null if `one_way`.
  /// REQUIRES: args.bytes.size() <= wire::kMaxBodyBytes; a one-way call refers to no object.
  virtual std::shared_ptr<CallState> call(const ActorAddress& to, std::uint64_t method, CallBody args,
                                          bool one_way) = 0;
  /// Answers a call that came from another process. A large answer goes as an object. What the answer refers
  /// to is held until that process does, or is gone.
  virtual void reply(ProcessAddress to, std::uint64_t call, const Outcome& outcome, wire::Kept refers_to) = 0;

  /// The same of an answer in two parts that refers to nothing.
  virtual void reply_parts(ProcessAddress to, std::uint64_t call, wire::ByteView head, wire::ByteView rest);

  /// Answers a call of an actor of this process.
  virtual void resolve(const std::shared_ptr<CallState>& call, Outcome outcome, wire::Kept refers_to);

  /// Starts an actor. The state is resolved with its encoded ActorAddress (wire::SpawnAnswer). If nobody
  /// waits any more, CallState::cancel runs the hook that the gate has set: the actor is not wanted, started
  /// or not.
  virtual std::shared_ptr<CallState> spawn(ActorSpawn spawn) = 0;
  /// Ends an actor, wherever it is.
  virtual void kill(const ActorAddress& actor, std::string reason) = 0;
  /// Calls `callback`, in a thread of the runtime, when the actor has died (also if it is gone already).
  virtual void monitor(const ActorAddress& actor, OnDeath callback) = 0;
  /// Calls `callback` in a thread of the runtime when the node of an actor that this process spawned through
  /// the head drains, and when that is cancelled.
  virtual void watch_leaving(const ActorAddress& actor, OnLeaving callback) = 0;

  /// The living actor of that name in this job: an encoded ActorAddress.
  virtual std::shared_ptr<CallState> find(std::string name) = 0;
  /// The live nodes: an encoded wire::NodesAnswer, a vector of cluster::NodeInfo.
  virtual std::shared_ptr<CallState> nodes() = 0;
  /// Makes a placement group, or asks about one: an encoded wire::GroupAnswer. Null where there are none (a
  /// test's gate).
  virtual std::shared_ptr<CallState> group(cluster::GroupVerb /*verb*/, GroupId /*group*/,
                                           cluster::GroupSpec /*spec*/) {
    return nullptr;
  }

  /// Runs a callback of the user's in a thread of the runtime that receives nothing: without a delay in
  /// order.
  virtual void later(Duration delay, std::function<void()> work) = 0;

  /// See Session.
  virtual Result<SharedMemory> open_region(const std::string& key, std::size_t bytes,
                                           const std::string& label, bool abortable) = 0;
  virtual void drop_region(const std::string& key) = 0;

  /// The objects that this process made or uses, and the tasks that it submitted. Null where there are none
  /// (a test's gate).
  virtual ObjectsPtr objects() { return nullptr; }
  virtual TasksPtr tasks() { return nullptr; }
  /// The task that this process runs waits, and its CPUs are for others until it goes on.
  virtual void task_waits(bool /*waits*/) {}

 private:
  const ForkGuard fork_guard_;
};

/// Makes `gate` the current one of this thread for a scope; null changes nothing.
class ProcessGateScope {
 public:
  explicit ProcessGateScope(ProcessGate* gate);
  ~ProcessGateScope();
  ProcessGateScope(const ProcessGateScope&) = delete;
  ProcessGateScope& operator=(const ProcessGateScope&) = delete;

 private:
  ProcessGate* before_;
};

}  // namespace troupe
