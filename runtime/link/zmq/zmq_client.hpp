/// The connecting end of a machine link: a DEALER socket, a new one for each connection. Internal to
/// machine_link.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/link/transport.hpp"
#include "runtime/link/zmq/zmq_socket.hpp"

namespace troupe::zmq_link {

class ZmqClient final : public MachineClient {
 public:
  static Result<std::unique_ptr<MachineClient>> start(ConnectOptions options, ClientHandlers handlers,
                                                      const Clock& clock);
  ~ZmqClient() override;

  LinkState state() const override;
  bool send(std::span<const std::byte> message) override;

 private:
  /// One attempt to connect and, if it succeeds, that connection.
  struct Attempt {
    Attempt(zmq::context_t& context, const ConnectOptions& options, ReassemblyBudget& budget);

    zmq::socket_t socket;
    Monitor monitor;
    Reassembler in;
    std::optional<Chunker> sending;
    Instant deadline{0};
    bool up = false;
    bool over = false;
    bool goodbye_heard = false;
  };

  ZmqClient(ConnectOptions options, ClientHandlers handlers, const Clock& clock, WakeFd wake);
  Result<void> wait_for_first(Duration wait);

  // On the link's thread:
  void run();
  bool make_attempt();
  void serve_attempt(Attempt& attempt);
  void say_last_words(Attempt& attempt);
  void handle_events(Attempt& attempt);
  void end_attempt(Attempt& attempt, LinkState state, const std::string& why);
  bool receive_one(Attempt& attempt);
  bool pump(Attempt& attempt);
  void pause(Duration duration);
  void set_state(LinkState state, const std::string& why);

  const ConnectOptions options_;
  const ClientHandlers handlers_;
  const Clock& clock_;
  zmq::context_t context_;
  WakeFd wake_;
  std::atomic<bool> stop_{false};
  ReassemblyBudget budget_;
  std::uint64_t last_message_id_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LinkState state_ = LinkState::kConnecting;
  std::string why_;
  bool key_refused_ = false;        // by the server's ZAP handler: no retry helps
  unsigned failed_handshakes_ = 0;  // in a row
  std::deque<std::vector<std::byte>> queue_;
  std::size_t queued_messages_ = 0;  // with the one being sent
  std::size_t queued_bytes_ = 0;

  std::thread thread_;
};

}  // namespace troupe::zmq_link
