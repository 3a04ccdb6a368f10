/// Process groups on Gloo (TCP), for sites that prescribe it and for comparisons.
///
/// Exact reductions take the path of exact_path.hpp and have the native backend's bits; with exact = false
/// they are Gloo's own. Collectives run on one thread a group, in order, so a Work makes progress without a
/// wait; their deadline starts when they do. Gloo neither authenticates nor encrypts: whoever reaches the
/// ports can connect. A rank that destroys its group with operations in flight aborts it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"
#include "collectives/rendezvous/store/store.hpp"

namespace troupe::collectives {

struct GlooGroupOptions {
  int rank = 0;
  int size = 1;
  /// Every rank's leaves: adjacent, none empty, in rank order from 0. Empty: one leaf a rank.
  std::vector<LeafInterval> leaves;
  Generation generation;
  std::string name;  ///< in errors; empty: it has none
  /// Of every wait for another rank inside an operation, and of connecting. At least a millisecond.
  Duration timeout = std::chrono::seconds(30);
  /// Where the ranks leave their addresses; used while the group is made and not afterwards, by it alone.
  std::shared_ptr<Store> rendezvous;
  /// This rank's address for the others: a name or an address of this machine.
  std::string host = "127.0.0.1";
  /// Instead of `host`: the network interface whose address it is ("eth0"). Empty: `host` counts.
  std::string interface;
};

/// Whether this build has Gloo.
bool has_gloo() noexcept;

/// Connects every rank with every other: returns when all have come. Throws BadConfig for options that make
/// no sense and where this build has no Gloo, Timeout when a rank does not come, Unavailable when an address
/// cannot be used.
std::unique_ptr<ProcessGroup> make_gloo_group(GlooGroupOptions options);

}  // namespace troupe::collectives
