// A head that says nothing: cut off, stopped, or gone.
#include "runtime/node/node_machine.hpp"

namespace troupe::node {

/// The head is stopped, or this node is cut off from a head that lives and counts it as dead. A new link
/// tells which: it leads nowhere, or the head takes this node back, or refuses it, upon which it ends.
void NodeMachine::watch_head(Duration passed) {
  head_silent_ += passed;
  if (head_silent_ < self_.times.head_silence) return;
  head_answers_ = false;
  head_.lost();
  head_away_ = self_.times.head_away;  // it has been silent for longer
  out_.push_back(Log{LogLevel::kWarning,
                     "the head answers no heartbeat any more, though the link to it is up: this "
                     "node connects to it anew"});
  out_.push_back(ConnectHeadAnew{});
}

/// A head that is started again is back within a second or two. For a cluster that was ended nobody was told
/// why nothing starts any more.
void NodeMachine::miss_head(Duration passed) {
  head_away_ += passed;
  if (head_away_ < self_.times.head_away) return;
  head_.say_away(out_);
  if (std::exchange(away_told_, true)) return;
  out_.push_back(Log{LogLevel::kWarning,
                     "the head does not answer" + (unreachable_.empty() ? "" : " (" + unreachable_ + ")") +
                         ": nothing new can be started until it does; was its cluster ended?"});
}

/// It has said something: that the link is up is no sign of it, for other threads of its process see to that.
void NodeMachine::head_is_back() {
  head_away_ = Duration{0};
  if (!std::exchange(away_told_, false)) return;
  out_.push_back(Log{LogLevel::kWarning, "the head answers again"});
  head_.say_back(out_);
}

void NodeMachine::wait_for_head(Duration passed) {
  joining_ += passed;
  if (joining_ < self_.times.join) return;
  member_told_ = true;
  out_.push_back(
      TellMember{ErrorInfo{ErrorCode::kTimeout, "cannot connect to the head", unreachable_,
                           "check that the head runs (troupe status there), the address, and firewalls"}});
}

}  // namespace troupe::node
