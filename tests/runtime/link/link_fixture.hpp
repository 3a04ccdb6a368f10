// A head and its nodes on machine links, and a record of what their handlers saw.
#pragma once

#include <catch2/catch.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/link/zmq/zmq_transport.hpp"

namespace troupe::test {

inline std::vector<std::byte> bytes(std::string_view text) {
  const auto raw = std::as_bytes(std::span(text));
  return {raw.begin(), raw.end()};
}

/// Thread-safe. Waiting has a generous deadline; what never happens fails the test.
class Record {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  bool wait_for(const std::string& line, std::size_t times = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return count_locked(line) >= times; });
  }
  std::size_t count(const std::string& line) {
    const std::lock_guard lock(mutex_);
    return count_locked(line);
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::size_t count_locked(const std::string& line) const {
    return static_cast<std::size_t>(std::count(lines_.begin(), lines_.end(), line));
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

inline std::string describe(std::span<const std::byte> message) {
  if (message.size() > 64) return std::to_string(message.size()) + " bytes";
  return {reinterpret_cast<const char*>(message.data()), message.size()};
}

struct Head {
  MonotonicClock clock;
  std::unique_ptr<MachineTransport> transport = make_zmq_transport(clock);
  CurveKeyPair keys = CurveKeyPair::generate();
  std::shared_ptr<Authorizer> authorizer = std::make_shared<Authorizer>(clock);
  Record record;  // "NAME: message", "NAME connected", "NAME gone"
  std::unique_ptr<MachineServer> server;

  Head() { start({"127.0.0.1", 0}); }
  void start(const Endpoint& address) {
    ServerHandlers handlers;
    handlers.on_frame = [this](const PeerName& from, std::span<const std::byte> message) {
      record.add(from + ": " + describe(message));
    };
    handlers.on_peer_connected = [this](const PeerName& name) { record.add(name + " connected"); };
    handlers.on_peer_gone = [this](const PeerName& name) { record.add(name + " gone"); };
    server = transport->serve({address, keys, authorizer}, std::move(handlers)).value();
  }
  Endpoint address() const { return server->address(); }
};

struct Node {
  CurveKeyPair keys = CurveKeyPair::generate();
  Record record;  // the message, or "connected", "refused", "lost", "connecting"
  std::unique_ptr<MachineClient> client;

  Result<void> connect(Head& head, Duration wait = std::chrono::seconds(20)) {
    return connect(head, head.keys.public_key(), head.address(), wait);
  }
  Result<void> connect(Head& head, const PublicKey& server_key, const Endpoint& address, Duration wait) {
    ClientHandlers handlers;
    handlers.on_frame = [this](std::span<const std::byte> message) { record.add(describe(message)); };
    handlers.on_state = [this](LinkState state, const std::string&) {
      constexpr const char* kNames[] = {"connecting", "connected", "refused", "lost"};
      record.add(kNames[static_cast<int>(state)]);
    };
    auto made = head.transport->connect({address, server_key, keys, wait}, std::move(handlers));
    if (!made) return made.error();
    client = std::move(*made);
    return {};
  }
  /// A node that the head knows as `name`, connected and known to the head's server.
  Node() = default;
  Node(Head& head, const std::string& name) {
    head.authorizer->allow(keys.public_key(), name);
    const std::size_t before = head.record.count(name + " connected");
    connect(head).value();
    REQUIRE(head.record.wait_for(name + " connected", before + 1));
  }
  bool send(std::string_view text) { return client->send(bytes(text)); }
};

}  // namespace troupe::test
