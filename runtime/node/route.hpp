/// Where a frame goes, decided by its header alone: the shell moves the bytes.
#pragma once

#include "runtime/node/local_processes.hpp"
#include "runtime/node/node_events.hpp"
#include "runtime/node/peers.hpp"

namespace troupe::node {

enum class Verdict {
  kToProcess,  ///< to a local process
  kToPeer,     ///< to another node, over the connection that is up
  kHold,    ///< to another node: keep it, behind what is kept for that node, until ReleaseHeld or RefuseHeld
  kToNode,  ///< a control message for the machine: decode it, and tell by LocalSaid or PeerSaid
  kRefuse,  ///< answer its sender with wire::refusal and `error`
  kDrop,    ///< nobody waits for it, and whom it is for is gone
  kBreach,  ///< its sender broke the protocol, as `error` says: LocalBroke for a process
};

struct Route {
  Verdict verdict = Verdict::kDrop;
  ProcessAddress to;
  ErrorInfo error;
  Actions actions;  ///< to be carried out after the frame was dealt with
};

/// Who handed in a frame. Process 0: that node, or this one itself.
using Source = ProcessAddress;

/// Not thread-safe.
class Router {
 public:
  Router(const Self& self, LocalProcesses& locals, Peers& peers)
      : self_(self), locals_(locals), peers_(peers) {}

  /// `bytes`: of header and body.
  Route route(Source source, const wire::FrameHeader& header, std::size_t bytes, Instant now);

 private:
  /// Why `source` may not send this; empty: it may.
  std::string breach(Source source, const wire::FrameHeader& header);
  Route to_local(Source source, const wire::FrameHeader& header, Instant now);
  /// To the process here that handed the frame in, or to the node that it came from.
  void tell_sender(Source source, const wire::Control& message, Instant now, Actions& out);

  const Self& self_;
  LocalProcesses& locals_;
  Peers& peers_;
};

/// What to do with a frame for a link that is full, with `waiting` bytes kept back for it already.
enum class WhenFull {
  kRefuse,  ///< its sender waits for an answer, and gets one
  kKeep,    ///< it must not vanish: keep it, and send it before anything newer once there is room
  kClose,   ///< the receiver is stuck: tell by LocalStuck or PeerStuck
};
inline WhenFull when_full(const wire::FrameHeader& header, std::size_t waiting, std::size_t limit) {
  if (wire::wants_reply(header)) return WhenFull::kRefuse;
  return waiting < limit ? WhenFull::kKeep : WhenFull::kClose;
}

}  // namespace troupe::node
