#include "runtime/node/route.hpp"

#include "runtime/node/answers.hpp"

namespace troupe::node {
namespace {

bool is_control(const wire::FrameHeader& header) {
  return header.kind == wire::FrameKind::kControl;
}

/// Refuses a frame whose sender waits; drops one whose sender does not.
Route refuse(const wire::FrameHeader& header, ErrorInfo error) {
  Route route;
  route.verdict = wire::wants_reply(header) ? Verdict::kRefuse : Verdict::kDrop;
  route.error = std::move(error);
  return route;
}

}  // namespace

std::string Router::breach(Source source, const wire::FrameHeader& header) {
  if (header.from.node != source.node || (source.process && header.from.process != source.process))
    return "it speaks in another's name";
  if (source.node != self_.info.id || !source.process) return {};  // a peer has checked its own processes
  const LocalProcess* sender = locals_.find(source.process);
  if (sender == nullptr) return {};
  const bool to_node = is_control(header) && header.to == ProcessAddress{self_.info.id, {}};
  if (is_control(header) && !to_node && header.to != ProcessAddress{})
    return "it sends control messages to others than its node";
  // A driver says some things before it knows its job.
  if (header.job != sender->job && !(is_control(header) && !header.job))
    return "it speaks for job " + to_string(header.job) + " and belongs to " + to_string(sender->job);
  return {};
}

Route Router::route(Source source, const wire::FrameHeader& header, std::size_t bytes, Instant now) {
  Route route;
  if (std::string why = breach(source, header); !why.empty()) {
    route.verdict = Verdict::kBreach;
    route.error = {ErrorCode::kBadInput, "refused a frame", std::move(why), ""};
    return route;
  }
  const bool from_here = source.node == self_.info.id;
  if (from_here && source.process) {
    LocalProcess* sender = locals_.find(source.process);
    if (sender == nullptr || sender->state == LocalProcess::State::kDead) return route;  // told to be dead
    sender->heard = now;
  } else if (!from_here) {
    peers_.heard(source.node);
  }
  // A process need not know its node's address to talk to it.
  const bool to_node = header.to == ProcessAddress{} || header.to == ProcessAddress{self_.info.id, {}};
  if (to_node) {
    if (is_control(header)) {
      route.verdict = Verdict::kToNode;
      return route;
    }
    return refuse(header, {ErrorCode::kRefused, "there is no such actor", "a node itself holds none", ""});
  }
  if (header.to.node == self_.info.id) {
    if (!is_control(header)) return to_local(source, header, now);
    route.verdict = from_here ? Verdict::kDrop : Verdict::kToNode;  // lines of output, to a driver here
    return route;
  }
  if (!from_here) {
    return refuse(
        header,
        {ErrorCode::kRefused, "the frame went to the wrong node",
         "it is for node " + to_string(header.to.node) + ", this is " + to_string(self_.info.id), ""});
  }
  route.to = header.to;
  ErrorInfo why;
  switch (peers_.way(header.to.node, bytes, now, why, route.actions)) {
    case Way::kSend:
      route.verdict = Verdict::kToPeer;
      return route;
    case Way::kHold:
      route.verdict = Verdict::kHold;
      return route;
    case Way::kRefuse:
      break;
  }
  // A process that began after that death has not been told.
  if (const std::string* dead = peers_.why_dead(header.to.node); dead != nullptr && source.process)
    route.actions.push_back(SendLocal{source.process, wire::NodeDown{header.to.node, *dead}, {}});
  if (!wire::wants_reply(header)) peers_.vanished(source.process, header.to.node, why.why, route.actions);
  Route refused = refuse(header, std::move(why));
  refused.actions = std::move(route.actions);
  return refused;
}

void Router::tell_sender(Source source, const wire::Control& message, Instant now, Actions& out) {
  ErrorInfo why;
  if (source.node == self_.info.id) {
    if (source.process) out.push_back(SendLocal{source.process, message, {}});
  } else if (!peers_.send({source.node, {}}, message, now, why, out)) {
    peers_.tell_incoming(source.node, why.why, out);
  }
}

Route Router::to_local(Source source, const wire::FrameHeader& header, Instant now) {
  const LocalProcess* to = locals_.living(header.to.process);
  if (to == nullptr) {
    const std::string* reason = locals_.why_dead(header.to.process);
    const LocalProcess* ending = locals_.find(header.to.process);
    const std::string why = reason != nullptr   ? *reason
                            : ending != nullptr ? ending->end_reason
                                                : "there is no such process on node " + self_.info.name;
    Route refused = refuse(header, died(why));
    // Nothing vanishes: who waits for no answer hears of the death, now or with all others.
    if (refused.verdict == Verdict::kDrop && (reason != nullptr || ending == nullptr))
      tell_sender(source, wire::ProcessDown{header.to, why}, now, refused.actions);
    return refused;
  }
  const bool own_job_only = header.kind == wire::FrameKind::kSpawn || header.kind == wire::FrameKind::kStop;
  if (own_job_only && header.job != to->job) {
    return refuse(header, {ErrorCode::kRefused, "a process starts and stops actors of its own job alone",
                           "the frame is of job " + to_string(header.job) + ", the process of job " +
                               to_string(to->job),
                           "call a method of the actor instead"});
  }
  Route route;
  route.verdict = Verdict::kToProcess;
  route.to = header.to;
  return route;
}

}  // namespace troupe::node
