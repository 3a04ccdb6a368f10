#include "runtime/node/node.hpp"

#include <csignal>

#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "runtime/link/socket/link_codec.hpp"

namespace troupe {
namespace {

constexpr Duration kHeartbeat = std::chrono::seconds(1);
constexpr Duration kSilence = std::chrono::seconds(6);
/// A process that has not said Hello yet loads its libraries, LibTorch among them, on a machine that may be
/// busy.
constexpr Duration kStartSilence = std::chrono::seconds(60);
constexpr Duration kLeaveGrace = std::chrono::seconds(2);

}  // namespace

Node::Node(EventLoop& loop, MachineTransport& transport, Options options)
    : loop_(loop),
      transport_(transport),
      options_(std::move(options)),
      id_(options_.config.id),
      authorizer_(std::make_shared<Authorizer>(clock_)),
      deaths_([this](ProcessId process) { loop_.post([this, process] { process_ends(process); }); }) {}

Node::~Node() {
  head_.reset();  // joins its thread before anything it posts about goes away
  peers_.clear();
  server_.reset();
}

Result<void> Node::start(OnMember on_member) {
  on_member_ = std::move(on_member);
  auto listen = parse_endpoint(options_.config.address);
  auto head = parse_endpoint(options_.config.head);
  if (!listen) return listen.error();
  if (!head) return head.error();
  ServerHandlers handlers;
  handlers.on_frame = [this](const PeerName& from, std::span<const std::byte> bytes) {
    loop_.post([this, from, copy = wire::Bytes(bytes.begin(), bytes.end())] { on_peer_frame(from, copy); });
  };
  handlers.on_peer_connected = [](const PeerName&) {};
  handlers.on_peer_gone = [](const PeerName&) {};
  // Another node may knock before the head has told us of it.
  auto server = transport_.serve({*listen, options_.keys, authorizer_, LogLevel::kInfo}, std::move(handlers));
  if (!server) return server.error();
  server_ = *std::move(server);
  address_ = to_string(server_->address());
  host_ = server_->address().host;

  ClientHandlers to_head_handlers;
  to_head_handlers.on_frame = [this](std::span<const std::byte> bytes) {
    loop_.post([this, copy = wire::Bytes(bytes.begin(), bytes.end())] { on_head_frame(copy); });
  };
  to_head_handlers.on_state = [this](LinkState state, const std::string& why) {
    if (state == LinkState::kConnected) loop_.post([this] { join_head(); });
    if (state == LinkState::kRefused) loop_.post([this, why] { refused_by_head(why); });
  };
  auto client = transport_.connect({*head, options_.head_key, options_.keys}, std::move(to_head_handlers));
  if (!client) return client.error();
  head_ = *std::move(client);
  loop_.watch(options_.parent.fd(), [this](bool, bool, bool) { parent_gone(); });
  loop_.post([this] { join_head(); });
  loop_.every(kHeartbeat, [this] { tick(); });
  return {};
}

void Node::serve_parent() {
  if (!options_.config.hosts_driver) return;
  loop_.forget(options_.parent.fd());
  adopt_driver();
}

void Node::adopt_driver() {
  auto driver = std::make_unique<LocalProcess>();
  driver->id = {SystemRandom().next()};
  driver->label = "driver";
  driver->heard = clock_.now();
  driver->child.link = std::move(options_.parent);
  driver_ = driver.get();
  locals_.emplace(driver->id, std::move(driver));
  watch(*driver_);
  send(*driver_, wire::Configure{id_, driver_->id, {}, driver_->label, host_, options_.config.package});
}

/// One refusal may be a head that was killed in the middle of a handshake. Several are a key that it dropped,
/// because it declared this node dead: then no work of ours counts any more.
void Node::refused_by_head(const std::string& why) {
  constexpr int kRefusalsToLeave = 5;
  if (++refusals_ == 1) log(LogLevel::kWarning, "the head refuses this node: " + why);
  if (refusals_ < kRefusalsToLeave) return;
  tell_member(ErrorInfo{ErrorCode::kRefused, "the head at " + options_.config.head + " refuses this node",
                        why, "join anew"});
  leave("the head refuses it");
}

void Node::tell_member(Result<void> joined) {
  if (on_member_) std::exchange(on_member_, nullptr)(std::move(joined));
}

void Node::join_head() {
  refusals_ = 0;
  cluster::NodeJoined joined;
  joined.node = {id_,
                 options_.config.name,
                 address_,
                 to_string(options_.keys.public_key()),
                 options_.config.cpu_e4,
                 options_.config.gateway};
  for (const auto& [actor, process] : hosts_) {
    const auto* host = find(process);
    if (host == nullptr || !host->actors.contains(actor)) continue;
    const bool up = host->actors.at(actor) == LocalProcess::ActorState::kUp;
    joined.actors.push_back({actor, up ? process : ProcessId{}});
  }
  to_head(joined);
  for (const auto& [key, event] : unanswered_) to_head(event);
}

void Node::to_head(cluster::ClusterEvent event) {
  if (head_ != nullptr)
    head_->send(wire::control_frame(wire::ToHead{std::move(event)},
                                    {id_, {}}));  // while the head is away: said again by join_head
}

void Node::tick() {
  to_head(cluster::Heartbeat{id_});
  const Instant now = clock_.now();
  watch_fetches(now);
  for (const auto& [id, process] : locals_) {
    if (process->child.pid > 0 && !process->ended && process->kill_reason.empty() &&
        now - process->heard > (process->doorbell ? kSilence : kStartSilence)) {
      kill_process(*process, process->doorbell ? "no sign of life for 6 s" : "it did not start within 60 s");
    }
  }
}

void Node::parent_gone() {
  loop_.forget(options_.parent.fd());
  leave("its launcher is gone");
}

void Node::leave(const std::string& reason) {
  if (leaving_) return;
  leaving_ = true;
  log(LogLevel::kInfo, "leaves: " + reason);
  for (const auto& [id, process] : locals_) {
    if (process.get() != driver_) send(*process, wire::Leave{reason});
  }
  loop_.after(kLeaveGrace, [this] {
    for (const auto& [id, process] : locals_) {
      if (process->child.pid > 0 && !process->ended) signal_child(process->child, SIGKILL);
    }
  });
  finish_leaving();
}

void Node::finish_leaving() {
  for (const auto& [id, process] : locals_) {
    if (process->child.pid > 0 && !process->ended) return;  // called again when it has ended
  }
  to_head(cluster::NodeLeft{id_, "it left"});
  if (driver_ != nullptr && !driver_->ended) {
    send(*driver_, wire::Leave{"the node has left"});
    flush(*driver_);
  }
  // The goodbyes are on their way in the transport's own thread: give it a moment before the loop ends.
  loop_.after(std::chrono::milliseconds(20), [this] { loop_.stop(); });
}

LocalProcess* Node::find(ProcessId process) {
  const auto at = locals_.find(process);
  return at == locals_.end() ? nullptr : at->second.get();
}

LocalProcess* Node::hosting(ActorId actor) {
  const auto at = hosts_.find(actor);
  return at == hosts_.end() ? nullptr : find(at->second);
}

}  // namespace troupe
