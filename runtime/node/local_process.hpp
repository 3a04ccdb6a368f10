/// A process of this node, as the node sees it.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/node/child.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// Owned by the node's loop.
struct LocalProcess {
  ProcessId id;
  JobId job;
  std::string label;
  std::string package;    ///< hash of the executable it runs; empty: ours
  Child child;            ///< pid -1: the driver, which started us
  SharedMemory lock;      ///< that it holds while it lives; the death watch's from its hello on
  UniqueFd doorbell;      ///< known once it has said hello
  bool isolated = false;  ///< it was started for one actor, and ends with it
  bool ended = false;     ///< its death was seen
  Instant heard{};
  ProcessAddress driver;    ///< where its output goes
  std::string kill_reason;  ///< we killed it, and why
  std::string last_error_line;

  enum class ActorState { kStarting, kUp };
  std::map<ActorId, ActorState> actors;
  std::vector<wire::StartActorHere> starts;  ///< to be sent once it has said hello
  std::set<ProcessId> rings;                 ///< peers it shares a ring with

  struct Outgoing {
    wire::Bytes bytes;
    std::vector<UniqueFd> fds;
  };
  std::deque<Outgoing> outgoing;  ///< packets that found no room
  std::size_t outgoing_bytes = 0;
  bool waits_for_room = false;  ///< the loop watches for writability
  std::vector<UniqueFd> received_fds;
  std::string partial_output;  ///< a line that has no end yet
  std::string partial_errors;
};

/// Cuts whole lines off `partial` after `text` was added to it; a line of over 64 KiB is cut. Empty when none
/// is whole.
std::string take_whole_lines(std::string& partial, std::string_view text);

}  // namespace troupe
