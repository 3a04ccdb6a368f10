/// An HTTP/1.1 server for any program of ours: it knows no actors and no tensors. One thread a core, each
/// with its own connections; the handler runs in them and must not block.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/endpoint.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/http/message.hpp"

namespace troupe::http {

struct ServerOptions {
  std::string host = "127.0.0.1";  ///< a numeric address, or "localhost"
  std::uint16_t port = 8000;       ///< 0: any free one
  int threads = 0;                 ///< 0: one a core
  /// TLS 1.2 and later: PEM files of the certificate with its chain, and of its key. Empty: none.
  std::string tls_certificate{}, tls_key{};
  std::size_t max_header_bytes = std::size_t{16} << 10;  ///< 431 above
  std::size_t max_body_bytes = std::size_t{64} << 20;    ///< 413 above
  /// Of all requests that are being read or answered: 503 above. It bounds what strangers make the process
  /// hold.
  std::size_t max_total_bytes = std::size_t{1} << 30;
  std::size_t max_connections = 4096;              ///< 503 above
  std::chrono::milliseconds idle_timeout{60'000};  ///< between two requests of a connection
  /// From a request's first byte to its last: 408 after. A second more for each MiB of the body.
  std::chrono::milliseconds read_timeout{30'000};
  /// Until the client has taken the response; then it is cut off. A second more for each MiB.
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds request_timeout{60'000};       ///< the deadline where the client names none
  std::chrono::milliseconds max_request_timeout{600'000};  ///< of what the client may ask for
  /// Told the status of each answer that the server gives in place of the handler: ServerCounts::refused. In
  /// its threads; must not block.
  std::function<void(int status)> on_refused{};
};

struct Exchange;

/// How a request is answered: once, from any thread, when you like. One that is dropped unused answers 500.
/// It may outlive the server, and does nothing then.
class Answer {
 public:
  Answer() = default;
  /// One that hands the response to `take`: for tests of a handler without a server.
  explicit Answer(std::function<void(Response)> take);
  explicit Answer(std::shared_ptr<Exchange> exchange);
  Answer(Answer&&) noexcept = default;
  Answer& operator=(Answer&& other) noexcept;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  ~Answer();

  /// Sends the response. REQUIRES: not answered yet.
  void operator()(Response response);
  /// Whether it can still be used: false after the answer was given, or moved elsewhere.
  explicit operator bool() const { return exchange_ != nullptr; }

  /// The client closed its connection: nobody waits for the answer. That is known about a second later. One
  /// that closes only its sending half still waits. Thread-safe.
  bool client_left() const;
  /// Calls `call` once when the client leaves before the answer: in a thread of the server, or here and now
  /// where it has left already. It may come while the answer is being given, never later. Must not block, and
  /// must not destroy this Answer where it is called here and now.
  void on_client_left(std::function<void()> call);

 private:
  std::shared_ptr<Exchange> exchange_;
};

using Handler = std::function<void(Request, Answer)>;

/// Since the server started. Thread-safe to read.
struct ServerCounts {
  std::uint64_t connections = 0;  ///< open now
  std::uint64_t accepted = 0;     ///< connections
  std::uint64_t requests = 0;     ///< handed to the handler
  std::uint64_t answered = 0;     ///< responses fully written
  std::uint64_t refused = 0;      ///< malformed, too large, too slow or too many: answered here
  std::uint64_t left = 0;         ///< requests whose client left before the answer
};

class Server {
 public:
  /// Listens and serves from here on. Throws Unavailable for a port that is in use and an address that is not
  /// ours, BadConfig for options that make no sense and TLS files that are no certificate and its key.
  Server(ServerOptions options, Handler handler);
  /// The same on sockets that listen already, listening() of a server in another process: whose host and port
  /// count. REQUIRES: there is one.
  Server(ServerOptions options, Handler handler, std::vector<UniqueFd> listening);
  /// Closes everything at once; requests under way are lost. drain() first loses none.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Where it listens: the port is the real one.
  const Endpoint& address() const;
  ServerCounts counts() const;

  /// Its listening sockets, for a server that takes its place: both accept, until this one leaves. Not from a
  /// thread of the server.
  std::vector<UniqueFd> listening() const;
  /// Accepts no connection from here on: those that wait are for whoever else has the sockets. What comes on
  /// open ones is answered, with `Connection: close`. Does not wait for that: drain() does. Not from a thread
  /// of the server.
  void leave();
  /// Accepts no connection from here on, answers what is under way or on its way with `Connection: close`,
  /// and closes. A connection that stays idle for half a second more is closed. True: every request was
  /// answered; false: at the end of `timeout` some were not, and are cut off. Not from a thread of the
  /// server.
  bool drain(std::chrono::milliseconds timeout);

 private:
  void check_may_wait() const;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe::http
