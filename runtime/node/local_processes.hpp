/// The processes of this node: who lives, who was heard when, who is killed and why.
#pragma once

#include <map>
#include <string>

#include "runtime/core/random.hpp"
#include "runtime/node/end_reasons.hpp"
#include "runtime/node/limits.hpp"
#include "runtime/node/node_events.hpp"

namespace troupe::node {

/// What every part of the machine knows of the node itself.
struct Self {
  cluster::NodeInfo info;
  std::string host;     ///< under which other machines reach it
  std::string package;  ///< its own; empty: it gives nothing
  Limits limits;
  Times times;
};

struct LocalProcess {
  ProcessId id;
  JobId job;  ///< a driver's: none until the head has answered
  std::string label;
  std::string package;       ///< that it runs; empty: ours
  ProcessAddress driver;     ///< where its output goes
  bool is_driver = false;    ///< it may register a job
  bool is_parent = false;    ///< it started this node, which ends with it
  std::string submission{};  ///< a driver's that this node started; empty: none
  bool isolated = false;     ///< it was started for one actor, and ends with it
  bool detached = false;     ///< that one outlives its driver
  bool replaced = false;     ///< a driver whose job has ended, or goes on under a newer one
  /// Starting: no hello yet. Ending: its death was seen and is not yet told. Dead: told, and not yet reaped.
  enum class State { kStarting, kUp, kEnding, kDead } state = State::kStarting;
  bool reaped = false;
  std::int64_t memory_asked = 0;  ///< by its actor; 0: for none, or several share it
  Instant heard{};
  std::string kill_reason;   ///< we killed it, and why
  std::string leave_reason;  ///< it was told to end with its node, and why
  std::string end_reason;    ///< from kEnding on

  bool lives() const { return state == State::kStarting || state == State::kUp; }
  /// It was killed, or its death was seen: its memory is free when it is reaped.
  bool is_ending() const { return !lives() || !kill_reason.empty(); }
};

struct NewWorker {
  std::string label;
  JobId job;
  bool isolated = false;
  ProcessAddress driver;
  std::string package;
  std::vector<std::string> gpus{};  ///< that it holds, and sees
  std::int64_t memory_asked = 0;
  bool detached = false;
};

/// Not thread-safe. Pointers stay valid until the process is forgotten.
class LocalProcesses {
 public:
  LocalProcesses(const Self& self, Random& ids) : self_(self), ids_(ids), dead_(self.limits.dead) {}

  LocalProcess& start(const NewWorker& worker, Instant now, Actions& out);
  /// The driver behind the link to whoever started this node. REQUIRES: there is none yet.
  LocalProcess& adopt_driver(Instant now, Actions& out);
  /// A driver that this node started for a submission.
  LocalProcess& adopt_driver_of(const DriverKnocked& knock, Instant now, Actions& out);
  /// Kills a process, once: a second reason changes nothing.
  void kill(LocalProcess& process, const std::string& reason, Actions& out);
  void tell_to_leave(LocalProcess& process, const std::string& reason, Actions& out);
  /// Its death was seen. False if it was before.
  bool begin_end(LocalProcess& process, const std::string& how);
  /// Its death is told from now on, with its whole reason: frames to it are refused with that.
  void finish_end(LocalProcess& process, const std::string& last_line);
  /// Kills who is silent. `slip` is time in which this node itself did not run, and could hear nobody.
  void tick(Instant now, Duration slip, Actions& out);
  void forget(ProcessId process) { all_.erase(process); }

  LocalProcess* find(ProcessId process);
  /// One that lives, or null.
  LocalProcess* living(ProcessId process);
  /// The one that started this node; null: none did.
  LocalProcess* parent() { return find(parent_); }
  /// The process of a job that holds its actors without a process of their own; null: none lives.
  LocalProcess* shared(JobId job);
  /// Null: lives, or was never heard of.
  const std::string* why_dead(ProcessId process) const { return dead_.find(process); }
  /// Whether a process runs the executable of that hash.
  bool any_runs(const std::string& hash) const;
  /// Whether any was started with the libraries of that package of a job.
  bool any_has_libraries(const std::string& package) const;
  /// Whether a driver lives that this node started with them.
  bool any_driver_has_libraries(const std::string& package) const;
  /// To every process that lives.
  void tell_all(const wire::Control& message, Actions& out) const;
  std::map<ProcessId, LocalProcess>& all() { return all_; }

 private:
  LocalProcess& add(LocalProcess process, Actions& out, Attach::Kind attach);

  const Self& self_;
  Random& ids_;
  std::map<ProcessId, LocalProcess> all_;
  std::map<JobId, ProcessId> shared_;
  ProcessId parent_{};
  EndReasons<ProcessId> dead_;
};

}  // namespace troupe::node
