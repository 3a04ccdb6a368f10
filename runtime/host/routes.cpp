#include "runtime/host/routes.hpp"

#include "runtime/core/assert.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/thread.hpp"
#include "runtime/host/may_wait.hpp"

namespace troupe {
namespace {

/// A thread that must not wait may have this many windows of calls out.
constexpr std::size_t kSlack = 4;
constexpr Duration kRoomDeadline = std::chrono::seconds(60);

ErrorInfo dead(const std::string& why) {
  return {ErrorCode::kActorDied, "the actor is gone", why, "spawn it again, or monitor it to be told"};
}

ErrorInfo no_room(bool waited) {
  return {
      ErrorCode::kUnavailable, "a call was not sent",
      waited
          ? "its receiver has taken nothing for 60 s while 16 MiB of calls waited for it"
          : "64 MiB of calls to its receiver are unanswered, and an actor's turn or a callback must not wait",
      "wait for answers before calling on, or call from an isolated actor or the main program, which are "
      "held back"};
}

bool is_call(wire::FrameKind kind) {
  return kind == wire::FrameKind::kCall || kind == wire::FrameKind::kSpawn ||
         kind == wire::FrameKind::kMonitor;
}

}  // namespace

/// What this process has under way to another one, and what of it waits.
struct Routes::Route {
  Route(ProcessAddress to, RingChannelPtr ring_to_it, const RouteLimits& limits)
      : peer(to), ring(std::move(ring_to_it)), calls(limits.calls), transit(limits.transit) {}

  const ProcessAddress peer;
  const RingChannelPtr ring;  ///< null: frames go through the nodes
  Window calls;
  Window transit;
  std::atomic<std::size_t> to_credit{0};          ///< taken up and not given back yet
  std::atomic<std::size_t> one_way_to_credit{0};  ///< carried out and not given back yet

  struct Waiting {
    wire::FrameHeader header;
    wire::Bytes body;
  };
  std::mutex mutex;             ///< guards what follows
  std::deque<Waiting> waiting;  ///< routed frames without room in transit
  std::size_t waiting_bytes = 0;
  bool closed = false;
  std::vector<std::function<void()>> on_drained;
};

Routes::Routes(const ProcessConfig& self, NodeLink& node, Rings& rings, const RouteLimits& limits,
               AskForRing ask_for_ring)
    : config_(self),
      self_{self.node, self.process},
      node_(node),
      rings_(rings),
      limits_(limits),
      ask_for_ring_(std::move(ask_for_ring)) {}

Routes::RoutePtr Routes::find(ProcessAddress to) const {
  const std::shared_lock lock(mutex_);
  const auto at = routes_.find(to);
  return at == routes_.end() ? nullptr : at->second;
}

std::optional<ErrorInfo> Routes::why_closed(ProcessAddress to) const {
  const std::shared_lock lock(mutex_);
  return why_closed_locked(to);
}

std::optional<ErrorInfo> Routes::why_closed_locked(ProcessAddress to) const {
  if (own_node_lost_) return own_node_lost_;
  if (const auto* why = dead_processes_.find(to)) return dead(*why);
  if (const auto* why = dead_nodes_.find(to.node)) return dead(*why);
  return std::nullopt;
}

Result<Routes::RoutePtr> Routes::route_to(ProcessAddress to) {
  if (auto route = find(to)) return route;
  RoutePtr route;
  bool fresh = false;
  {
    const std::lock_guard lock(mutex_);
    if (auto why = why_closed_locked(to)) return *std::move(why);  // or it stayed open after close()
    auto& at = routes_[to];
    if (at == nullptr) {
      const bool near = to.node == self_.node && to.process;
      at = std::make_shared<Route>(to, near ? rings_.open(to.process) : nullptr, limits_);
      fresh = near && !rings_.is_attached(to.process);
    }
    route = at;
  }
  if (fresh) ask_for_ring_(to.process);
  return route;
}

Result<void> Routes::send(const wire::FrameHeader& header, wire::ByteView body) {
  auto found = route_to(header.to);
  if (!found) return found.error();
  Route& route = **found;
  const bool wait = thread_may_wait();
  const bool call = is_call(header.kind);
  const std::size_t bytes = wire::kHeaderBytes + body.size();
  if (call) {
    const auto took = wait ? route.calls.take(bytes, MonotonicClock().now() + kRoomDeadline)
                           : route.calls.try_take(bytes, kSlack);
    if (took == Window::Took::kFull) return no_room(wait);
    if (took == Window::Took::kClosed) {
      if (auto why = why_closed(header.to)) return *std::move(why);
      return ErrorInfo{ErrorCode::kUnavailable, "a call was not sent", "the link to its node broke",
                       "call again"};
    }
  }
  const SendMode mode = !call ? SendMode::kMust : wait ? SendMode::kWait : SendMode::kMust;
  Result<void> sent;
  if (route.ring == nullptr) {
    sent = send_routed(route, header, body, mode);
  } else if (rings_.send(*route.ring, header, body, mode) != Sent::kQueued) {
    auto why = why_closed(header.to);
    sent = why ? *std::move(why) : no_room(true);
  }
  if (!sent && call) route.calls.give_back(bytes);
  return sent;
}

Result<void> Routes::send_routed(Route& route, const wire::FrameHeader& header, wire::ByteView body,
                                 SendMode mode) {
  const std::size_t bytes = wire::kHeaderBytes + body.size();
  for (std::optional<Instant> deadline;;) {
    {
      const std::lock_guard lock(route.mutex);
      if (route.closed) break;
      if (route.waiting.empty() && route.transit.try_take(bytes) == Window::Took::kTaken) {
        const Sent sent = node_.send(header, body);
        if (sent == Sent::kQueued) return {};
        route.transit.give_back(bytes);
        if (sent == Sent::kClosed) break;
      }
      if (mode == SendMode::kMust) {
        route.waiting.push_back({header, wire::Bytes(body.begin(), body.end())});
        route.waiting_bytes += bytes;
        return {};
      }
    }
    // Looks again when the receiver gave room back, and now and then, since the node's link may have been
    // full.
    const Instant now = MonotonicClock().now();
    if (!deadline) deadline = now + kRoomDeadline;
    if (now >= *deadline) return no_room(true);
    const auto took = route.transit.take(0, std::min(*deadline, now + std::chrono::milliseconds(20)));
    if (took == Window::Took::kTaken) sleep_for(std::chrono::microseconds(50));
  }
  if (auto why = why_closed(header.to)) return *std::move(why);
  return ErrorInfo{ErrorCode::kUnavailable, "a call was not sent", "the link to its node broke",
                   "call again"};
}

void Routes::flush(Route& route) {
  {
    const std::lock_guard lock(route.mutex);
    while (!route.waiting.empty() && !route.closed) {
      const auto& next = route.waiting.front();
      const std::size_t bytes = wire::kHeaderBytes + next.body.size();
      if (route.transit.try_take(bytes) != Window::Took::kTaken) break;
      if (node_.send(next.header, next.body) != Sent::kQueued) {
        route.transit.give_back(bytes);
        break;
      }
      route.waiting_bytes -= bytes;
      route.waiting.pop_front();
    }
  }
  resume_drained(route);
}

void Routes::flush_all() {
  std::vector<RoutePtr> all;
  {
    const std::shared_lock lock(mutex_);
    for (const auto& [peer, route] : routes_) {
      if (route->ring == nullptr) all.push_back(route);
    }
  }
  for (const auto& route : all) {
    give_credit(*route);
    flush(*route);
  }
}

void Routes::answered(ProcessAddress by, std::size_t bytes) {
  if (const auto route = find(by)) route->calls.give_back(bytes);
}

void Routes::not_carried(ProcessAddress to, std::size_t bytes) {
  const auto route = find(to);
  if (route == nullptr || route->ring != nullptr) return;
  route->transit.give_back(std::min(bytes, route->transit.out()));
  flush(*route);
}

wire::FrameHeader Routes::credit_header(ProcessAddress to, std::size_t bytes, std::uint8_t flags) const {
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kCredit;
  header.flags = flags;
  header.to = to;
  header.from = self_;
  header.job = config_.job;
  header.id = bytes;
  return header;
}

/// Gives back what was taken up of routed frames; not itself under flow control. What finds the link to the
/// node full is owed on, and given when there is room (flush_all).
void Routes::give_credit(Route& route) {
  const std::lock_guard lock(route.mutex);
  const std::size_t owed = route.to_credit.load();
  if (owed < limits_.credit_step) return;
  if (node_.send(credit_header(route.peer, owed, 0), {}) == Sent::kQueued) route.to_credit.fetch_sub(owed);
}

void Routes::took_up(ProcessAddress from, std::size_t bytes) {
  auto found = route_to(from);
  if (!found) return;
  if ((*found)->to_credit.fetch_add(bytes) + bytes >= limits_.credit_step) give_credit(**found);
}

void Routes::carried_out(ProcessAddress from, std::size_t bytes) {
  auto found = route_to(from);
  if (!found) return;
  auto& owed = (*found)->one_way_to_credit;
  if (owed.fetch_add(bytes) + bytes < limits_.one_way_step) return;
  const std::size_t all = owed.exchange(0);
  if (all == 0) return;
  if (auto sent = send(credit_header(from, all, wire::kFlagOneWay), {}); !sent)
    log(LogLevel::kDebug, sent.error().message());
}

void Routes::credit(const wire::FrameHeader& header) {
  const auto route = find(header.from);
  if (route == nullptr) return;
  if ((header.flags & wire::kFlagOneWay) != 0)
    return route->calls.give_back(std::min<std::size_t>(header.id, route->calls.out()));
  route->transit.give_back(std::min<std::size_t>(header.id, route->transit.out()));
  flush(*route);
}

Result<void> Routes::attach(const wire::RingOffer& offer, std::vector<UniqueFd> fds) {
  if (auto route = route_to({self_.node, offer.peer}); !route) return {};  // it died meanwhile
  return rings_.attach(offer, std::move(fds));
}

void Routes::no_ring(ProcessId peer, const ErrorInfo& why) {
  const ProcessAddress at{self_.node, peer};
  if (why.code == ErrorCode::kActorDied) return process_down(at, why.why);
  close([at](ProcessAddress p) { return p == at; });  // it lives: whoever calls again asks again
}

void Routes::close(const std::function<bool(ProcessAddress)>& which) {
  std::vector<RoutePtr> closed;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = routes_.begin(); at != routes_.end();) {
      if (!which(at->first)) {
        ++at;
        continue;
      }
      closed.push_back(std::move(at->second));
      at = routes_.erase(at);
    }
  }
  for (const auto& route : closed) {
    {
      const std::lock_guard lock(route->mutex);
      route->closed = true;
      route->waiting.clear();
      route->waiting_bytes = 0;
    }
    if (route->ring != nullptr) rings_.close(route->peer.process);
    route->calls.close();
    route->transit.close();
    resume_drained(*route);
  }
}

void Routes::process_down(ProcessAddress process, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    dead_processes_.remember(process, reason);
  }
  close([process](ProcessAddress p) { return p == process; });
}

void Routes::node_down(NodeId node, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    dead_nodes_.remember(node, reason);
  }
  close([node](ProcessAddress p) { return p.node == node; });
}

void Routes::node_lost(NodeId node) {
  close([node](ProcessAddress p) { return p.node == node; });
}

void Routes::own_node_lost(ErrorInfo why) {
  {
    const std::lock_guard lock(mutex_);
    own_node_lost_ = std::move(why);
  }
  close([](ProcessAddress) { return true; });
}

bool Routes::is_congested(ProcessAddress to, std::size_t held) {
  const auto route = find(to);
  if (route == nullptr) return held > limits_.congested;
  if (route->ring != nullptr) return rings_.queued_bytes(*route->ring) + held > limits_.congested;
  const std::lock_guard lock(route->mutex);
  return route->waiting_bytes + held > limits_.congested;
}

void Routes::when_drained(ProcessAddress to, std::function<void()> resume) {
  const auto route = find(to);
  if (route == nullptr) return resume();
  {
    const std::lock_guard lock(route->mutex);
    route->on_drained.push_back(std::move(resume));
  }
  resume_drained(*route);
}

void Routes::ring_drained(ProcessId peer) {
  if (const auto route = find({self_.node, peer})) resume_drained(*route);
}

void Routes::resume_drained(Route& route) {
  std::vector<std::function<void()>> resume;
  {
    const std::lock_guard lock(route.mutex);
    if (route.on_drained.empty()) return;
    const std::size_t left = route.ring != nullptr ? rings_.queued_bytes(*route.ring) : route.waiting_bytes;
    if (!route.closed && left > limits_.drained) return;
    resume.swap(route.on_drained);
  }
  for (const auto& one : resume) one();
}

}  // namespace troupe
