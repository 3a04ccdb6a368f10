#include "actors/serve/proxy_fleet.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe::serve {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);
/// For the responses of a proxy that ends with its deployments.
constexpr Duration kFleetFlush = std::chrono::seconds(6);
/// For those of one whose node drains.
constexpr std::int64_t kDrainMs = 20'000;

/// Until all have taken the places of others.
constexpr Duration kPlaces = std::chrono::seconds(10);
/// How often a signal is looked for.
constexpr Duration kLookForSignal = std::chrono::milliseconds(50);
constexpr Duration kPlaceAgain = std::chrono::milliseconds(50);

/// Of "http://10.0.0.7:8000"; 0: it has none.
std::uint16_t port_of(const std::string& url) {
  std::uint16_t port = 0;
  std::from_chars(url.data() + url.rfind(':') + 1, url.data() + url.size(), port);
  return port;
}

std::string random_id() {
  SystemRandom random;
  return std::to_string(random.next());
}

}  // namespace

ProxyFleet::ProxyFleet(const Session& session, ProxyListen listen, std::function<bool()> interrupted)
    : session_(session),
      listen_([&] {
        listen.fleet = random_id();
        return std::move(listen);
      }()),
      interrupted_(std::move(interrupted)),
      waits_(!listen_.in_place_of.empty()) {}

void ProxyFleet::add(const std::shared_ptr<Deployment>& deployment) {
  bool begins = false;
  {
    const std::lock_guard lock(mutex_);
    deployments_[deployment->name()] = deployment;
    runs_ = true;
    begins = !std::exchange(looks_, true);
    for (const auto& [id, seat] : seats_) {
      if (!seat.url.empty()) deployment->add_proxy(id, seat.handle);
    }
  }
  if (begins) look_at_nodes();
}

void ProxyFleet::remove(const std::string& name) {
  std::vector<Future<void>> removed;
  std::map<ProxyId, Seat> ending;
  {
    const std::lock_guard lock(mutex_);
    if (deployments_.erase(name) == 0) return;
    for (const auto& [id, seat] : seats_) {
      if (!seat.url.empty()) removed.push_back(seat.handle.call<&Proxy::remove>(name));
    }
    if (deployments_.empty()) {
      runs_ = false;
      ending = std::exchange(seats_, {});
    }
  }
  const Instant latest = clock_.now() + kFleetFlush;
  for (const auto& one : removed) (void)one.wait(std::max<Duration>(latest - clock_.now(), Duration{0}));
  for (const auto& [id, seat] : ending) {
    if (seat.handle) session_.kill(seat.handle, "nothing is served any more");
  }
}

std::vector<std::string> ProxyFleet::urls() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> urls;
  for (const auto& [id, seat] : seats_) {
    if (!seat.url.empty()) urls.push_back(seat.url);
  }
  return urls;
}

/// Without the head there is no answer, and everything stays as it is.
void ProxyFleet::look_at_nodes() {
  const Future<wire::NodesAnswer> answer(session_.process().nodes());
  answer.then([weak = weak_from_this()](const Result<wire::NodesAnswer>& found) {
    const auto me = weak.lock();
    if (!me) return;
    if (found) {
      std::vector<NodeId> nodes;
      for (const auto& node : found->nodes) {
        if (!node.gateway && node.id != me->session_.node()) nodes.push_back(node.id);
      }
      me->nodes_seen(nodes);
    }
    me->session_.process().later(kLookEvery, [weak] {
      const auto still = weak.lock();
      if (!still) return;
      {
        const std::lock_guard lock(still->mutex_);
        still->looks_ = still->runs_;
        if (!still->looks_) return;
      }
      still->look_at_nodes();
    });
  });
}

void ProxyFleet::nodes_seen(const std::vector<NodeId>& nodes) {
  std::vector<StartProxy> starts;
  {
    const std::lock_guard lock(mutex_);
    if (!runs_) return;
    starts = machine_.nodes(nodes, clock_.now());
    changed_.notify_all();  // one that has left keeps nobody waiting
  }
  for (const auto& one : starts) start(one);
}

void ProxyFleet::start(const StartProxy& action) {
  const ActorOptions options{.isolated = true, .node = action.node, .label = "proxy"};
  ProxyListen listen = listen_;
  if (listen.port == 0) listen.port = action.port;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, deployment] : deployments_) listen.names.push_back(name);
  }
  session_.spawn_async<Proxy>(options, listen)
      .then([weak = weak_from_this(), session = session_,
             id = action.proxy](const Result<ActorHandle<Proxy>>& proxy) {
        if (const auto me = weak.lock()) return me->started(id, proxy);
        if (proxy) session.kill(*proxy, "nothing is served any more");
      });
}

void ProxyFleet::started(ProxyId id, const Result<ActorHandle<Proxy>>& proxy) {
  if (!proxy) return failed(id, proxy.error().message());
  {
    const std::lock_guard lock(mutex_);
    if (!runs_ || !machine_.is_wanted(id)) {
      machine_.failed(id, clock_.now());  // else its node has none when there is a deployment again
      return session_.kill(*proxy, "it is not wanted any more");
    }
    seats_[id].handle = *proxy;
  }
  session_.monitor(*proxy, [weak = weak_from_this(), id](const std::string& why) {
    if (const auto me = weak.lock()) me->failed(id, why);
  });
  session_.watch_leaving(*proxy, [weak = weak_from_this(), id](const Leaving& leaving) {
    if (const auto me = weak.lock()) me->leaves(id, leaving.stays);
  });
  proxy->call<&Proxy::url>().then([weak = weak_from_this(), id](const Result<std::string>& url) {
    const auto me = weak.lock();
    if (me && url) me->listens(id, *url);  // else its monitor tells why
  });
}

void ProxyFleet::listens(ProxyId id, const std::string& url) {
  ActorHandle<Proxy> takes_place;
  {
    const std::lock_guard lock(mutex_);
    const auto seat = seats_.find(id);
    if (seat == seats_.end()) return;
    log(LogLevel::kInfo, "proxy " + std::to_string(id) + " serves on " + url);
    seat->second.url = url;
    machine_.listens(id, port_of(url), clock_.now());
    if (listen_.in_place_of.empty()) machine_.placed(id);
    changed_.notify_all();
    for (const auto& [name, deployment] : deployments_) deployment->add_proxy(id, seat->second.handle);
    if (!waits_ && !listen_.in_place_of.empty()) takes_place = seat->second.handle;
  }
  if (takes_place) take_place(id, takes_place);
}

void ProxyFleet::take_over() {
  if (listen_.in_place_of.empty()) return;
  std::map<ProxyId, ActorHandle<Proxy>> ready;
  {
    const std::lock_guard lock(mutex_);
    places_by_ = clock_.now() + kPlaces;
    if (std::exchange(waits_, false)) {
      for (const auto& [id, seat] : seats_) {
        if (!seat.url.empty()) ready[id] = seat.handle;
      }
    }
  }
  for (const auto& [id, handle] : ready) take_place(id, handle);
  wait_placed();
}

void ProxyFleet::wait_placed() {
  std::unique_lock lock(mutex_);
  while (!machine_.all_placed()) {
    if (places_by_ == Instant{}) places_by_ = clock_.now() + kPlaces;
    if (clock_.now() >= places_by_) break;
    if (interrupted_()) return;
    changed_.wait_for(lock, kLookForSignal);
  }
  if (machine_.all_placed()) return;
  log(LogLevel::kWarning, "on some node no proxy listens yet: who asks there is refused until one does");
}

/// Again and again, until it has heard of all that the other one serves.
void ProxyFleet::take_place(ProxyId id, const ActorHandle<Proxy>& proxy) {
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    if (!seats_.contains(id)) return;
    all = clock_.now() < places_by_;
  }
  proxy.call<&Proxy::take_over>(all).then([weak = weak_from_this(), id, proxy](const Result<bool>& listens) {
    const auto me = weak.lock();
    if (!me) return;
    if (!listens) {
      log(LogLevel::kWarning, "proxy " + std::to_string(id) + ": " + listens.error().message());
      return me->stop(id, "it cannot listen");
    }
    if (!*listens)
      return me->session_.process().later(kPlaceAgain, [weak, id, proxy] {
        if (const auto still = weak.lock()) still->take_place(id, proxy);
      });
    const std::lock_guard lock(me->mutex_);
    me->machine_.placed(id);
    me->changed_.notify_all();
  });
}

void ProxyFleet::leave(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(runs_, false)) return;
  leaves_by_ = clock_.now() + timeout + kFleetFlush;
  for (const auto& [id, seat] : seats_) {
    if (!seat.url.empty()) leaving_.push_back(seat.handle.call<&Proxy::drain>(timeout.count()));
  }
}

void ProxyFleet::wait_left() const {
  std::vector<Future<bool>> leaving;
  Instant latest;
  {
    const std::lock_guard lock(mutex_);
    leaving = leaving_;
    latest = leaves_by_;
  }
  for (const auto& one : leaving) (void)one.wait(std::max<Duration>(latest - clock_.now(), Duration{0}));
}

void ProxyFleet::failed(ProxyId id, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (machine_.is_leaving(id)) {
    log(LogLevel::kInfo, "proxy " + std::to_string(id) + " has ended: " + why);
  } else if (runs_ && machine_.is_wanted(id)) {
    log(LogLevel::kWarning, "proxy " + std::to_string(id) + " is gone, and is started again: " + why);
  }
  machine_.failed(id, clock_.now());
  seats_.erase(id);
  for (const auto& [name, deployment] : deployments_) deployment->remove_proxy(id);
}

void ProxyFleet::leaves(ProxyId id, bool stays) {
  ActorHandle<Proxy> handle;
  {
    const std::lock_guard lock(mutex_);
    machine_.leaves(id, stays);
    changed_.notify_all();
    if (const auto seat = seats_.find(id); seat != seats_.end() && !stays) handle = seat->second.handle;
  }
  if (!handle) return;
  log(LogLevel::kInfo, "proxy " + std::to_string(id) + " ends: its node drains");
  handle.call<&Proxy::drain>(kDrainMs).then([weak = weak_from_this(), id](const Result<bool>&) {
    if (const auto me = weak.lock()) me->stop(id, "its node drains");
  });
}

void ProxyFleet::stop(ProxyId id, const std::string& reason) {
  ActorHandle<Proxy> handle;
  {
    const std::lock_guard lock(mutex_);
    if (const auto seat = seats_.find(id); seat != seats_.end()) handle = seat->second.handle;
  }
  if (handle) session_.kill(handle, reason);
}

}  // namespace troupe::serve
