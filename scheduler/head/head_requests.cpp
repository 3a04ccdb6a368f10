// The head's part that answers those who are no nodes: guests with a join token, machines, and its owner.

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "runtime/core/log.hpp"
#include "scheduler/head/head.hpp"

namespace troupe {
namespace {

/// A node that was let in and never came, or is dead, keeps its key this long: a dead one is told so by name.
constexpr Duration kKeyGrace = std::chrono::seconds(60);
/// A status tells of so many bytes of actors, and of so many kinds of spawns that wait; the others are
/// counted.
constexpr std::size_t kMostActorBytes = std::size_t{24} << 20;
constexpr std::size_t kMostWaiting = 100;
constexpr std::size_t kMostGroupBytes = std::size_t{8} << 20;

bool is_owner(const PeerName& from) {
  return from == kOwnerName;
}
bool is_permanent(const PeerName& from) {
  return is_owner(from) || from.starts_with(kMachinePrefix);
}

ErrorInfo not_allowed(const PeerName& from, const std::string& what, std::string todo) {
  return {ErrorCode::kRefused, "the head refuses to " + what, from + " may not ask for it", std::move(todo)};
}

std::string state_of(const cluster::ClusterMachine& machine, NodeId id,
                     const cluster::ClusterMachine::Node& node) {
  if (!node.registered) return "expected";
  if (node.leaving) return "leaving";
  if (node.drain) return "draining";
  return machine.liveness(id) == cluster::Liveness::kAlive ? "alive" : "silent";
}

}  // namespace

void Head::on_ask(const PeerName& from, const wire::Control& message) {
  Result<wire::Bytes> value =
      ErrorInfo{ErrorCode::kRefused, "the head refuses a message", "it is not for a head", ""};
  wire::Answer answer;
  const auto take = [&](const auto& ask, auto&& handle) {
    answer.request = ask.request;
    try {
      value = handle(ask);
    } catch (const Error& error) {  // too much for a message
      value = error.info();
    }
  };
  if (const auto* e = std::get_if<wire::EnrollAsk>(&message))
    take(*e, [&](const auto& a) { return enroll(from, a); });
  if (const auto* a = std::get_if<wire::AdmitAsk>(&message))
    take(*a, [&](const auto& ask) { return admit(from, ask); });
  if (const auto* t = std::get_if<wire::TokenAsk>(&message))
    take(*t, [&](const auto& a) { return issue_token(from, a); });
  if (const auto* k = std::get_if<wire::KeysAsk>(&message))
    take(*k, [&](const auto&) { return list_keys(from); });
  if (const auto* r = std::get_if<wire::KeyRemoveAsk>(&message))
    take(*r, [&](const auto& a) { return remove_key(from, a.name); });
  if (const auto* s = std::get_if<wire::StatusAsk>(&message))
    take(*s, [&](const auto&) { return status(from); });
  if (const auto* d = std::get_if<wire::DrainAsk>(&message))
    take(*d, [&](const auto& a) { return drain(from, a); });
  if (const auto* k = std::get_if<wire::KillAsk>(&message))
    take(*k, [&](const auto& a) { return kill_actor(from, a); });
  answer.ok = value.ok();
  if (value) {
    answer.value = *std::move(value);
  } else {
    answer.error = value.error();
    refusals_(from + ": " + answer.error.message(), clock_.now());
  }
  const auto* drains = std::get_if<wire::DrainAsk>(&message);
  const bool only_asks = std::holds_alternative<wire::StatusAsk>(message) ||
                         std::holds_alternative<wire::KeysAsk>(message) ||
                         (drains != nullptr && drains->only_asks);
  const bool changed_something = answer.ok && !only_asks;
  // Whoever waits for it is told of a full disk at once. A machine that enrolls looks whether its key is in.
  const std::uint64_t told = std::holds_alternative<wire::EnrollAsk>(message) ? 0 : answer.request;
  wire::Bytes frame = wire::control_frame(std::move(answer));
  if (changed_something) return carry_out(machine_.reply({from, std::move(frame), told}, clock_.now()));
  server_->send(from, std::move(frame));  // status and refusals also while the store fails
}

Result<wire::Bytes> Head::enroll(const PeerName& from, const wire::EnrollAsk& ask) {
  const auto key = parse_public_key(ask.public_key);
  if (!key) return key.error();
  std::uint64_t start = 0;
  for (int i = 0; i < 8; ++i)
    start = start << 8 | static_cast<std::uint64_t>(key->bytes[static_cast<std::size_t>(i)]);
  if (auto done = admission_->enroll(from, *key, std::string(kMachinePrefix) + to_hex(start)); !done)
    return done.error();
  return wire::Bytes{};
}

Result<wire::Bytes> Head::admit(const PeerName& from, const wire::AdmitAsk& ask) {
  if (!is_permanent(from))
    return not_allowed(from, "let a node in", "join with a token first: troupe start --token-file FILE");
  const auto key = parse_public_key(ask.public_key);
  if (!key) return key.error();
  const std::string name = to_hex(ask.node.value);
  if (auto added = admission_->add_peer(*key, name, from); !added) return added.error();
  key_deadlines_[name] = clock_.now() + kKeyGrace;  // until it has come
  return wire::Bytes{};
}

Result<wire::Bytes> Head::issue_token(const PeerName& from, const wire::TokenAsk& ask) {
  if (!is_owner(from))
    return not_allowed(from, "issue a join token", "run troupe token on the head's machine");
  auto token =
      admission_->issue(reached_at(), options_.keys.public_key(), std::chrono::seconds(ask.lifetime_s));
  if (!token) return token.error();
  return wire::encode(wire::TokenAnswer{write_join_token(*token)});
}

Result<wire::Bytes> Head::list_keys(const PeerName& from) const {
  if (!is_owner(from)) return not_allowed(from, "list keys", "run troupe key list on the head's machine");
  wire::KeysAnswer all;
  for (const auto& [key, peer] : admission_->peers())
    all.keys.push_back({peer.name, to_string(key), peer.brought_by});
  return wire::encode(all);
}

/// The nodes of that machine are dead from now on: others are told so, and take nothing of them any more.
Result<wire::Bytes> Head::remove_key(const PeerName& from, std::string name) {
  if (!is_owner(from))
    return not_allowed(from, "remove a key", "run troupe key remove on the head's machine");
  if (!name.starts_with(kMachinePrefix)) name = std::string(kMachinePrefix) + name;
  if (!admission_->knows(name)) {
    return ErrorInfo{ErrorCode::kRefused, "there is no key " + cluster::clipped(name.substr(0, 80)),
                     "no machine of that name was let in, or it was removed before",
                     "troupe key list shows those that are"};
  }
  auto removed = admission_->remove(name);
  if (!removed) return removed.error();
  const std::string why = key_was_removed(name);
  log(LogLevel::kInfo, why);
  for (const std::string& node : *removed) {
    if (node != name) on(cluster::NodeLeft{{std::strtoull(node.c_str(), nullptr, 16)}, why});
  }
  stop_jobs_of_strangers();
  end_actors_of_strangers();
  std::vector<PeerName> clients;
  for (const auto& [client, its] : clients_) {
    if (its.brought_by == name) clients.push_back(client);
  }
  for (const PeerName& client : clients) client_went(client);
  return wire::Bytes{};
}

Result<wire::Bytes> Head::status(const PeerName& from) const {
  if (!is_permanent(from)) return not_allowed(from, "tell its status", "join with a token first");
  const cluster::ClusterMachine& cluster = machine_.cluster();
  wire::StatusAnswer all;
  all.address = to_string(reached_at());
  all.waiting = waiting();
  for (const auto& [id, node] : cluster.nodes()) {
    const auto& gpus = node.gpu_used_e4;
    // Which of its tasks had given their CPUs away it says itself, when it registers again.
    const auto cpus = node.registered ? node.cpu_used_e4 : std::min(node.cpu_used_e4, node.info.cpu_e4);
    all.nodes.push_back({node.info, cpus, std::accumulate(gpus.begin(), gpus.end(), std::int64_t{0}),
                         static_cast<std::int32_t>(node.actors.size()), state_of(cluster, id, node),
                         cluster.why_drains(id), node.other_used});
  }
  for (const auto& [id, job] : cluster.jobs().all()) all.jobs.push_back(job.record);
  std::size_t bytes = 0, left_out = 0;
  for (const auto& [id, actor] : cluster.actors()) {
    if (actor.record.state == cluster::ActorState::kDead) continue;
    constexpr std::size_t kFixedBytes = 128;
    std::string why = cluster.why(actor);
    bytes += kFixedBytes + actor.record.spec.type.size() + actor.record.spec.name.size() + why.size();
    if (bytes > kMostActorBytes) {
      ++left_out;
      continue;
    }
    cluster::ActorRecord record = actor.record;
    record.spec.payload.clear();
    all.actors.push_back({std::move(record), std::move(why)});
  }
  if (left_out > 0) all.waiting.push_back(std::to_string(left_out) + " more actors are not shown");
  bytes = left_out = 0;
  for (const auto& [id, group] : cluster.groups().all()) {
    constexpr std::size_t kFixedBytes = 128, kBundleBytes = 48;
    bytes += kFixedBytes + kBundleBytes * group.record.placed.size() + group.record.spec.name.size() +
             group.reason.size();
    if (bytes > kMostGroupBytes) {
      ++left_out;
    } else {
      all.groups.push_back({group.record, group.reason});
    }
  }
  if (left_out > 0) all.waiting.push_back(std::to_string(left_out) + " more placement groups are not shown");
  all.head = figures_;
  all.head.changes = machine_.queue().changes();
  all.head.held = machine_.queue().held();
  return wire::encode(all);
}

/// The node that is meant: by its id, or by its name if that is one node's. None: no live node is.
Result<std::optional<NodeId>> Head::node_named(const std::string& name) const {
  std::vector<NodeId> found;
  for (const auto& [id, node] : machine_.cluster().nodes()) {
    if (to_string(id) == name) return std::optional(id);
    if (node.info.name == name && !node.info.gateway) found.push_back(id);
  }
  if (found.empty()) return std::optional<NodeId>();
  if (found.size() == 1) return std::optional(found.front());
  std::string ids;
  for (const NodeId id : found) ids += (ids.empty() ? "" : ", ") + to_string(id);
  return ErrorInfo{ErrorCode::kBadInput, "cannot tell which node is meant",
                   std::to_string(found.size()) + " have the name " + cluster::clipped(name),
                   "give one's id: " + ids};
}

Result<wire::Bytes> Head::drain(const PeerName& from, const wire::DrainAsk& ask) {
  const std::string what = (ask.cancel ? "cancel the drain of " : "drain ") + cluster::clipped(ask.node);
  const auto id = node_named(ask.node);
  if (!id) return id.error();
  const cluster::ClusterMachine& cluster = machine_.cluster();
  if (!*id && ask.only_asks) {
    const NodeId gone{std::strtoull(ask.node.c_str(), nullptr, 16)};
    return wire::encode(wire::DrainAnswer{.is_gone = true, .why = cluster.how_died(gone)});
  }
  const auto refuse = [&](std::string why, std::string todo) {
    return ErrorInfo{ErrorCode::kRefused, "cannot " + what, std::move(why), std::move(todo)};
  };
  if (!*id) return refuse("no live node has that name or id", "troupe status shows those that live");
  if (!is_owner(from) && !brought(from, **id))
    return not_allowed(from, what, "run it on the node's own machine, or on the head's");
  const auto& node = cluster.nodes().at(**id);
  if (node.info.gateway) return refuse("it is a program's own way in", "end the program");
  if (!node.registered && ask.only_asks)  // the head started again, and has not heard of it yet
    return wire::encode(wire::DrainAnswer{**id, node.info.name, false, true, ""});
  if (!node.registered) return refuse("the head waits for it to show itself", "try again when it is alive");
  if (!ask.only_asks) {
    if (node.leaving) return refuse("it leaves already", "wait for its end");
    const std::string by = from.starts_with(kMachinePrefix) ? "from its machine" : "by the head's owner";
    on(cluster::DrainRequested{**id, ask.grace_ms, "troupe drain " + by, ask.cancel});
    log(LogLevel::kInfo, "node " + node.info.name + " (" + to_string(**id) + ") " +
                             (ask.cancel ? "is told not to drain" : "drains"));
  }
  const bool goes = node.drain.has_value() || node.leaving;
  return wire::encode(wire::DrainAnswer{**id, node.info.name, false, goes, cluster.why_drains(**id)});
}

/// It is no death that max_restarts answers.
Result<wire::Bytes> Head::kill_actor(const PeerName& from, const wire::KillAsk& ask) {
  const ActorId id = ask.actor.actor;
  const std::string what = "kill actor " + to_string(id);
  if (!is_owner(from)) return not_allowed(from, what, "run it on the head's machine");
  const auto refuse = [&](const std::string& why) {
    return ErrorInfo{ErrorCode::kRefused, "cannot " + what, why, "troupe actor list shows those that live"};
  };
  const auto& actors = machine_.cluster().actors();
  const auto at = actors.find(id);
  if (at == actors.end()) return refuse("there is none");
  if (at->second.record.state == cluster::ActorState::kDead) return refuse("it has ended");
  log(LogLevel::kInfo,
      "actor " + to_string(id) + " (" + at->second.record.spec.type + ") is killed by the head's owner");
  kill(cluster::ActorRecord(at->second.record), ask.reason);
  return wire::Bytes{};
}

void Head::kill(const cluster::ActorRecord& actor, const std::string& reason) {
  const cluster::Job* job = machine_.cluster().jobs().find(actor.spec.job);
  const NodeId by = job == nullptr ? actor.node : job->record.driver.node;
  on(cluster::KillRequested{by, actor.spec.job, actor.actor, reason});
}

/// Detached actors of a machine that was shut out end with it, wherever they are. At every tick: one that is
/// ending may spawn others, and a head that died meanwhile has not written all of it down.
void Head::end_actors_of_strangers() {
  std::vector<cluster::ActorRecord> ends;
  const cluster::ClusterMachine& cluster = machine_.cluster();
  for (const auto& [started_by, theirs] : cluster.detached()) {
    if (started_by.empty() || admission_->knows(started_by)) continue;
    for (const ActorId id : theirs) {
      const cluster::ActorRecord& actor = cluster.actors().at(id).record;
      if (actor.state != cluster::ActorState::kEnding) ends.push_back(actor);
    }
  }
  for (const auto& actor : ends) kill(actor, key_was_removed(actor.started_by));
}

/// Of a store in which a machine that was shut out has nodes: an older head let them in after that.
void Head::shut_out_nodes_of_strangers() {
  std::vector<Admission::Peer> nodes;
  for (const auto& [key, peer] : admission_->peers()) {
    const PeerName& by = peer.brought_by;
    if (!by.empty() && by != kOwnerName && !admission_->knows(by)) nodes.push_back(peer);
  }
  for (const Admission::Peer& node : nodes) {
    log(LogLevel::kWarning, "node " + node.name + " is shut out: " + key_was_removed(node.brought_by));
    if (auto removed = admission_->remove(node.name); !removed)
      log(LogLevel::kError, removed.error().message());
    on(cluster::NodeLeft{{std::strtoull(node.name.c_str(), nullptr, 16)}, key_was_removed(node.brought_by)});
  }
}

/// A line for each class and demand that waits: how many, and why.
std::vector<std::string> Head::waiting() const {
  std::vector<std::string> lines;
  if (const auto& trouble = machine_.trouble())
    lines.push_back("new jobs and spawns are refused: " + trouble->message());
  const cluster::ClusterMachine& cluster = machine_.cluster();
  std::map<std::string, std::pair<const cluster::PendingSpawn*, std::size_t>> kinds;
  std::size_t left_out = 0;
  for (const auto& [number, spawn] : cluster.waiting().all()) {
    const auto& demand = spawn.spec.demand;
    const cluster::Group* group = cluster.groups().find(demand.group);
    const bool is_whole = group != nullptr && group->record.spec.start_only;  // all wait for the same
    std::string kind = spawn.spec.type + '\n' + std::to_string(demand.cpu_e4) + '\n' +
                       to_string(demand.affinity) + '\n' + std::to_string(demand.gpu_e4) + '\n' +
                       format_other(demand.other) + '\n' + to_string(demand.group) + '\n' +
                       std::to_string(is_whole ? -1 : demand.bundle);
    const auto at = kinds.find(kind);
    if (at != kinds.end()) {
      ++at->second.second;
    } else if (kinds.size() < kMostWaiting) {
      kinds.emplace(std::move(kind), std::pair(&spawn, std::size_t{1}));
    } else {
      ++left_out;
    }
  }
  for (const auto& [kind, waits] : kinds) {
    const std::string count = waits.second == 1 ? "" : std::to_string(waits.second) + " x ";
    lines.push_back(count + waits.first->spec.type + ": " + cluster.why_waits(*waits.first));
  }
  if (left_out > 0) lines.push_back(std::to_string(left_out) + " more");
  return lines;
}

Endpoint Head::reached_at() const {
  Endpoint at = server_->address();
  if (!options_.advertised.empty()) at.host = options_.advertised;
  return at;
}

void Head::remove_expired_keys() {
  const Instant now = clock_.now();
  for (auto at = key_deadlines_.begin(); at != key_deadlines_.end();) {
    if (now < at->second) {
      ++at;
      continue;
    }
    const NodeId node{std::strtoull(at->first.c_str(), nullptr, 16)};
    if (!machine_.cluster().nodes().contains(node)) {
      if (auto removed = admission_->remove(at->first); !removed) {
        at->second = now + kKeyGrace;  // the store fails: later
        ++at;
        continue;
      }
    }
    at = key_deadlines_.erase(at);
  }
  if (auto swept = admission_->sweep(); !swept) log(LogLevel::kError, swept.error().message());
}

void Head::expire_key(NodeId node) {
  missed_.erase(node);
  key_deadlines_[to_hex(node.value)] = clock_.now() + kKeyGrace;
}

}  // namespace troupe
