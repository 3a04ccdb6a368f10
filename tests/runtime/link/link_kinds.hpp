// Every kind of link behind one interface, from a sender to a receiver, for the tests that hold all of them
// to the same rules.
#pragma once

#include <poll.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/link/socket/socket_link.hpp"
#include "runtime/link/zmq/zmq_transport.hpp"
#include "tests/runtime/link/messages.hpp"
#include "tests/support/eventually.hpp"

namespace troupe::test {

struct Received {
  wire::FrameHeader header;
  std::size_t bytes = 0;
  bool is_right = false;  ///< the body is the one that belongs to the header
};

class LinkKind {
 public:
  virtual ~LinkKind() = default;
  /// Thread-safe. The body belongs to the header (messages.hpp).
  virtual Sent send(const wire::FrameHeader& header, const wire::Bytes& body) = 0;
  /// The receiver reads nothing more, or goes on.
  virtual void pause(bool on) = 0;
  /// Ends the link at the receiver's side while messages are under way.
  virtual void break_off() = 0;
  /// Lets time pass until `done`; false when that takes more than a minute.
  bool run_until(const std::function<bool()>& done) { return eventually(done, std::chrono::minutes(1)); }

  std::vector<Received> received() {
    const std::lock_guard lock(mutex_);
    return received_;
  }
  std::size_t received_count() {
    const std::lock_guard lock(mutex_);
    return received_.size();
  }
  bool sender_heard_end() const { return sender_heard_; }

 protected:
  void hear(const wire::FrameHeader& header, wire::ByteView body) {
    const bool is_right = body_belongs(header, body);
    const std::lock_guard lock(mutex_);
    received_.push_back({header, body.size(), is_right});
  }
  void hear(const wire::Bytes& frame) {
    hear(wire::decode_header(frame).value(), wire::ByteView(frame).subspan(wire::kHeaderBytes));
  }
  std::atomic<bool> sender_heard_{false};

 private:
  std::mutex mutex_;
  std::vector<Received> received_;
};

class SocketKind final : public LinkKind {
 public:
  explicit SocketKind(std::size_t queue_bytes) {
    auto pair = SocketLink::pair().value();
    a_ = SocketLink(std::move(pair.first.socket()), queue_bytes);
    b_ = std::move(pair.second);
    reader_ = std::thread([this] { read(); });
    writer_ = std::thread([this] { write(); });
  }
  ~SocketKind() override {
    stop_ = true;
    reader_.join();
    writer_.join();
  }
  Sent send(const wire::FrameHeader& header, const wire::Bytes& body) override {
    return a_.send(header, body);
  }
  void pause(bool on) override { paused_ = on; }
  void break_off() override { b_.shutdown("broken off"); }

 private:
  void read() {
    Message message;
    while (!stop_) {
      pollfd wait{b_.fd(), POLLIN, 0};
      ::poll(&wait, 1, 5);
      while (!stop_ && !paused_) {
        const auto got = b_.receive(message);
        if (got == SocketLink::Got::kClosed) return;
        if (got == SocketLink::Got::kNothing) break;
        hear(message.header, message.body);
      }
    }
  }
  void write() {
    Message message;
    while (!stop_) {
      const auto events = static_cast<short>(POLLIN | (a_.wants_write() ? POLLOUT : 0));
      pollfd wait{a_.fd(), events, 0};
      ::poll(&wait, 1, 1);
      a_.flush();
      if (a_.receive(message) != SocketLink::Got::kClosed) continue;
      sender_heard_ = !a_.why_closed().empty();
      return;
    }
  }

  SocketLink a_;
  SocketLink b_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> paused_{false};
  std::thread reader_;
  std::thread writer_;
};

/// A server that receives, a client that sends.
class ZmqKind final : public LinkKind {
 public:
  explicit ZmqKind(std::size_t queue_bytes) {
    authorizer_ = std::make_shared<Authorizer>(clock_);
    authorizer_->allow(client_keys_.public_key(), "sender");
    ServerHandlers handlers;
    handlers.on_message = [this](const PeerName&, const wire::Bytes& frame) {
      std::unique_lock lock(pause_mutex_);
      resumed_.wait(lock, [this] { return !paused_; });
      hear(frame);
    };
    server_ =
        host_a_->serve({{}, server_keys_, authorizer_, LogLevel::kError, queue_bytes}, std::move(handlers))
            .value();
    ClientHandlers heard;
    heard.on_state = [this](LinkState state, const std::string& why) {
      if (state == LinkState::kLost) sender_heard_ = !why.empty();
    };
    client_ = host_b_
                  ->connect({server_->address(), server_keys_.public_key(), client_keys_,
                             std::chrono::seconds(20), queue_bytes},
                            std::move(heard))
                  .value();
    REQUIRE(run_until([this] { return client_->state() == LinkState::kConnected; }));
  }
  ~ZmqKind() override {
    pause(false);
    client_.reset();
    server_.reset();
  }
  Sent send(const wire::FrameHeader& header, const wire::Bytes& body) override {
    return client_->send(wire::whole_frame(header, body));
  }
  void pause(bool on) override {
    const std::lock_guard lock(pause_mutex_);
    paused_ = on;
    resumed_.notify_all();
  }
  void break_off() override { authorizer_->revoke(client_keys_.public_key()); }

 private:
  MonotonicClock clock_;
  CurveKeyPair server_keys_ = CurveKeyPair::generate();
  CurveKeyPair client_keys_ = CurveKeyPair::generate();
  std::shared_ptr<Authorizer> authorizer_;
  std::unique_ptr<Transport> host_a_ = make_zmq_transport(clock_);
  std::unique_ptr<Transport> host_b_ = make_zmq_transport(clock_);
  std::mutex pause_mutex_;
  std::condition_variable resumed_;
  bool paused_ = false;
  std::unique_ptr<LinkServer> server_;
  std::unique_ptr<LinkClient> client_;
};

inline std::unique_ptr<LinkKind> make_kind(const std::string& kind, std::size_t queue_bytes) {
  if (kind == "socket") return std::make_unique<SocketKind>(queue_bytes);
  return std::make_unique<ZmqKind>(queue_bytes);
}

}  // namespace troupe::test
