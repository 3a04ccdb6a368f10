/// The shared memory of a node by name: who holds which region, and which abort words a death sets.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "runtime/node/limits.hpp"
#include "runtime/node/node_events.hpp"

namespace troupe::node {

/// Names are a job's own: no job can open or drop another's. Not thread-safe. A region that is dropped here
/// is never handed out again, so nothing that a late writer does can reach its successor; except for copies
/// of objects: their memory is kept for the job's next ones, since writing to pages that are there takes half
/// the time of fresh ones. It counts as used, and goes when something else needs its room.
class RegionNames {
 public:
  explicit RegionNames(const Limits& limits) : limits_(limits) {}

  /// Answers `process` with the region, made first if need be; its label names it when it dies.
  void open(JobId job, ProcessId process, const wire::RegionAsk& ask, Actions& out);
  void made(RegionId region, const std::optional<ErrorInfo>& error, Actions& out);
  void drop(JobId job, const std::string& key, Instant now, Actions& out);
  /// Sets the abort word of every abortable region that `process` holds. Regions that nobody holds any more
  /// are dropped, and those of objects that it owned.
  void process_died(ProcessId process, const std::string& reason, Instant now, Actions& out);
  void end_job(JobId job, Actions& out);
  /// Memory that no copy took for kKept goes.
  void tick(Instant now, Actions& out);
  std::size_t size() const { return regions_.size(); }
  std::uint64_t bytes() const { return bytes_; }

  static constexpr Duration kKept = std::chrono::seconds(10);
  /// It is at most this part of all.
  static constexpr std::uint64_t kPartKept = 8;
  /// Less is not worth it.
  static constexpr std::uint64_t kLeastKept = std::uint64_t{1} << 20;

 private:
  using Name = std::pair<JobId, std::string>;
  struct Waiting {
    ProcessId process;
    std::uint64_t request = 0;
  };
  struct Region {
    RegionId id;
    std::uint64_t bytes = 0;
    bool abortable = false;
    bool made = false;
    ProcessId maker;  ///< who asked for it first
    std::map<ProcessId, std::string> holders;
    std::vector<Waiting> waiting;  ///< until it is made
  };
  using Regions = std::map<Name, Region>;
  struct Kept {
    JobId job;
    RegionId id;
    std::uint64_t bytes = 0;
    Instant since{};
  };

  std::optional<ErrorInfo> refuse(const wire::RegionAsk& ask) const;
  std::optional<ErrorInfo> is_full(const wire::RegionAsk& ask) const;
  wire::Bytes full(JobId job, ErrorInfo why) const;
  wire::Bytes lent() const;
  Regions::iterator erase(Regions::iterator at, Actions& out);
  Regions::iterator erase_or_keep(Regions::iterator at, Instant now, Actions& out);
  /// One in which a copy fits that is at most twice as large; the smallest of these. None: RegionId{}.
  Kept take_kept(JobId job, std::uint64_t bytes);
  void drop_oldest_kept(Actions& out);
  std::uint64_t kept_bytes() const;

  const Limits& limits_;
  Regions regions_;
  std::deque<Kept> kept_;    ///< the oldest first
  std::uint64_t bytes_ = 0;  ///< Invariant: the sum of all regions' bytes, and of those of kept memory.
  std::uint64_t last_ = 0;
};

}  // namespace troupe::node
