/// The shared libraries of jobs whose programs do not run on this node, or no more: fetched from the head,
/// with the package in which they travel, before a worker starts.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/node/job_packages.hpp"

namespace troupe::node {

/// Under this id a node keeps them as if they were a submission's files: no submission has such a one.
inline constexpr const char* kLibrariesOf = ".libraries-";

/// Not thread-safe.
class JobLibraries {
 public:
  struct Done {
    std::string package;             ///< that they travel in
    std::optional<ErrorInfo> error;  ///< none: they are here
  };

  JobLibraries(const Self& self, const LocalProcesses& locals)
      : self_(self), locals_(locals), packages_(self) {}

  /// Whether a worker finds those that `program` (as package_name() has it) names; else they are fetched, and
  /// Done tells. Where a driver lives that came with them they are where its program has them.
  bool need(const std::string& program, Actions& out);
  /// Whether that is an answer about libraries, and not about a submission.
  static bool is_meant(const JobUnpacked& e) { return e.id.starts_with(kLibrariesOf); }
  std::optional<Done> unpacked(const JobUnpacked& e, Instant now, Actions& out);
  std::optional<Done> part(const HeadGavePart& e, Instant now, Actions& out);
  std::optional<Done> taken(const JobPartTaken& e, Instant now, Actions& out);
  std::vector<Done> tick(Instant now, Duration slip, bool head_is_up, Actions& out);

 private:
  std::optional<Done> fetched(const JobPackages::Done& done, Actions& out);
  Done failed(const std::string& package, const ErrorInfo& error);
  void trim(Actions& out);

  const Self& self_;
  const LocalProcesses& locals_;
  JobPackages packages_;
  std::set<std::string> coming_;
  std::set<std::string> here_;
};

}  // namespace troupe::node
