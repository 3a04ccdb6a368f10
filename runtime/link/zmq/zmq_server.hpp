/// The listening end of links between hosts: a ROUTER socket. Internal to zmq/.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/log_limiter.hpp"
#include "runtime/link/transport.hpp"
#include "runtime/link/zmq/zmq_loop.hpp"
#include "runtime/link/zmq/zmq_queue.hpp"
#include "runtime/link/zmq/zmq_socket.hpp"
#include "runtime/link/zmq/zmq_strangers.hpp"

namespace troupe::zmq_link {

class ZmqServer final : public LinkServer, private LoopMember {
 public:
  static Result<std::unique_ptr<LinkServer>> start(ZmqLoop& loop, ServeOptions options,
                                                   ServerHandlers handlers);
  ~ZmqServer() override;

  Endpoint address() const override { return address_; }
  Sent send(const PeerName& to, wire::Bytes&& frame) override;

 private:
  /// A session: one connection that said hello. Of a name there is at most one, the newest.
  struct Peer {
    Peer(std::string id, std::string user, JoinBudget& budget, std::size_t queue_bytes)
        : routing_id(std::move(id)),
          user_id(std::move(user)),
          in({Joiner::Takes::kFrame, true, &budget}),
          out(queue_bytes) {}

    const std::string routing_id;
    const std::string user_id;  ///< its key, as libzmq attaches it to every frame
    PublicKey key;
    PeerName name;
    int fd = -1;  ///< of libzmq, to know its end by; -1 once it is closed
    Instant closed_at{0};
    Instant last_packet{0};
    Instant since{0};
    std::uint64_t read_bytes = 0;  ///< given to us by ZeroMQ, with what it adds to each frame
    bool goodbye_said = false;
    Joiner in;
    SendQueue out;
  };
  using PeerPtr = std::shared_ptr<Peer>;
  /// A connection whose session ended: nothing is read from it, and it is closed if the peer does not.
  struct Ended {
    int fd = -1;
    Instant close_at{0};
  };

  ZmqServer(ZmqLoop& loop, ServeOptions options, ServerHandlers handlers);
  Result<void> open(const ServeOptions& options);
  Result<void> bind(const Endpoint& address);

  // On the loop's thread:
  Instant turn(Instant now) override;
  bool is_over() const override { return is_over_; }
  bool receive_one(Instant now);
  void handle_frame(const std::string& routing_id, const zmq::message_t& frame, bool alone, Instant now);
  PeerPtr admit(const std::string& routing_id, const std::string& user_id, int fd, wire::ByteView hello,
                Instant now);
  void begin_session(const PeerPtr& peer, Instant now);
  void take_packet(const PeerPtr& peer, wire::ByteView packet, Instant now);
  void handle_events(Instant now);
  void drop_closed(bool all_received, Instant now);
  void end_session(const PeerPtr& peer, const std::string& why, bool tell, Instant now);
  void break_off(const PeerPtr& peer, const std::string& why, Instant now);
  void say_goodbye(Peer& peer, const std::string& why);
  SendQueue::Pumped pump();
  bool say_last_words(Instant now);
  void sweep(Instant now);
  bool authorized(const Peer& peer) const;
  bool holds_too_much(const Peer& peer, Instant now) const;
  bool give_port_back(Instant now);
  void close();

  ZmqLoop& loop_;
  const std::shared_ptr<Authorizer> authorizer_;
  const ServerHandlers handlers_;
  const std::size_t queue_bytes_;
  LimitedLog broken_;  ///< sessions that we ended
  Endpoint address_;
  std::string domain_;
  std::atomic<bool> stop_{false};

  // The loop's thread alone, once it is added:
  std::optional<zmq::socket_t> socket_;
  std::optional<Monitor> monitor_;
  Strangers strangers_;
  JoinBudget budget_;
  std::unordered_map<std::string, PeerPtr> peers_;  ///< sessions, by routing id
  std::unordered_map<std::string, Ended> ended_;    ///< by routing id
  std::unordered_map<int, PeerPtr> by_fd_;          ///< of peers_, those whose connection is not closed
  std::vector<PeerPtr> sending_;                    ///< that have something to send
  Instant next_sweep_{0};
  std::optional<Instant> give_up_;  ///< set once the owner wants the link to end
  std::vector<PeerPtr> closed_;     ///< of peers_, those whose connection is closed
  std::optional<Instant> unbound_;  ///< when the port was given back
  bool is_watched_ = false;
  bool is_held_back_ = false;  ///< handlers_.may_receive says so
  bool is_added_ = false;
  bool listener_closed_ = false;
  bool is_over_ = false;

  std::mutex mutex_;  ///< guards all below
  std::unordered_map<PeerName, PeerPtr> by_name_;
  std::vector<PeerPtr> woken_;  ///< that a sender gave something
};

}  // namespace troupe::zmq_link
