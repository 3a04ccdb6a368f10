/// Which deployments of a program ask which others. Pure.
///
/// A deployment asks those of its handles, by name. Calls go one way: a deployment that asked itself, through
/// others or not, could have every replica wait for the next one. So a cycle is refused before it runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe::serve {

/// Not thread-safe.
class CallGraph {
 public:
  using Id = std::uint64_t;

  /// It runs from here on, under `id`, which is new. An error: it must not, and nothing has changed. It would
  /// ask itself; it asks one that does not run, or of which there are two; or one that somebody asks has its
  /// name.
  std::optional<ErrorInfo> add(Id id, const std::string& name, const std::set<std::string>& asks);
  void remove(Id id);

  /// The one of this name; none: there is none.
  std::optional<Id> find(const std::string& name) const;
  /// Those that ask the deployments of this name.
  std::vector<Id> callers_of(const std::string& name) const;
  /// Those, and those that ask them, and so on.
  std::vector<Id> all_callers_of(const std::string& name) const;
  /// Those that it asks, as far as they run.
  std::vector<Id> asked_by(Id id) const;
  std::string name_of(Id id) const;

 private:
  struct Node {
    std::string name;
    std::set<std::string> asks;
  };
  std::vector<std::string> way(const std::set<std::string>& from, const std::string& to) const;
  std::string names() const;

  std::map<Id, Node> nodes_;
};

}  // namespace troupe::serve
