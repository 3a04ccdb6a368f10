/// How a frame gets from this process to another one: over the ring the two share, or through their nodes.
///
/// Flow control lives here. A process has, for each other process it talks to:
///   calls    16 MiB of calls that are not answered yet (one-ways: not carried out yet), so that a receiver's
///            mailboxes are bounded;
///   transit   8 MiB of routed frames that the receiver has not taken up (kCredit gives it back), so that the
///            nodes between are bounded. A ring bounds itself.
/// A thread that may wait waits for room, for a minute at most. One that must not (may_wait.hpp) queues up to
/// four windows of calls here, and any amount of replies: an actor whose replies pile up takes no further
/// call of that process (is_congested) until they are gone.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/result.hpp"
#include "runtime/host/bounded_memory.hpp"
#include "runtime/host/node_link.hpp"
#include "runtime/host/process_floor.hpp"
#include "runtime/host/process_gate.hpp"
#include "runtime/host/window.hpp"

namespace troupe {

/// Thread-safe.
class Routes {
 public:
  /// Makes a ring with a process of this node: asks the node, and does not wait. Answered by attach or close.
  using AskForRing = std::function<void(ProcessId)>;

  /// `self` must outlive it.
  Routes(const ProcessConfig& self, NodeLink& node, Rings& rings, const RouteLimits& limits,
         AskForRing ask_for_ring);

  /// Sends a frame to `header.to`. Of calls, spawns and monitors the window of unanswered bytes is taken;
  /// give it back by `answered`. Errors: kActorDied (its process or node is dead), kUnavailable (no room in a
  /// minute, or at once where the thread must not wait; this node is gone).
  Result<void> send(const wire::FrameHeader& header, wire::ByteView body);
  /// Room that a call took: it was answered, or failed.
  void answered(ProcessAddress by, std::size_t bytes);

  /// A hop refused to carry a routed frame of `bytes`.
  void not_carried(ProcessAddress to, std::size_t bytes);

  // What the other side says.
  /// A routed frame of `bytes` came from `from` and was taken up.
  void took_up(ProcessAddress from, std::size_t bytes);
  /// A one-way call of `bytes` was carried out.
  void carried_out(ProcessAddress from, std::size_t bytes);
  void credit(const wire::FrameHeader& header);

  // Rings.
  Result<void> attach(const wire::RingOffer& offer, std::vector<UniqueFd> fds);
  /// No ring to it can be had; what waited for it fails.
  void no_ring(ProcessId peer, const ErrorInfo& why);

  // Deaths and losses. Each wakes who waits for room there.
  void process_down(ProcessAddress process, const std::string& reason);
  void node_down(NodeId node, const std::string& reason);
  void node_lost(NodeId node);
  void own_node_lost(ErrorInfo why);
  /// Why nothing can be sent to `to`, if so.
  std::optional<ErrorInfo> why_closed(ProcessAddress to) const;

  /// Too much waits to be sent there, here and, `held` bytes of it, in an actor.
  bool is_congested(ProcessAddress to, std::size_t held);
  /// Calls `resume` once that is no longer so (at once if it is not), or never is again.
  void when_drained(ProcessAddress to, std::function<void()> resume);
  /// The link to the node has room again.
  void flush_all();
  /// The ring to `peer` has less in its queue than before.
  void ring_drained(ProcessId peer);

 private:
  struct Route;
  using RoutePtr = std::shared_ptr<Route>;

  Result<RoutePtr> route_to(ProcessAddress to);
  /// REQUIRES: mutex_ is held.
  std::optional<ErrorInfo> why_closed_locked(ProcessAddress to) const;
  RoutePtr find(ProcessAddress to) const;
  Result<void> send_routed(Route& route, const wire::FrameHeader& header, wire::ByteView body, SendMode mode);
  void flush(Route& route);
  void close(const std::function<bool(ProcessAddress)>& which);
  void resume_drained(Route& route);
  wire::FrameHeader credit_header(ProcessAddress to, std::size_t bytes, std::uint8_t flags) const;
  void give_credit(Route& route);

  const ProcessConfig& config_;
  const ProcessAddress self_;
  NodeLink& node_;
  Rings& rings_;
  const RouteLimits limits_;
  const AskForRing ask_for_ring_;

  mutable std::shared_mutex mutex_;  ///< guards all below
  std::unordered_map<ProcessAddress, RoutePtr> routes_;
  BoundedMemory<ProcessAddress, std::string> dead_processes_;
  BoundedMemory<NodeId, std::string> dead_nodes_;
  std::optional<ErrorInfo> own_node_lost_;  ///< why nothing is sent, once it is
};

}  // namespace troupe
