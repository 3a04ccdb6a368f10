/// The processes in which this job may construct light actors, one a node, and which node a light actor goes
/// to.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/core/result.hpp"
#include "runtime/host/node_link.hpp"
#include "runtime/host/process_gate.hpp"

namespace troupe {

/// Thread-safe. A node is asked for its process once, and again after the link to it broke; until the answer
/// is here, what needs it waits in order.
class Leases {
 public:
  /// `config` must outlive it, and have its job before the first use.
  Leases(const ProcessConfig& config, NodeLink& node) : config_(config), node_(node) {}

  using OnProcess = std::function<void(Result<ProcessAddress>)>;
  /// Calls `then` with the process on `on`, or, without a node, on this one (in turn on all others where this
  /// one holds no actors). At once when it is known.
  void with_process(NodeId on, OnProcess then);
  void process_down(ProcessAddress process);
  /// The link to it broke: its process may have died without a word to us, so the node is asked again.
  void node_lost(NodeId node);
  void node_down(NodeId node);

 private:
  struct Lease {
    bool known = false;
    ProcessAddress process;
    std::vector<OnProcess> waiting;
  };
  void ask(NodeId on);
  void choose_home(OnProcess then);
  void home_known(const Outcome& nodes);

  const ProcessConfig& config_;
  NodeLink& node_;
  std::mutex mutex_;  ///< guards all below
  std::unordered_map<NodeId, Lease> leases_;
  std::vector<NodeId> homes_;        ///< nodes that light actors go to, in turn; empty until asked
  std::vector<OnProcess> homeless_;  ///< wait until homes_ is known
  std::size_t next_home_ = 0;
};

}  // namespace troupe
