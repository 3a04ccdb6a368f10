/// The other nodes that this one talks to: from the first frame on, until one is dead.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/node/end_reasons.hpp"
#include "runtime/node/head_line.hpp"
#include "runtime/node/local_processes.hpp"

namespace troupe::node {

/// How a frame gets to another node.
enum class Way {
  kSend,    ///< the connection is up
  kHold,    ///< it waits for the connection, behind what waits there already
  kRefuse,  ///< it cannot go, for the reason given
};

/// Not thread-safe. A connection of either direction that ends is told to the local processes as NodeLost,
/// once for whatever was under way; a frame waits for a connection that is being made for `Times::connect` at
/// most.
class Peers {
 public:
  Peers(const Self& self, LocalProcesses& locals, HeadLine& head)
      : self_(self), locals_(locals), head_(head), dead_(self.limits.dead) {}

  /// The way of a frame of `bytes` to `node`. A node that is not known is asked for.
  Way way(NodeId node, std::size_t bytes, Instant now, ErrorInfo& why, Actions& out);
  /// Sends a message of this node, or of its process `from`. False: it cannot go, for the reason in `why`.
  bool send(ProcessAddress to, wire::Control message, Instant now, ErrorInfo& why, Actions& out,
            ProcessId from = {}, JobId job = {});
  /// To every node that is linked with this one.
  void tell_linked(const wire::Control& message, Instant now, Actions& out);
  /// Something that `node` may wait for cannot get there: nothing vanishes without its owner hearing of it.
  void tell_incoming(NodeId node, const std::string& why, Actions& out);
  /// A frame of the local process `sender` (0: of this node) that nobody waits for here cannot get to `to`.
  /// Both ends count what is under way between them, and begin anew.
  void vanished(ProcessId sender, NodeId to, const std::string& why, Actions& out);
  /// A frame of `node` arrived.
  void heard(NodeId node);

  void expect(const cluster::NodeInfo& peer, Actions& out);
  /// The reason: what waited for it was refused with that.
  using Refused = std::optional<ErrorInfo>;
  Refused answered(const cluster::PeerAnswered& answer, Actions& out);
  void connected(NodeId node, Actions& out);
  Refused came_in(NodeId node, Actions& out);
  Refused lost(NodeId node, bool outgoing, const std::string& why, Actions& out);
  /// What is under way with that peer may never be answered.
  Refused failed(NodeId node, const std::string& why, Actions& out);
  /// Gives up the connection to a peer that does not read, and makes another.
  Refused reconnect(NodeId node, const std::string& why, Actions& out);
  Refused unusable(NodeId node, const ErrorInfo& error, Actions& out);
  Refused died(NodeId node, const std::string& reason, Actions& out);
  struct RefusedPeer {
    NodeId node;
    ErrorInfo error;
  };
  std::vector<RefusedPeer> tick(Instant now, Duration slip, Actions& out);

  /// Says again who is wanted; for a head that came back.
  void repeat(Actions& out) const;
  /// Whose death this node wants to hear of.
  std::vector<NodeId> linked() const;
  const std::string* why_dead(NodeId node) const { return dead_.find(node); }

 private:
  struct Peer {
    enum class State {
      kWanted,       ///< the head was asked who it is
      kKnown,        ///< it may come in; nothing was sent there so far
      kConnecting,   ///< our connection to it is being made, or made again
      kUp,           ///< our connection to it is up
      kUnreachable,  ///< as kWanted or kConnecting, but for too long: frames are refused at once
    };
    cluster::NodeInfo info;  ///< with its id alone until the head has answered
    State state = State::kWanted;
    std::size_t held = 0;       ///< bytes that wait. Invariant: 0 but for kWanted and kConnecting
    Instant since{};            ///< when the first of them began to
    bool incoming = false;      ///< it is connected to us
    bool was_incoming = false;  ///< it was, at least once
    bool under_way = false;     ///< something passed since the last NodeLost
  };
  bool may_wait_unknown(bool is_new, std::size_t bytes) const;
  static bool is_connected(const Peer& peer) { return peer.state == Peer::State::kUp || peer.incoming; }
  static std::size_t weight(const wire::Control& message);
  ErrorInfo unreachable(const Peer& peer) const;
  ErrorInfo refuse(Peer& peer, ErrorInfo error, Actions& out) const;
  /// It cannot be reached, as far as anybody can tell by now.
  ErrorInfo give_up(Peer& peer, ErrorInfo error, Actions& out) const;

  const Self& self_;
  LocalProcesses& locals_;
  HeadLine& head_;
  std::map<NodeId, Peer> peers_;
  EndReasons<NodeId> dead_;
};

}  // namespace troupe::node
