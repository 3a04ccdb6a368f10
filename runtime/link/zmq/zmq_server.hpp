/// The listening end of a machine link: a ROUTER socket. Internal to machine_link.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "runtime/core/log_limiter.hpp"
#include "runtime/security/zap_handler.hpp"
#include "runtime/link/transport.hpp"
#include "runtime/link/zmq/zmq_socket.hpp"

namespace troupe::zmq_link {

class ZmqServer final : public MachineServer {
 public:
  static Result<std::unique_ptr<MachineServer>> start(ServeOptions options, ServerHandlers handlers,
                                                      const Clock& clock);
  ~ZmqServer() override;

  Endpoint address() const override { return address_; }
  bool send(const PeerName& to, std::span<const std::byte> message) override;

 private:
  /// One connection that said hello. Of a name there is at most one: the newest.
  struct Peer {
    Peer(std::string id, PublicKey peer_key, PeerName peer_name, int descriptor, ReassemblyBudget& budget)
        : routing_id(std::move(id)), key(peer_key), name(std::move(peer_name)), fd(descriptor), in(budget) {}

    const std::string routing_id;
    const PublicKey key;
    const PeerName name;
    int fd;  // of libzmq; to match the monitor's events, never used; -1 once the connection is closed
    Instant closed_at{0};
    Reassembler in;
    std::optional<Chunker> sending;
    bool goodbye_said = false;
    // Guarded by mutex_:
    std::deque<std::vector<std::byte>> queue;
    std::size_t queued_messages = 0;  // with the one being sent
    std::size_t queued_bytes = 0;
  };

  ZmqServer(ServeOptions options, ServerHandlers handlers, const Clock& clock, WakeFd wake);
  Result<void> bind(const Endpoint& address);

  // On the link's thread:
  void run();
  bool receive_one();
  void handle_frame(const std::string& routing_id, const zmq::message_t& frame);
  void handle_events();
  void drop_closed(bool all_received, Instant now);
  void admit(const std::string& routing_id, const PublicKey& key, const PeerName& name, int fd);
  void drop(const std::string& routing_id, bool tell);
  bool pump();
  bool pump_peer(Peer& peer);
  bool authorized(const Peer& peer) const;
  void sweep(Instant now);

  const Clock& clock_;
  const std::shared_ptr<Authorizer> authorizer_;
  const ServerHandlers handlers_;
  LimitedLog noise_;
  Endpoint address_;
  zmq::context_t context_;
  std::unique_ptr<ZapHandler> zap_;
  std::optional<zmq::socket_t> socket_;
  std::optional<Monitor> monitor_;
  std::map<int, std::string> strangers_;  ///< accepted connections that said no hello yet, and where they come from
  int refused_ = 0;                       ///< of these, refused by the ZAP handler and not yet closed
  WakeFd wake_;
  std::atomic<bool> stop_{false};

  ReassemblyBudget budget_;
  std::unordered_map<std::string, std::unique_ptr<Peer>> peers_;  // by routing id; the link's thread alone
  std::uint64_t last_message_id_ = 0;
  Instant next_sweep_{0};

  std::mutex mutex_;
  std::map<PeerName, Peer*> by_name_;  // changed by the link's thread alone, under mutex_

  std::thread thread_;
};

}  // namespace troupe::zmq_link
