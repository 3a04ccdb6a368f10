/// One connection of a client, in the thread of its loop: requests one after the other, each answered before
/// the next is looked at. No header but connection.cpp and server.cpp includes this one, which brings along
/// Asio.
///
///   (handshake ->) idle -> reading -> answering -> writing -> idle ... or -> lingering -> closed
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/http/exchange.hpp"
#include "runtime/http/request_parser.hpp"
#include "runtime/http/server.hpp"

namespace troupe::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using Socket = asio::basic_stream_socket<tcp, asio::io_context::executor_type>;

/// What all threads of a server share.
struct Shared {
  ServerOptions options;
  Handler handler;
  std::optional<asio::ssl::context> tls;
  MonotonicClock clock;
  std::atomic<bool> draining{false};
  std::atomic<std::size_t> total_bytes{0};  ///< of bodies
  std::atomic<std::uint64_t> accepted{0}, requests{0}, answered{0}, refused{0}, left{0}, cut_off{0};

  // Open connections, and who waits for the last one to close.
  std::atomic<std::size_t> connections{0};
  std::mutex mutex;
  std::condition_variable closed;
  /// Whether none is open any more.
  bool wait_until_closed(std::chrono::milliseconds timeout);
};

class Connection;

/// A thread's connections and its timeouts.
struct Loop : std::enable_shared_from_this<Loop> {
  explicit Loop(std::shared_ptr<Shared> of_all);
  ~Loop();
  /// Until io is stopped.
  void run();
  void begin_drain();
  void cut_off_all();
  std::string make_id();

  std::shared_ptr<Shared> shared;
  std::unordered_set<std::shared_ptr<Connection>> connections;  ///< open ones
  std::atomic<std::size_t> open{0};  ///< of them, and of those on their way here: any thread may ask
  std::string date;                  ///< "Date: ...\r\n", of this second
  std::uint64_t id_seed, ids = 0;
  /// Waits again for what a handler that threw no longer waits for.
  std::function<void()> rearm;
  // Last: it is destroyed first, with every handler that holds a connection.
  asio::io_context io{1};
  asio::basic_waitable_timer<std::chrono::steady_clock, asio::wait_traits<std::chrono::steady_clock>,
                             asio::io_context::executor_type>
      timer{io};

 private:
  void tick();
  bool ticks_ = false;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Loop& loop, Socket socket);
  ~Connection();

  /// In its loop's thread, once. `refused`: it is one too many, and told so.
  void start(bool refused);
  /// Its time may be up.
  void check(Instant now);
  /// Nothing new is awaited for long.
  void begin_drain(Instant now);
  void close();
  /// Whether a client waits for an answer.
  bool is_busy() const {
    return phase_ == Phase::kReading || phase_ == Phase::kAnswering || phase_ == Phase::kWriting;
  }

 private:
  enum class Phase { kHandshake, kIdle, kReading, kAnswering, kWriting, kLingering, kClosed };

  void shake_hands();
  void read();
  void on_read(const boost::system::error_code& ec, std::size_t bytes);
  void on_peer_closed(bool reset);
  void advance();
  bool account(std::size_t held);
  Duration idle_time() const;
  void take_answer(std::uint64_t serial, Response response);
  void leave();
  bool send_continue();
  void dispatch();
  void respond(Response response);
  void refuse(int status, std::string_view text);
  void on_written(const boost::system::error_code& ec);
  void linger();
  void enter(Phase phase, Duration time);
  Duration with_transfer(std::chrono::milliseconds timeout, std::size_t bytes) const;
  std::string_view unread() const { return {in_.data() + begin_, end_ - begin_}; }

  // Its loop outlives it.
  Loop& loop_;
  Shared& shared_;
  std::weak_ptr<Loop> weak_loop_;
  Socket socket_;
  std::unique_ptr<asio::ssl::stream<Socket&>> tls_;
  RequestParser parser_;
  std::vector<char> in_;
  std::size_t begin_ = 0, end_ = 0;  ///< of what was received and not parsed
  Phase phase_ = Phase::kIdle;
  Instant due_{};    ///< when the phase has lasted too long
  Instant began_{};  ///< the request being read
  bool is_reading_ = false;
  bool peer_closed_ = false;  ///< it sent its end
  Instant ask_at_{};          ///< and is asked then whether it is there
  std::size_t lingered_ = 0;  ///< bytes thrown away before the close
  bool said_continue_ = false;
  bool keep_alive_ = true;
  bool is_head_ = false, is_http_1_0_ = false;
  std::size_t accounted_ = 0;  ///< bytes of shared_.total_bytes
  std::uint64_t serial_ = 0;   ///< of the request under way
  std::string id_;             ///< its X-Request-Id
  std::shared_ptr<Exchange> exchange_;
  std::string out_head_, out_body_;
};

}  // namespace troupe::http
