/// The connecting end of a link between hosts: a DEALER socket, a new one for each session. Internal to zmq/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/link/transport.hpp"
#include "runtime/link/zmq/zmq_loop.hpp"
#include "runtime/link/zmq/zmq_queue.hpp"
#include "runtime/link/zmq/zmq_socket.hpp"

namespace troupe::zmq_link {

class ZmqClient final : public LinkClient, private LoopMember {
 public:
  static Result<std::unique_ptr<LinkClient>> start(ZmqLoop& loop, ConnectOptions options,
                                                   ClientHandlers handlers);
  ~ZmqClient() override;

  LinkState state() const override;
  Sent send(wire::Bytes&& frame) override;

 private:
  /// One attempt to connect and, if it succeeds, that session.
  struct Attempt {
    Attempt(ZmqLoop& loop, const ConnectOptions& options, LoopMember& member);
    ~Attempt();

    ZmqLoop& loop;
    zmq::socket_t socket;
    Monitor monitor;
    Joiner in;
    std::shared_ptr<SendQueue> out;
    Instant begun{0};
    Instant deadline{0};  ///< of the handshake
    Instant last_packet{0};
    Instant give_up = kNever;  ///< for the last words
    bool secured = false;      ///< both ends proved their keys; our hello is said
    bool up = false;           ///< the server's hello came: there is a session
    bool over = false;
    bool goodbye_said = false;
    LinkState end_state = LinkState::kLost;
    std::string why;
  };

  ZmqClient(ZmqLoop& loop, ConnectOptions options, ClientHandlers handlers);
  Result<void> wait_for_first(Duration wait);

  // On the loop's thread:
  Instant turn(Instant now) override;
  bool is_over() const override { return is_over_; }
  bool begin_attempt(Instant now);
  Instant serve_attempt(Attempt& attempt, Instant now);
  Instant say_last_words(Attempt& attempt, Instant now);
  void handle_events(Attempt& attempt, Instant now);
  bool receive_one(Attempt& attempt, Instant now);
  void take_packet(Attempt& attempt, wire::ByteView packet);
  void break_off(Attempt& attempt, const std::string& why);
  void end_attempt(Instant now);
  void set_state(LinkState state, const std::string& why, std::shared_ptr<SendQueue> queue = nullptr);

  ZmqLoop& loop_;
  const ConnectOptions options_;
  const ClientHandlers handlers_;
  std::atomic<bool> stop_{false};

  // The loop's thread alone:
  std::unique_ptr<Attempt> attempt_;
  Instant next_attempt_{0};
  Duration back_off_;
  bool is_over_ = false;

  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  LinkState state_ = LinkState::kConnecting;
  std::string why_;
  std::shared_ptr<SendQueue> queue_;  ///< of the session there is now
  bool key_refused_ = false;          ///< by the server's ZAP handler: no retry helps
  unsigned failed_handshakes_ = 0;    ///< in a row
};

}  // namespace troupe::zmq_link
