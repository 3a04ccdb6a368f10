/// Packages of submitted jobs, on their way from the head to this node: one piece after the other.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/node/local_processes.hpp"

namespace troupe::node {

/// Not thread-safe. A question without an answer is asked again.
class JobPackages {
 public:
  struct Done {
    std::string package;
    std::optional<ErrorInfo> error;  ///< none: it is here
  };

  explicit JobPackages(const Self& self) : self_(self) {}

  /// It is fetched, and `Done` tells. Asked for twice, it travels once.
  void want(const std::string& package, Instant now, Actions& out);
  std::optional<Done> part(const wire::PackagePart& part, Instant now, Actions& out);
  std::optional<Done> taken(const JobPartTaken& taken, Instant now, Actions& out);
  /// `slip` is time in which this node itself did not run. A head that is away is waited for.
  std::vector<Done> tick(Instant now, Duration slip, bool head_is_up, Actions& out);
  struct Progress {
    std::uint64_t bytes = 0;  ///< that are here
    std::uint64_t total = 0;  ///< 0: not known yet
  };
  /// None: it is not on its way.
  std::optional<Progress> progress(const std::string& package) const;
  /// Nobody here needs it any more.
  void drop(const std::string& package, Actions& out);

 private:
  struct Fetch {
    std::uint64_t next = 0;
    std::uint64_t total = 0;
    Instant heard{};
    Instant asked{};
    bool is_written = false;  ///< a piece was handed on, and is not taken yet
  };
  void ask(const std::string& package, Fetch& fetch, Instant now, Actions& out) const;

  const Self& self_;
  std::map<std::string, Fetch> fetches_;
};

}  // namespace troupe::node
