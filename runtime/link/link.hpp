/// A Link: how two processes exchange ordered, whole messages, whatever the medium.
///
/// One hop. Kinds: socket/ (a process and its node), zmq/ (nodes, and a node and the head), ring/ (two
/// processes of one node), and simulated ones in tests. The rules hold for all of them (docs/links.md):
///
/// - A message arrives whole, once and in order, or the link closes. Nothing overtakes, nothing vanishes.
/// - What waits to be sent is bounded in bytes. Full is an answer (Sent::kFull), never a drop.
/// - A link closes once, with a reason. What had arrived whole before is delivered first; then the owner
/// hears
///   that it closed, and fails what it had under way there. A reconnect is a new link.
/// - Cutting to the medium's size and joining again happens in fragment.hpp and nowhere else.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/core/fd.hpp"
#include "runtime/wire/frame.hpp"

namespace troupe {

/// One frame with what travels beside it.
struct Message {
  wire::FrameHeader header;
  wire::Bytes body;
  std::vector<UniqueFd> fds;  ///< over a Unix socket alone
};

enum class Sent {
  kQueued,  ///< it is sent, or will be as soon as the medium has room
  kFull,    ///< too much waits already: nothing was taken. Try again after the owner hears that there is room
  kClosed,  ///< the link has closed: nothing was taken
  kTooLarge,  ///< longer than a message may be (wire::kMaxBodyBytes): nothing was taken, and never will be
};

/// What may wait on one link before it is full. A message is taken while less than this waits, so one of any
/// size up to wire::kMaxBodyBytes gets through.
inline constexpr std::size_t kLinkQueueBytes = std::size_t{32} << 20;

}  // namespace troupe
