/// Room on nodes that is reserved together, for actors and tasks that need each other.
///
///   auto group = session.placement_group({{.num_cpus = 2}, {.num_cpus = 2}},
///                                        {.strategy = troupe::PlacementStrategy::kStrictSpread});
///   group.wait(30s);
///   auto worker = session.spawn<Worker>({.num_cpus = 2, .isolated = true, .placement_group = group});
///   group.remove();
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/client/future.hpp"

namespace troupe {

/// What one part of a group holds on its node.
struct Bundle {
  double num_cpus = 0;                          ///< in steps of 1/10000
  double num_gpus = 0;                          ///< a part of one, or a whole number
  std::int64_t memory = 0;                      ///< bytes; what runs in it takes of these
  std::map<std::string, double> resources{};    ///< custom ones
  std::map<std::string, std::string> labels{};  ///< that its node must have
};

struct PlacementGroupOptions {
  PlacementStrategy strategy = PlacementStrategy::kPack;
  std::string name{};  ///< of one group of the job at a time; see Session::find_placement_group
};

/// As the head had it when it was asked.
struct PlacementGroupState {
  bool is_ready = false;  ///< every bundle has its room
  bool is_removed = false;
  std::vector<NodeId> nodes;     ///< of each bundle; none: it has no room
  std::uint32_t generation = 0;  ///< counts how often bundles were placed: 1, and one more after each repair
  std::string reason;            ///< why it is where it is, or what it waits for
};

/// A handle. Copies mean the same group, which is there until remove(), or the end of its job. After the
/// death of a node, bundles that were there are placed anew where there is room; actors in them start again
/// or die as their options say. Thread-safe. Must not be used after its session has ended.
class PlacementGroup {
 public:
  PlacementGroup() = default;  ///< none
  PlacementGroup(ProcessGate* process, GroupId id) : process_(process), id_(id) {}

  GroupId id() const { return id_; }
  operator GroupId() const { return id_; }  // NOLINT: implicit on purpose, for options

  /// Once every bundle has its room; fails with Refused when the group is removed before. Its waits_for()
  /// says what it waits for.
  Future<void> ready() const;
  /// Waits for that. Throws Timeout with what it waits for; may be called again. To look takes a question to
  /// the head: a shorter timeout than 100 ms is 100 ms.
  void wait(Duration timeout = std::chrono::minutes(2)) const;
  /// Asks the head. Throws Refused once it is removed and forgotten.
  PlacementGroupState state() const;
  /// Kills what runs in it, refuses what waits for it, and gives its room back once that is gone. Removing
  /// it again does nothing. Waits for the head.
  void remove() const;

 private:
  ProcessGate* process_ = nullptr;
  GroupId id_;
};

}  // namespace troupe
