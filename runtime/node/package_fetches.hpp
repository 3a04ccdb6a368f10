/// The executables of jobs: which are here, which are on their way and from where.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/node/job_libraries.hpp"
#include "runtime/node/peers.hpp"

namespace troupe::node {

/// Not thread-safe. A piece is asked for at a time; a question without an answer is asked again.
class PackageFetches {
 public:
  enum class Need { kHere, kComing, kBusy };
  struct Done {
    std::string hash;                ///< of an executable
    std::optional<ErrorInfo> error;  ///< none: it is here
    std::string libraries{};         ///< or a job's package with libraries
    /// Whether who needs `package` waited for it.
    bool is_about(const std::string& package) const;
  };

  PackageFetches(const Self& self, LocalProcesses& locals, Peers& peers, JobLibraries& libraries)
      : self_(self), locals_(locals), peers_(peers), libraries_(libraries) {}

  /// Whether a worker can run `package` now; else it is fetched from `node`, its driver's, and the libraries
  /// that it brings from the head, and `Done` tells of each.
  Need need(const std::string& package, NodeId node, Instant now, Actions& out);
  /// Answers a peer that asks for a piece.
  void give(NodeId to, const wire::PackageAsk& ask, Instant now, Actions& out);
  void part(NodeId from, const wire::PackagePart& part, Instant now, Actions& out);
  std::optional<Done> taken(const PartTaken& taken, Instant now, Actions& out);
  /// The node before this one kept these: they are being read, and taken() tells of each.
  void found(const std::vector<std::string>& hashes) { read_.insert(hashes.begin(), hashes.end()); }
  /// It stays here, once it is, also for the node that comes after this one, until it was let go as often.
  void hold(const std::string& hash, Actions& out);
  void let_go(const std::string& hash) {
    if (const auto at = held_.find(hash); at != held_.end()) held_.erase(at);
  }
  /// A driver of this node brought the executable that it runs.
  void brought(const std::string& package, Actions& out);
  std::vector<Done> tick(Instant now, Duration slip, Actions& out);
  std::vector<Done> peer_died(NodeId node, const std::string& reason, Actions& out);

 private:
  struct Fetch {
    NodeId from;
    std::uint64_t next = 0;
    Instant heard{};
    Instant asked{};
    bool waits_for_disk = false;  ///< a piece was handed on, and is not taken yet
  };
  bool ask(const std::string& hash, Fetch& fetch, Instant now, Actions& out);
  Done end(const std::string& hash, ErrorCode code, std::string why, std::string todo, Actions& out);
  void arrived(const std::string& hash, Actions& out);
  void trim(Actions& out);

  const Self& self_;
  LocalProcesses& locals_;
  Peers& peers_;
  JobLibraries& libraries_;
  std::set<std::string> here_;
  std::set<std::string> read_;  ///< from the disk, at this moment
  std::multiset<std::string> held_;
  std::map<std::string, Fetch> fetches_;
};

}  // namespace troupe::node
