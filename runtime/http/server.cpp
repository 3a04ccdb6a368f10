#include "runtime/http/server.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/quiet_thread.hpp"
#include "runtime/http/connection.hpp"

namespace troupe::http {
namespace {

using std::chrono::milliseconds;
using Acceptor = asio::basic_socket_acceptor<tcp, asio::io_context::executor_type>;

/// How long threads get to close what is theirs.
constexpr std::chrono::seconds kCloseTimeout{5};
/// Connections above the limit that are told so at one time; more are closed without a word.
constexpr std::size_t kRefusedAtOnce = 64;

void check_options(const ServerOptions& options, const Handler& handler) {
  const auto refuse = [](std::string why) {
    throw BadConfig("the options of the HTTP server make no sense", std::move(why), "give others");
  };
  if (!handler) refuse("there is no handler");
  if (options.threads < 0 || options.threads > 1024) refuse("threads is not between 0 and 1024");
  if (options.max_header_bytes < 256 || options.max_header_bytes > (std::size_t{1} << 24))
    refuse("max_header_bytes is not between 256 and 16 MiB");
  if (options.max_connections == 0 || options.max_total_bytes == 0) refuse("a limit is 0");
  for (const milliseconds time : {options.idle_timeout, options.read_timeout, options.write_timeout,
                                  options.request_timeout, options.max_request_timeout}) {
    if (time <= milliseconds(0) || time > std::chrono::hours(24 * 365))
      refuse("a timeout is not above 0, or over a year");
  }
}

[[noreturn]] void cannot_listen(const ServerOptions& options, const boost::system::error_code& ec) {
  const std::string where = to_string(Endpoint{options.host, options.port});
  std::string todo = "give an address of this host";
  if (ec == asio::error::address_in_use) {
    todo = "end who listens there (`ss -ltnp 'sport = :" + std::to_string(options.port) +
           "'` names it), or give another port, 0 for any free one";
  } else if (ec == asio::error::access_denied) {
    todo = "give a port above 1023";
  }
  throw_error({ErrorCode::kUnavailable, "cannot listen on " + where, ec.message(), std::move(todo)});
}

asio::ip::address address_of(const std::string& host) {
  boost::system::error_code ec;
  auto address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, ec);
  if (ec)
    throw BadConfig("cannot listen on '" + host + "'", "it is not a numeric address",
                    "give 127.0.0.1, 0.0.0.0 for every address of this host, or one of them");
  return address;
}

asio::ssl::context tls_of(const ServerOptions& options) {
  boost::system::error_code ec;
  asio::ssl::context tls(asio::ssl::context::tls_server);
  const auto check = [&](const char* what, const std::string& file) {
    if (ec)
      throw BadConfig("cannot serve with TLS", "'" + file + "' is no " + what + ": " + ec.message(),
                      "give PEM files of a certificate, with its chain, and of its key without a password");
  };
  tls.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv3 |
                      asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1,
                  ec);
  // Nobody is there to type one.
  tls.set_password_callback([](std::size_t, asio::ssl::context::password_purpose) { return std::string(); },
                            ec);
  tls.use_certificate_chain_file(options.tls_certificate, ec);
  check("certificate", options.tls_certificate);
  tls.use_private_key_file(options.tls_key, asio::ssl::context::pem, ec);
  check("key of that certificate", options.tls_key);
  return tls;
}

}  // namespace

/// A loop's own listening socket, in its thread. All of a server share its port (SO_REUSEPORT): the kernel
/// deals connections out among them.
struct Listener {
  explicit Listener(Loop& its_loop) : loop(its_loop), acceptor(its_loop.io), retry(its_loop.io) {}
  Loop& loop;
  Acceptor acceptor;
  asio::steady_timer retry;
  bool armed = false;  ///< the next connection, or a retry, is waited for
};

struct Server::State {
  State(ServerOptions options, Handler handler, std::vector<UniqueFd> listening);
  ~State();
  void listen();
  void listen_on(std::vector<UniqueFd> sockets);
  void accept(Listener& on);
  Loop& loop_for_next(Listener& on);
  void take(Socket socket, Loop& loop);
  void stop_accepting_on(Listener& on);
  void stop_accepting(Loop& in) {
    for (const auto& listener : listeners) {
      if (&listener->loop == &in) stop_accepting_on(*listener);
    }
  }
  /// Runs `work` in every loop's thread, and waits for it. False: some thread hangs in the handler.
  bool in_every_loop(const std::function<void(std::size_t loop)>& work);
  bool cut_off_all() {
    return in_every_loop([this](std::size_t loop) { loops[loop]->cut_off_all(); });
  }

  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::vector<std::shared_ptr<Loop>> loops;
  std::vector<std::unique_ptr<Listener>> listeners;  ///< one a loop, or those that were handed over
  Endpoint address;
  std::vector<std::thread> threads;
};

Server::State::State(ServerOptions options, Handler handler, std::vector<UniqueFd> listening) {
  check_options(options, handler);
  shared->options = std::move(options);
  shared->handler = std::move(handler);
  if (shared->options.tls_certificate.empty() != shared->options.tls_key.empty())
    throw BadConfig("cannot serve with TLS", "it has a certificate without a key, or a key without one",
                    "give both, or none");
  if (!shared->options.tls_key.empty()) shared->tls.emplace(tls_of(shared->options));
  int count = shared->options.threads;
  if (count == 0) count = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (int i = 0; i < count; ++i) loops.push_back(std::make_shared<Loop>(shared));
  listening.empty() ? listen() : listen_on(std::move(listening));
  for (const auto& listener : listeners) accept(*listener);
  for (const auto& loop : loops) {
    loop->rearm = [this, loop = loop.get()] {
      for (const auto& listener : listeners) {
        if (&listener->loop == loop && !listener->armed && listener->acceptor.is_open()) accept(*listener);
      }
    };
  }
  for (const auto& loop : loops) threads.push_back(start_quiet_thread([loop = loop.get()] { loop->run(); }));
}

Server::State::~State() {
  in_every_loop([this](std::size_t loop) { stop_accepting(*loops[loop]); });
  if (cut_off_all()) shared->wait_until_closed(kCloseTimeout);
  for (const auto& loop : loops) loop->io.stop();
  for (auto& thread : threads) thread.join();
  listeners.clear();
  loops.clear();  // an Answer that is being given may hold one a moment longer
  shared->handler = nullptr;
}

void Server::State::listen() {
  using ReusePort = asio::detail::socket_option::boolean<SOL_SOCKET, SO_REUSEPORT>;
  const ServerOptions& options = shared->options;
  tcp::endpoint endpoint(address_of(options.host), options.port);
  for (const auto& loop : loops) {
    auto& acceptor = listeners.emplace_back(std::make_unique<Listener>(*loop))->acceptor;
    const bool is_first = listeners.size() == 1;
    boost::system::error_code ec;
    acceptor.open(endpoint.protocol(), ec);
    if (!ec) ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
    // Not kept waiting by closed connections of the server before; one that listens is still found.
    if (!ec) acceptor.set_option(asio::socket_base::reuse_address(true), ec);
    // The first listens before it has SO_REUSEPORT: with it, it would share the port of another program of
    // this user. Two that have only bound may have one port: listening tells who has it.
    if (!ec && !is_first) acceptor.set_option(ReusePort(true), ec);
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
    if (!ec && is_first) acceptor.set_option(ReusePort(true), ec);
    if (!ec) acceptor.non_blocking(true, ec);
    if (!ec && is_first) endpoint = acceptor.local_endpoint(ec);  // the others share its port
    if (ec) cannot_listen(options, ec);
  }
  address = {endpoint.address().to_string(), endpoint.port()};
}

void Server::State::listen_on(std::vector<UniqueFd> sockets) {
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    auto& acceptor = listeners.emplace_back(std::make_unique<Listener>(*loops[i % loops.size()]))->acceptor;
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    ::getsockname(sockets[i].get(), reinterpret_cast<sockaddr*>(&name), &length);
    boost::system::error_code ec;
    acceptor.assign(name.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), sockets[i].get(), ec);
    if (!ec) static_cast<void>(sockets[i].release());
    if (!ec) acceptor.non_blocking(true, ec);
    const auto endpoint = ec ? tcp::endpoint() : acceptor.local_endpoint(ec);
    if (ec) cannot_listen(shared->options, ec);
    address = {endpoint.address().to_string(), endpoint.port()};
  }
}

/// Its own, unless another has fewer connections: the kernel deals them out by a hash, and some live for
/// long.
Loop& Server::State::loop_for_next(Listener& on) {
  Loop* fewest = &on.loop;
  for (const auto& loop : loops) {
    if (loop->open < fewest->open) fewest = loop.get();
  }
  return *fewest;
}

void Server::State::accept(Listener& on) {
  Loop& loop = loop_for_next(on);
  on.acceptor.async_accept(loop.io, [this, &on, &loop](const boost::system::error_code& ec, Socket socket) {
    on.armed = false;  // what throws from here on, out of memory, is armed again by Loop::run
    if (!ec) take(std::move(socket), loop);
    if (ec == asio::error::operation_aborted || !on.acceptor.is_open()) return;
    if (!ec || ec == asio::error::connection_aborted) return accept(on);
    log(LogLevel::kWarning,
        "http: cannot accept a connection: " + ec.message());  // too many files: they may close
    on.retry.expires_after(milliseconds(100));
    on.retry.async_wait([this, &on](const boost::system::error_code& stopped) {
      on.armed = false;
      if (!stopped && on.acceptor.is_open()) accept(on);
    });
    on.armed = true;
  });
  on.armed = true;
}

void Server::State::take(Socket socket, Loop& loop) {
  ++shared->accepted;
  const std::size_t open = shared->connections;
  const std::size_t most = shared->options.max_connections;
  if (open >= most + kRefusedAtOnce) {
    ++shared->refused;
    return;
  }
  auto connection = std::make_shared<Connection>(loop, std::move(socket));
  asio::post(loop.io, [connection, refused = open >= most] { connection->start(refused); });
}

void Server::State::stop_accepting_on(Listener& on) {
  boost::system::error_code ec;
  // Those that the kernel has accepted would be reset.
  while (on.acceptor.is_open() && !ec) {
    Loop& loop = loop_for_next(on);
    Socket socket = on.acceptor.accept(loop.io, ec);
    try {
      if (!ec) take(std::move(socket), loop);
    } catch (const std::bad_alloc&) {
      // This one is reset; the others are not.
    }
  }
  on.retry.cancel();
  on.acceptor.close(ec);
}

bool Server::State::in_every_loop(const std::function<void(std::size_t loop)>& work) {
  const auto left = std::make_shared<std::atomic<std::size_t>>(loops.size());
  const auto done = std::make_shared<std::promise<void>>();
  for (std::size_t i = 0; i < loops.size(); ++i) {
    asio::post(loops[i]->io, [work, i, left, done] {
      try {
        work(i);
      } catch (const std::exception& error) {  // out of memory: of the connections that it was at
        log(LogLevel::kError, std::string("http: ") + error.what());
      }
      if (--*left == 0) done->set_value();
    });
  }
  return done->get_future().wait_for(kCloseTimeout) == std::future_status::ready;
}

Server::Server(ServerOptions options, Handler handler)
    : state_(std::make_unique<State>(std::move(options), std::move(handler), std::vector<UniqueFd>())) {}
Server::Server(ServerOptions options, Handler handler, std::vector<UniqueFd> listening)
    : state_(std::make_unique<State>(std::move(options), std::move(handler), std::move(listening))) {}
Server::~Server() = default;

const Endpoint& Server::address() const {
  return state_->address;
}

ServerCounts Server::counts() const {
  const Shared& shared = *state_->shared;
  return {.connections = shared.connections,
          .accepted = shared.accepted,
          .requests = shared.requests,
          .answered = shared.answered,
          .refused = shared.refused,
          .left = shared.left};
}

void Server::check_may_wait() const {
  for (const auto& loop : state_->loops)
    TROUPE_ASSERT(!loop->io.get_executor().running_in_this_thread(),
                  "a thread of the server cannot wait for itself");
}

std::vector<UniqueFd> Server::listening() const {
  check_may_wait();
  const auto copies = std::make_shared<std::vector<std::vector<UniqueFd>>>(state_->loops.size());
  const bool all = state_->in_every_loop([state = state_.get(), copies](std::size_t loop) {
    for (const auto& listener : state->listeners) {
      if (&listener->loop != state->loops[loop].get() || !listener->acceptor.is_open()) continue;
      (*copies)[loop].emplace_back(::fcntl(listener->acceptor.native_handle(), F_DUPFD_CLOEXEC, 0));
    }
  });
  std::vector<UniqueFd> sockets;
  for (auto& some : *copies) std::move(some.begin(), some.end(), std::back_inserter(sockets));
  const bool open = std::all_of(sockets.begin(), sockets.end(), [](const UniqueFd& fd) { return bool(fd); });
  if (!all || !open || sockets.empty())
    throw_error({ErrorCode::kUnavailable, "cannot hand over where HTTP listens",
                 sockets.empty() ? "it listens no more" : "its threads hang, or it has no descriptors left",
                 "raise ulimit -n, or start the other program when this one has ended"});
  return sockets;
}

void Server::leave() {
  check_may_wait();
  state_->shared->draining = true;
  state_->in_every_loop([this](std::size_t loop) {
    for (const auto& listener : state_->listeners) {
      if (&listener->loop != state_->loops[loop].get()) continue;
      boost::system::error_code ec;
      listener->retry.cancel();
      listener->acceptor.close(ec);
    }
    state_->loops[loop]->begin_drain();
  });
}

bool Server::drain(milliseconds timeout) {
  check_may_wait();
  Shared& shared = *state_->shared;
  shared.draining = true;
  state_->in_every_loop([this](std::size_t loop) {  // one that hangs in the handler does so later
    state_->stop_accepting(*state_->loops[loop]);
    state_->loops[loop]->begin_drain();
  });
  if (shared.wait_until_closed(timeout)) return true;
  const std::uint64_t before = shared.cut_off;
  if (!state_->cut_off_all()) return false;
  return shared.cut_off == before;
}

}  // namespace troupe::http
