#include "scheduler/head/head.hpp"

#include "runtime/core/log.hpp"

namespace troupe {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(250);

/// The node that may send this event, or nothing when no node may.
std::optional<NodeId> speaker(const cluster::ClusterEvent& event) {
  return std::visit(
      [](const auto& e) -> std::optional<NodeId> {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, cluster::NodeJoined>)
          return e.node.id;
        else if constexpr (std::is_same_v<E, cluster::JobRegistered>)
          return e.driver.node;
        else if constexpr (requires { e.requester.from.node; })
          return e.requester.from.node;
        else if constexpr (requires { e.node; })
          return e.node;
        else
          return std::nullopt;
      },
      event);
}

}  // namespace

Head::Head(EventLoop& loop, MachineTransport& transport, Options options)
    : loop_(loop),
      transport_(transport),
      options_(std::move(options)),
      machine_({}, options_.placement, random_) {}

Head::~Head() {
  server_.reset();
}

Result<void> Head::start() {
  if (auto restored = restore(); !restored) return restored;
  ServerHandlers handlers;
  handlers.on_frame = [this](const PeerName& from, std::span<const std::byte> bytes) {
    loop_.post([this, from, copy = wire::Bytes(bytes.begin(), bytes.end())] { on_frame(from, copy); });
  };
  handlers.on_peer_connected = [](const PeerName&) {};
  handlers.on_peer_gone = [](const PeerName&) {};  // a broken connection is no death: heartbeats decide
  auto server = transport_.serve({options_.address, options_.keys, options_.authorizer}, std::move(handlers));
  if (!server) return server.error();
  server_ = *std::move(server);
  address_ = to_string(server_->address());
  loop_.every(kTick, [this] {
    on(cluster::Tick{});
    forget_keys_of_the_gone();
  });
  return {};
}

Result<void> Head::restore() {
  auto entries = options_.storage->scan("");
  if (!entries) return entries.error();
  cluster::Restored restored;
  for (const auto& entry : *entries) {
    if (entry.key.starts_with("security/")) continue;
    auto record = wire::decode<cluster::Record>(entry.value);
    if (!record) {
      return ErrorInfo{ErrorCode::kCorrupt, "cannot read the head's store at '" + entry.key + "'",
                       record.error().why, "restore the folder from a copy, or start with an empty one"};
    }
    restored.records.push_back(*std::move(record));
  }
  if (!restored.records.empty()) on(restored);
  auto admission = Admission::open(*options_.storage, options_.authorizer, clock_, current_boot_id());
  if (!admission) return admission.error();
  admission_ = *std::move(admission);
  for (const std::string& name : admission_->names()) {
    const NodeId node{std::strtoull(name.c_str(), nullptr, 16)};
    if (!name.starts_with(kMachinePrefix) && !machine_.nodes().contains(node)) doubt(node);
  }
  return {};
}

void Head::on_frame(const PeerName& from, wire::ByteView frame) {
  const auto header = wire::decode_header(frame);
  if (!header || header->kind != wire::FrameKind::kControl) {
    return log(LogLevel::kWarning, "refused a frame of " + from + ": " +
                                       (header ? "no control frame" : header.error().message()));
  }
  auto message = wire::decode_control(*header, frame.subspan(wire::kHeaderBytes));
  if (!message)
    return log(LogLevel::kWarning, "refused a frame of " + from + ": " + message.error().message());
  if (const auto* to_head = std::get_if<wire::ToHead>(&*message)) return on_event(from, to_head->event);
  on_ask(from, *message);
}

void Head::on_event(const PeerName& from, const cluster::ClusterEvent& event) {
  const auto node = speaker(event);
  if (!node || to_hex(node->value) != from) {
    return log(LogLevel::kWarning, "refused an event of " + from + ": it speaks in another's name");
  }
  on(event);
}

void Head::on(const cluster::ClusterEvent& event) {
  carry_out(machine_.on(event, clock_.now()));
}

void Head::carry_out(const std::vector<cluster::ClusterAction>& actions) {
  StoreBatch batch;
  for (const auto& action : actions) {
    if (const auto* record = std::get_if<cluster::Persist>(&action)) {
      batch.put(record->key, wire::encode(record->record));
      continue;
    }
    if (const auto* erase = std::get_if<cluster::Erase>(&action)) {
      batch.erase(erase->key);
      continue;
    }
    if (!persist(batch)) return;  // nothing is acknowledged that is not durable
    if (const auto* start = std::get_if<cluster::StartActor>(&action)) {
      send(start->node, action);
    } else if (const auto* kill = std::get_if<cluster::KillActor>(&action)) {
      send(kill->node, action);
    } else if (const auto* spawned = std::get_if<cluster::SpawnAnswered>(&action)) {
      send(spawned->to.from.node, action);
    } else if (const auto* named = std::get_if<cluster::NameAnswered>(&action)) {
      send(named->to.from.node, action);
    } else if (const auto* job = std::get_if<cluster::JobAnswered>(&action)) {
      send(job->to.node, action);
    } else if (const auto* down = std::get_if<cluster::NotifyDown>(&action)) {
      send(down->to, action);
    } else if (const auto* refused = std::get_if<cluster::RefuseNode>(&action)) {
      send(refused->node, action);
    } else if (const auto* asked = std::get_if<cluster::RequestRegistration>(&action)) {
      send(asked->node, action);
    } else {
      if (const auto* dead = std::get_if<cluster::NodeDead>(&action)) doubt(dead->node);
      send_all(action);
    }
  }
  persist(batch);
}

bool Head::persist(StoreBatch& batch) {
  if (batch.empty()) return true;
  const auto stored = options_.storage->apply(std::exchange(batch, {}));
  if (stored) return true;
  // The machine and the store no longer agree: come back from the store, as after a crash.
  log(LogLevel::kError, "the head ends: " + stored.error().message());
  loop_.stop();
  return false;
}

void Head::send(NodeId node, const cluster::ClusterAction& action) {
  if (server_ == nullptr) return;  // while it restores: nodes that come back are told then
  server_->send(
      to_hex(node.value),
      wire::control_frame(wire::FromHead{action}));  // an unreachable node registers again when it is back
}

void Head::send_all(const cluster::ClusterAction& action) {
  for (const auto& [id, node] : machine_.nodes()) send(id, action);
}

}  // namespace troupe
