/// A node in a thread, for tests of the process above it: it makes rings between its processes, answers
/// leases, and routes what is for another "node" (an id of its own, with the same processes behind it). What
/// it does not do, NodeMachine does.
#pragma once

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/host/process.hpp"
#include "runtime/link/ring/ring_hub.hpp"
#include "runtime/link/socket/first_exchange.hpp"
#include "tests/support/eventually.hpp"

namespace troupe::test {

inline UniqueFd copy_of(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

class FakeNode {
 public:
  FakeNode() : thread_([this] { run(); }) {}
  ~FakeNode() {
    stopping_ = true;
    thread_.join();
  }

  /// A process on node `node` (1: rings with its neighbours; others: every frame is routed).
  std::unique_ptr<Process> make(std::uint64_t node, std::uint64_t id, JobId job = {7}) {
    auto ends = SocketLink::pair().value();
    ProcessConfig config;
    config.node = {node};
    config.process = {id};
    config.job = job;
    config.label = "process " + std::to_string(id);
    {
      const std::lock_guard lock(mutex_);
      auto& peer = peers_[{node, id}];
      peer.address = {{node}, {id}};
      peer.job = job;
      peer.link = std::move(ends.first);
    }
    return std::make_unique<Process>(config, std::move(ends.second),
                                     Process::Handlers{[] {}, [](const wire::Output&) {}});
  }
  void tell_all(const wire::Control& message) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, peer] : peers_) send(peer, message);
  }
  void tell(std::uint64_t node, std::uint64_t id, const wire::Control& message) {
    const std::lock_guard lock(mutex_);
    send(peers_.at({node, id}), message);
  }
  /// Its node is gone.
  void drop(std::uint64_t node, std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    peers_.erase({node, id});
  }
  /// Frames for it are held back, as by a process that does not read.
  void hold(std::uint64_t node, std::uint64_t id, bool on) {
    const std::lock_guard lock(mutex_);
    auto& peer = peers_.at({node, id});
    peer.held = on;
    if (on) return;
    for (auto& message : std::exchange(peer.kept, {})) peer.link.send(message.header, message.body);
  }
  /// Bytes of frames held back.
  std::size_t held_bytes(std::uint64_t node, std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    std::size_t all = 0;
    for (const auto& message : peers_.at({node, id}).kept) all += message.body.size();
    return all;
  }
  /// What came about spawns, in order: "ask 3", "cancel 3".
  std::vector<std::string> spawns() {
    const std::lock_guard lock(mutex_);
    return spawns_;
  }
  /// Fails every spawn that has no answer yet.
  void fail_spawns() {
    const std::lock_guard lock(mutex_);
    for (const auto& [peer, request] : std::exchange(open_spawns_, {}))
      send(*peer, wire::Answer{request, false, {ErrorCode::kRefused, "no actor", "the test", ""}, {}});
  }
  /// Why the last actor that ended did so, or did not come up.
  std::string why() {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  /// Spawns are told that they wait.
  std::atomic<bool> spawns_wait{false};
  /// Where light actors of everybody are constructed.
  void lease(std::uint64_t node, std::uint64_t id) { leased_ = {{node}, {id}}; }
  /// Rings asked for are not made until this is off again.
  std::atomic<bool> no_rings{false};
  /// That many rings asked for cannot be made.
  std::atomic<int> rings_fail{0};
  std::atomic<int> routed{0};
  /// Actors told to start (StartActorHere) that are up, or have failed.
  std::atomic<int> started{0};
  /// Those that have ended.
  std::atomic<int> ended{0};
  /// That many frames that want a reply are refused, as by a link that broke.
  std::atomic<int> unavailable{0};

 private:
  struct Peer {
    ProcessAddress address;
    JobId job;
    SocketLink link;
    UniqueFd bell;
    bool held = false;
    std::vector<Message> kept;
    std::vector<wire::RingAsk> rings_asked;
    std::set<ProcessId> rings;
  };

  void run() {
    while (!stopping_) {
      std::vector<pollfd> waits;
      {
        const std::lock_guard lock(mutex_);
        for (auto& [key, peer] : peers_)
          waits.push_back(
              {peer.link.fd(), static_cast<short>(POLLIN | (peer.link.wants_write() ? POLLOUT : 0)), 0});
      }
      ::poll(waits.data(), waits.size(), 1);
      const std::lock_guard lock(mutex_);
      for (auto& [key, peer] : peers_) {
        peer.link.flush();
        Message message;
        for (int i = 0; i < 64 && peer.link.receive(message) == SocketLink::Got::kMessage; ++i)
          on_message(peer, std::move(message));
        if (no_rings) continue;
        for (const auto& ask : std::exchange(peer.rings_asked, {})) make_ring(peer, ask);
      }
    }
  }

  void on_message(Peer& peer, Message message) {
    if (message.header.kind != wire::FrameKind::kControl) {
      ++routed;
      if (unavailable > 0 && wire::wants_reply(message.header)) {
        --unavailable;
        wire::FrameHeader reply;
        const auto body = wire::refusal(
            message.header,
            {ErrorCode::kUnavailable, "the actor cannot be reached now", "the link broke", ""}, reply);
        return peer.link.send(reply, body), void();
      }
      const auto to = peers_.find({message.header.to.node.value, message.header.to.process.value});
      if (to == peers_.end()) {
        if (!wire::wants_reply(message.header)) return;
        wire::FrameHeader reply;
        const auto body =
            wire::refusal(message.header, {ErrorCode::kActorDied, "", "no such process", ""}, reply);
        peer.link.send(reply, body);
      } else if (to->second.held) {
        to->second.kept.push_back(std::move(message));
      } else {
        to->second.link.send(message.header, message.body);
      }
      return;
    }
    auto control = wire::decode_control(message.header, message.body);
    if (!control) return;
    if (std::get_if<wire::Hello>(&*control) != nullptr && !message.fds.empty())
      peer.bell = std::move(message.fds[0]);
    if (const auto* not_up = std::get_if<wire::ActorNotUp>(&*control)) why_ = not_up->error.message();
    if (const auto* end = std::get_if<wire::ActorEnded>(&*control)) why_ = end->reason;
    if (std::holds_alternative<wire::ActorUp>(*control) || std::holds_alternative<wire::ActorNotUp>(*control))
      ++started;
    if (std::holds_alternative<wire::ActorEnded>(*control)) ++ended;
    if (auto* ring = std::get_if<wire::RingAsk>(&*control)) {
      if (rings_fail > 0) {
        --rings_fail;
        return send(peer, wire::Answer{ring->request, false, {ErrorCode::kIo, "no ring", "EMFILE", ""}, {}});
      }
      peer.rings_asked.push_back(*ring);
    }
    if (auto* spawn = std::get_if<wire::SpawnAsk>(&*control)) {
      spawns_.push_back("ask " + std::to_string(spawn->request));
      open_spawns_.emplace_back(&peer, spawn->request);
      if (spawns_wait) send(peer, wire::SpawnWaits{spawn->request, "no CPU is free"});
    }
    if (auto* cancel = std::get_if<wire::SpawnCancel>(&*control)) {
      spawns_.push_back("cancel " + std::to_string(cancel->request));
      std::erase(open_spawns_, std::pair(&peer, cancel->request));
    }
    if (auto* lease = std::get_if<wire::LeaseAsk>(&*control))
      answer(peer, lease->request, wire::encode(wire::LeaseAnswer{leased_}));
    if (auto* nodes = std::get_if<wire::NodesAsk>(&*control)) {
      wire::NodesAnswer all;
      all.nodes.resize(1);
      all.nodes[0].id = peer.address.node;
      answer(peer, nodes->request, wire::encode(all));
    }
  }

  void make_ring(Peer& peer, const wire::RingAsk& ask) {
    const auto at = peers_.find({peer.address.node.value, ask.peer.value});
    if (at == peers_.end()) {
      return send(
          peer, wire::Answer{
                    ask.request, false, {ErrorCode::kActorDied, "no ring", "that process is gone", ""}, {}});
    }
    Peer& other = at->second;
    if (!other.bell) return peer.rings_asked.push_back(ask);  // it has not said hello yet
    if (peer.rings.insert(ask.peer).second) {
      other.rings.insert(peer.address.process);
      auto memory = SharedMemory::create("ring", 2 * kRingBytes, false).value();
      offer(other, peer, memory, false);
      offer(peer, other, memory, true);
    }
    answer(peer, ask.request, {});
  }
  void offer(Peer& to, Peer& other, const SharedMemory& memory, bool first) {
    std::vector<UniqueFd> fds;
    fds.push_back(copy_of(memory.fd()));
    fds.push_back(copy_of(other.bell.get()));
    send(to, wire::RingOffer{other.address.process, other.job, first}, std::move(fds));
  }
  void answer(Peer& peer, std::uint64_t request, wire::Bytes value) {
    send(peer, wire::Answer{request, true, {}, std::move(value)});
  }
  void send(Peer& peer, const wire::Control& message, std::vector<UniqueFd> fds = {}) {
    wire::FrameHeader header;
    header.from = {peer.address.node, {}};
    const auto body = wire::encode_control(message, header);
    peer.link.send(header, body, std::move(fds));
  }

  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Peer> peers_;
  std::vector<std::string> spawns_;
  std::vector<std::pair<Peer*, std::uint64_t>> open_spawns_;
  ProcessAddress leased_;
  std::string why_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace troupe::test
