/// The jobs that the head knows: by id, by name, by the node of their driver.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/wire/cluster.hpp"
#include "scheduler/cluster/time_queue.hpp"

namespace troupe::cluster {

inline constexpr const char* kJobIsOver = "its job has ended, or a newer driver took it over";

struct Job {
  JobRecord record;
  std::string queue{};                     ///< that of its submission; empty: none
  std::set<ActorId> actors;                ///< those that are on a node
  std::set<ActorId> restarting;            ///< those that are on none, and start again
  std::map<NodeId, int> actors_on;         ///< how many of them a node holds; never 0
  std::set<NodeId> leases;                 ///< nodes that may hold light actors of it
  std::map<std::string, Requester> names;  ///< of living and waiting actors: the request that it came from
  std::deque<ProcessAddress> former{};  ///< the last drivers of which others took it over: what they ask may
                                        ///< still be on its way
  bool runs() const { return !record.ended; }
  bool has_driver() const { return runs() && !record.parked; }
  bool was_driven_by(const ProcessAddress& process) const {
    return std::find(former.begin(), former.end(), process) != former.end();
  }
};

/// Not thread-safe.
///
/// Invariants: a name leads to the job that registered it last. A job that has ended stays while it has
/// actors; after that while it is the last of its name, until it is trimmed. An incarnation is given once.
class JobTable {
 public:
  /// The job of a registration or of the store. An older one of that name must have ended.
  Job& add(JobRecord record);
  Job* find(JobId id);
  const Job* find(JobId id) const;
  /// The last job of that name.
  Job* named(const std::string& name);
  const Job* named(const std::string& name) const;
  bool runs(JobId id) const;
  /// The incarnation of the next registration under `name`.
  std::uint32_t next_incarnation(const std::string& name) const;
  /// Jobs whose driver is a process of `node`.
  std::vector<JobId> driven_from(NodeId node) const;

  void end(Job& job);
  /// It goes on without a driver.
  void park(Job& job);
  /// A parked job has a driver again.
  void take_over(Job& job, ProcessAddress driver, std::uint64_t request);
  /// An ended job may have lost its last actor: then it is kept until `forget_at`, or goes at once if a newer
  /// one has its name. Call it whenever that may be so.
  void settle(JobId id, Instant forget_at);

  /// Forgets one ended job that is due at `now` or beyond `most` jobs, and returns its record. From then on
  /// new names start above every incarnation that was forgotten.
  std::optional<JobRecord> trim(Instant now, std::size_t most);
  /// The highest incarnation of those that were forgotten.
  std::uint32_t floor() const { return floor_; }
  void raise_floor(std::uint32_t incarnation) { floor_ = std::max(floor_, incarnation); }

  const std::map<JobId, Job>& all() const { return jobs_; }
  /// Aborts if an invariant does not hold.
  void check() const;

 private:
  void driver_went(const Job& job);

  std::map<JobId, Job> jobs_;
  std::map<std::string, JobId> last_;
  std::map<NodeId, std::set<JobId>> driven_;  ///< those that have a driver by its node
  TimeQueue<JobId> ended_;                    ///< those that may be trimmed
  std::uint32_t floor_ = 0;
};

}  // namespace troupe::cluster
