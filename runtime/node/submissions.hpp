/// The drivers of submitted jobs on this node: started, watched, stopped, and told of until the head has
/// recorded it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/node/head_line.hpp"
#include "runtime/node/job_packages.hpp"
#include "runtime/node/local_processes.hpp"
#include "runtime/node/process_list.hpp"

namespace troupe::node {

/// Not thread-safe.
///
/// Invariants: of a submission at most one program lives here. A driver that has ended is told with every
/// join until the head has settled it, and not started again before that.
class Submissions {
 public:
  Submissions(const Self& self, HeadLine& head) : self_(self), head_(head), packages_(self) {}

  void start(const cluster::StartDriver& told, Actions& out);
  void stop(const cluster::StopDriver& told, Instant now, Actions& out);
  void settled(const cluster::DriverSettled& told);
  void forget(const cluster::ForgetSubmission& told, Actions& out);

  // What travels with it comes before it starts.
  void unpacked(const JobUnpacked& e, Instant now, Actions& out);
  void part(const HeadGavePart& e, Instant now, Actions& out);
  void part_taken(const JobPartTaken& e, Instant now, Actions& out);

  void program_started(const ProgramStarted& e, Instant now, Actions& out);
  void program_not_started(const ProgramNotStarted& e, Actions& out);
  void program_ended(const ProgramEnded& e, Actions& out);
  /// Files of these were there when the node began.
  void found(const JobFilesFound& e) { files_.insert(e.ids.begin(), e.ids.end()); }
  /// Kills those whose time to end by themselves is over. `slip` is time in which this node itself did not
  /// run.
  void tick(Instant now, Duration slip, Actions& out);
  /// Ends all of them, and starts no more.
  void leave(const std::string& reason, Instant now, Actions& out);

  /// Whether a program of it lives here: a process may come in as its driver.
  bool runs(const std::string& id) const;
  bool any_runs() const;
  /// Whether any that has files here travelled in that package.
  bool names(const std::string& package) const;
  /// Those that start once their packages are here.
  std::vector<PackageOnItsWay> packages() const;
  /// What those that run asked for.
  void add_claims(std::vector<MemoryClaim>& claims) const;
  /// Kills one that has more memory than it asked for.
  void end_for_memory(const std::string& id, const std::string& reason, Actions& out);
  /// For NodeJoined.
  std::vector<cluster::HeldDriver> held() const;

 private:
  using State = cluster::HeldDriver::State;
  struct Driver {
    cluster::SubmissionSpec spec;
    std::int32_t attempt = 0;
    std::vector<std::string> gpus{};
    State state = State::kStarts;
    bool prepares = false;  ///< it starts, and what travels with it is not there yet
    bool stopping = false;
    Duration grace{};
    Instant kill_at{};  ///< while it runs and is stopping
    bool killed = false;
    std::string leave_reason;     ///< it is ended since the node leaves
    std::string memory_reason{};  ///< or since it had more memory than it asked for
    cluster::DriverEnd end;
  };
  void tell_to_end(Driver& driver, Instant now, Actions& out);
  void ended(Driver& driver, cluster::DriverEnd end, Actions& out);
  void run(Driver& driver, Actions& out);
  void package_done(const JobPackages::Done& done, Actions& out);
  Driver* living(const std::string& id, std::int32_t attempt);

  const Self& self_;
  HeadLine& head_;
  std::map<std::string, Driver> all_;
  std::set<std::string> files_;  ///< submissions that have a folder here
  JobPackages packages_;
  std::map<std::string, std::string> package_of_;  ///< of submissions that were started here
  std::string leaving_;                            ///< why; empty: it does not
};

}  // namespace troupe::node
