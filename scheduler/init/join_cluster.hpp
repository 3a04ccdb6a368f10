/// A node that joins a running cluster: of a machine (troupe start), or a driver's own gateway
/// (troupe::init).
#pragma once

#include <string>

#include "runtime/node/child.hpp"
#include "runtime/wire/resources.hpp"
#include "scheduler/init/cluster_folder.hpp"

namespace troupe {

/// Who a node is, for one start of it. Whoever launches it made the key, and may speak in its name.
struct NodeIdentity {
  NodeId id;
  CurveKeyPair keys;
  static NodeIdentity generate();
};

struct MemberOptions {
  NodeIdentity identity = NodeIdentity::generate();
  std::string name;                 ///< for people
  std::string listen;               ///< numeric address for other nodes; empty: the one that faces the head
  double cpus = 0;                  ///< what actors may hold
  int gpus = -1;                    ///< the same; below 0: all that CUDA finds
  std::int64_t memory = -1;         ///< bytes, the same; below 0: a share of what there is
  cluster::OtherResources other{};  ///< custom resources and labels
  bool gateway = false;             ///< runs no actors, carries a driver over its link
  std::string package;              ///< ours, which a gateway gives to other nodes
  Duration drain{};                 ///< SIGTERM drains it within that time; 0: it leaves at once
};

/// Has the head let a node in under that id and key, and starts it. It says Ready on its link once it has
/// joined. Throws the reason when one of them fails.
Child launch_member(const ClusterFolder& folder, const HeadContact& head, const MemberOptions& options);
/// Tells the head that the node has died, in its own name: its launcher saw it, and nobody need wait until
/// heartbeats run out. REQUIRES: it has. Errors: as ask_head; the head finds out by itself then.
Result<void> tell_departed(const HeadContact& head, const NodeIdentity& node, const std::string& how);
/// As launch_member, and waits until it has joined.
Child start_member(const ClusterFolder& folder, const HeadContact& head, const MemberOptions& options);

/// The address of this machine that faces `there`, numeric. Errors: kUnavailable (the name is unknown, no
/// route).
Result<std::string> address_facing(const Endpoint& there);

/// The join token in a file ("-": standard input). Errors: kIo, kBadInput, kRefused (others may read the
/// file).
Result<JoinToken> read_token_file(const std::string& path);

}  // namespace troupe
