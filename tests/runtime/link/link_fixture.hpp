// A head and its nodes on links between hosts, and a record of what their handlers saw.
#pragma once

#include <algorithm>
#include <atomic>
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
  /// Whether a line with `part` in it comes.
  bool wait_for_part(const std::string& part) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return std::any_of(lines_.begin(), lines_.end(),
                         [&](const auto& line) { return line.find(part) != std::string::npos; });
    });
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

/// A frame with that text as its body.
inline wire::Bytes frame(std::span<const std::byte> body) {
  return wire::whole_frame({}, body);
}
inline wire::Bytes frame(std::string_view text) {
  return frame(bytes(text));
}

inline std::string describe(const wire::Bytes& message) {
  const std::size_t size = message.size() - wire::kHeaderBytes;
  if (size > 64) return std::to_string(size) + " bytes";
  return {reinterpret_cast<const char*>(message.data()) + wire::kHeaderBytes, size};
}

struct Head {
  MonotonicClock clock;
  std::unique_ptr<Transport> transport = make_zmq_transport(clock);
  CurveKeyPair keys = CurveKeyPair::generate();
  std::shared_ptr<Authorizer> authorizer = std::make_shared<Authorizer>(clock);
  Record record;   // "NAME: message", "NAME connected", "NAME gone", "NAME has room"
  Record reasons;  // "NAME gone: why"
  std::size_t queue_bytes = kLinkQueueBytes;
  std::atomic<bool> may_receive{true};
  std::unique_ptr<LinkServer> server;

  explicit Head(std::size_t bytes_queued = kLinkQueueBytes) : queue_bytes(bytes_queued) {
    start({"127.0.0.1", 0});
  }
  void start(const Endpoint& address) {
    ServerHandlers handlers;
    handlers.on_message = [this](const PeerName& from, const wire::Bytes& message) {
      record.add(from + ": " + describe(message));
    };
    handlers.may_receive = [this] { return may_receive.load(); };
    handlers.on_session = [this](const PeerName& name) { record.add(name + " connected"); };
    handlers.on_gone = [this](const PeerName& name, const std::string& why) {
      reasons.add(name + " gone: " + why);
      record.add(name + " gone");
    };
    handlers.on_room = [this](const PeerName& name) { record.add(name + " has room"); };
    server = transport->serve({address, keys, authorizer, LogLevel::kError, queue_bytes}, std::move(handlers))
                 .value();
  }
  Endpoint address() const { return server->address(); }
};

struct Node {
  CurveKeyPair keys = CurveKeyPair::generate();
  Record record;   // the message, or "connected", "refused", "lost", "connecting", "room"
  Record reasons;  // "lost: why"
  std::unique_ptr<LinkClient> client;

  Result<void> connect(Head& head, Duration wait = std::chrono::seconds(20)) {
    return connect(head, head.keys.public_key(), head.address(), wait);
  }
  Result<void> connect(Head& head, const PublicKey& server_key, const Endpoint& address, Duration wait) {
    ClientHandlers handlers;
    handlers.on_message = [this](const wire::Bytes& message) { record.add(describe(message)); };
    handlers.on_state = [this](LinkState state, const std::string& why) {
      constexpr const char* kNames[] = {"connecting", "connected", "refused", "lost"};
      if (!why.empty()) reasons.add(kNames[static_cast<int>(state)] + (": " + why));
      record.add(kNames[static_cast<int>(state)]);
    };
    handlers.on_room = [this] { record.add("room"); };
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
  bool send(std::string_view text) { return client->send(frame(text)) == Sent::kQueued; }
};

}  // namespace troupe::test
