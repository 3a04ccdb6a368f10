#include "runtime/http/connection.hpp"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/write.hpp>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/hex.hpp"
#include "runtime/core/log.hpp"
#include "runtime/core/random.hpp"
#include "runtime/core/short_slice.hpp"

namespace troupe::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// How often timeouts are looked at.
constexpr milliseconds kTick{50};
/// A connection that is closed after a response is read for so long: unread bytes at a close would make the
/// kernel reset it, and the client lose the response.
constexpr seconds kLinger{2};
/// And no more bytes than these, which a client had under way when it was refused.
constexpr std::size_t kLingerBytes = std::size_t{1} << 20;
/// How often a client that sent its end is asked, by a word that means nothing, whether it still reads.
constexpr milliseconds kAskEvery{500};
/// How long an idle connection waits, when the server drains, for a request that may be on its way.
constexpr milliseconds kDrainIdle{500};
/// The handler answers at the deadline itself; the server only where that does not come.
constexpr seconds kAnswerGrace{1};
/// Before the next try of a thread that had no memory.
constexpr milliseconds kNoMemoryPause{10};
constexpr std::size_t kReadBytes = std::size_t{16} << 10;

bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}
bool is_field_value(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
  });
}
bool is_well_formed(const Response& response) {
  return response.status >= 200 && response.status <= 999 && is_field_value(response.content_type) &&
         std::all_of(response.headers.begin(), response.headers.end(), [](const auto& field) {
           return !field.first.empty() && is_visible(field.first) &&
                  field.first.find(':') == std::string::npos && is_field_value(field.second);
         });
}

void append_number(std::string& out, std::size_t number) {
  char digits[20];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

/// The client's X-Request-Timeout-Ms, `most` where it is longer; no value: it is none. `otherwise` where it
/// sent none.
std::optional<milliseconds> timeout_of(const Request& request, milliseconds otherwise, milliseconds most) {
  constexpr const char* kField = "X-Request-Timeout-Ms";
  const auto text = request.headers.find(kField);
  if (!text) return otherwise;
  if (request.headers.count(kField) > 1) return std::nullopt;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error == std::errc::invalid_argument || end != text->data() + text->size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return most;
  if (number == 0) return std::nullopt;
  return std::min(milliseconds(number), most);
}

std::string date_field() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  char text[64];
  // Not strftime: a program's locale may have other names.
  const int size = std::snprintf(text, sizeof text, "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n",
                                 kDays[parts.tm_wday], parts.tm_mday, kMonths[parts.tm_mon],
                                 parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
  return {text, static_cast<std::size_t>(size)};
}

}  // namespace

bool Shared::wait_until_closed(milliseconds timeout) {
  std::unique_lock lock(mutex);
  return closed.wait_for(lock, timeout, [this] { return connections == 0; });
}

Loop::Loop(std::shared_ptr<Shared> of_all)
    : shared(std::move(of_all)), date(date_field()), id_seed(SystemRandom().next()) {
  tick();
}

Loop::~Loop() {
  connections.clear();  // before io, which their sockets are of
}

void Loop::run() {
  ask_for_short_slices();
  const auto keep_running = asio::make_work_guard(io);
  for (;;) {
    try {
      if (!ticks_) tick();
      if (rearm) rearm();
      io.run();
      return;
    } catch (const std::exception& error) {  // out of memory: of the connection whose handler it was
      log(LogLevel::kError, std::string("http: a connection's handler threw: ") + error.what());
      std::this_thread::sleep_for(kNoMemoryPause);
    }
  }
}

void Loop::tick() {
  timer.expires_after(kTick);
  timer.async_wait([this](const boost::system::error_code& ec) {
    ticks_ = false;
    if (ec) return;
    date = date_field();
    const Instant now = shared->clock.now();
    const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
    for (const auto& connection : all) connection->check(now);
    tick();
  });
  ticks_ = true;
}

void Loop::begin_drain() {
  const Instant now = shared->clock.now();
  for (const auto& connection : connections) connection->begin_drain(now);
}

void Loop::cut_off_all() {
  const std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& connection : all) {
    shared->cut_off += connection->is_busy();
    connection->close();
  }
}

std::string Loop::make_id() {
  const std::uint64_t number = mix(id_seed, ids++);
  return to_hex(std::as_bytes(std::span(&number, 1)));
}

Connection::Connection(Loop& loop, Socket socket)
    : loop_(loop),
      shared_(*loop.shared),
      weak_loop_(loop.weak_from_this()),
      socket_(std::move(socket)),
      parser_({shared_.options.max_header_bytes, shared_.options.max_body_bytes}),
      in_(shared_.options.max_header_bytes + kReadBytes) {
  if (shared_.tls) tls_ = std::make_unique<asio::ssl::stream<Socket&>>(socket_, *shared_.tls);
  ++loop_.open;
  ++shared_.connections;
}

Connection::~Connection() {
  account(0);
  --loop_.open;
  const std::lock_guard lock(shared_.mutex);
  if (--shared_.connections == 0) shared_.closed.notify_all();
}

void Connection::start(bool refused) {
  boost::system::error_code ec;
  socket_.set_option(tcp::no_delay(true), ec);
  socket_.non_blocking(true, ec);
  ::fcntl(socket_.native_handle(), F_SETFD, FD_CLOEXEC);
  loop_.connections.insert(shared_from_this());
  if (tls_) return refused ? close() : shake_hands();
  enter(Phase::kIdle, idle_time());
  if (refused) return refuse(503, "too many connections: try again");
  read();
}

void Connection::shake_hands() {
  enter(Phase::kHandshake, shared_.options.read_timeout);
  tls_->async_handshake(asio::ssl::stream_base::server,
                        [self = shared_from_this()](const boost::system::error_code& ec) {
                          if (self->phase_ == Phase::kClosed) return;
                          if (ec) return self->close();
                          self->enter(Phase::kIdle, self->idle_time());
                          self->read();
                        });
}

Duration Connection::idle_time() const {
  return shared_.draining ? kDrainIdle : shared_.options.idle_timeout;
}

void Connection::enter(Phase phase, Duration time) {
  phase_ = phase;
  due_ = shared_.clock.now() + time;
}

Duration Connection::with_transfer(milliseconds timeout, std::size_t bytes) const {
  return timeout + seconds(bytes >> 20);
}

void Connection::begin_drain(Instant now) {
  if (phase_ == Phase::kIdle) due_ = std::min<Instant>(due_, now + kDrainIdle);
}

void Connection::check(Instant now) {
  if (phase_ == Phase::kAnswering && peer_closed_ && !is_http_1_0_ && now >= ask_at_) {
    ask_at_ = now + kAskEvery;
    if (!send_continue()) return close();
  }
  if (now < due_) return;
  switch (phase_) {
    case Phase::kReading:
      return refuse(408, "the request did not come in time");
    case Phase::kAnswering:
      leave();
      return respond(error_response(504, "no answer before the request's deadline"));
    case Phase::kHandshake:
    case Phase::kIdle:
    case Phase::kWriting:
    case Phase::kLingering:
      return close();
    case Phase::kClosed:
      return;
  }
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  const auto self = shared_from_this();
  leave();
  phase_ = Phase::kClosed;
  boost::system::error_code ec;
  socket_.close(ec);
  loop_.connections.erase(self);
}

/// Whoever works at the request under way learns that nobody waits for it.
void Connection::leave() {
  if (phase_ != Phase::kAnswering || !exchange_) return;
  ++shared_.left;
  std::exchange(exchange_, nullptr)->leave();
}

void Connection::read() {
  if (is_reading_ || peer_closed_ || phase_ == Phase::kClosed) return;
  if (begin_ > 0) {
    std::memmove(in_.data(), in_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  TROUPE_ASSERT(end_ < in_.size(), "what the parser leaves is no more than a head");
  is_reading_ = true;
  const auto into = asio::buffer(in_.data() + end_, std::min(in_.size() - end_, kReadBytes));
  auto done = [self = shared_from_this()](const boost::system::error_code& ec, std::size_t bytes) {
    self->is_reading_ = false;
    self->on_read(ec, bytes);
  };
  tls_ ? tls_->async_read_some(into, std::move(done)) : socket_.async_read_some(into, std::move(done));
}

void Connection::on_read(const boost::system::error_code& ec, std::size_t bytes) {
  if (phase_ == Phase::kClosed) return;
  if (ec) return on_peer_closed(ec != asio::error::eof);
  if (phase_ == Phase::kLingering) {
    lingered_ += bytes;
    return tls_ || lingered_ >= kLingerBytes ? void() : read();  // over the same bytes
  }
  end_ += bytes;
  // While an answer is awaited or written, it is the next request: it waits here, and no more is read.
  if (phase_ == Phase::kIdle || phase_ == Phase::kReading) advance();
}

/// One that sent its end has left, or has nothing more to ask: only what is sent to it tells, for who is gone
/// resets the connection then. So it is answered, and asked meanwhile (`100 Continue`, which every client of
/// HTTP/1.1 passes over) where that takes long.
void Connection::on_peer_closed(bool reset) {
  peer_closed_ = true;
  ask_at_ = shared_.clock.now() + kAskEvery;
  if (!reset && phase_ == Phase::kReading)
    return refuse(400, "the connection's end came before the request's: is its Content-Length too large?");
  if (reset || (phase_ != Phase::kAnswering && phase_ != Phase::kWriting)) close();
}

void Connection::advance() {
  if (phase_ == Phase::kIdle && unread().empty()) return read();
  if (phase_ == Phase::kIdle) {
    began_ = shared_.clock.now();
    phase_ = Phase::kReading;
  }
  begin_ += parser_.feed(unread());
  if (!account(parser_.held_bytes())) return refuse(503, "the server holds too many requests: try again");
  if (parser_.state() == RequestParser::State::kRefused)
    return refuse(parser_.refused_status(), parser_.refused_text());
  if (parser_.state() == RequestParser::State::kDone) return dispatch();
  const bool in_body = parser_.state() == RequestParser::State::kBody;
  due_ = began_ + with_transfer(shared_.options.read_timeout,
                                in_body ? std::max(parser_.expected_bytes(), parser_.held_bytes()) : 0);
  if (in_body && parser_.expects_continue() && !said_continue_ && !send_continue()) return close();
  read();
}

/// Takes note of the bytes that this connection holds. False: all together hold too many.
bool Connection::account(std::size_t held) {
  if (held == accounted_) return true;
  const std::size_t before = shared_.total_bytes.fetch_add(held - accounted_);  // wraps where it is less
  const bool grows = held > accounted_;
  const std::size_t total = before + (held - accounted_);
  accounted_ = held;
  return !grows || total <= shared_.options.max_total_bytes;
}

bool Connection::send_continue() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  said_continue_ = true;
  boost::system::error_code ec;
  // Nothing else is being written, and so few bytes fit into an empty socket.
  const auto all = asio::buffer(kContinue);
  return (tls_ ? tls_->write_some(all, ec) : socket_.write_some(all, ec)) == kContinue.size();
}

void Connection::dispatch() {
  Request request = parser_.take();
  keep_alive_ = parser_.keep_alive();
  is_http_1_0_ = parser_.is_http_1_0();
  is_head_ = request.method == "HEAD";
  said_continue_ = false;
  const auto id = request.headers.find("X-Request-Id");
  request.id =
      id && !id->empty() && id->size() <= 128 && is_visible(*id) ? std::string(*id) : loop_.make_id();
  id_ = request.id;
  const auto timeout =
      timeout_of(request, shared_.options.request_timeout, shared_.options.max_request_timeout);
  if (!timeout)
    return respond(error_response(400, "X-Request-Timeout-Ms is not one positive number of milliseconds"));
  request.received = shared_.clock.now();
  request.deadline = request.received + *timeout;
  enter(Phase::kAnswering, *timeout + kAnswerGrace);
  ++shared_.requests;

  exchange_ = std::make_shared<Exchange>(
      [loop = weak_loop_, self = weak_from_this(), serial = ++serial_](Response response) {
        const auto its_loop = loop.lock();
        if (!its_loop) return;
        asio::dispatch(its_loop->io, [self, serial, response = std::move(response)]() mutable {
          if (const auto connection = self.lock()) connection->take_answer(serial, std::move(response));
        });
      });
  try {
    shared_.handler(std::move(request), Answer(exchange_));
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("http: the handler threw: ") + error.what());
  }
  // The client's leaving is seen by a read. Where the next request is here already, it is not.
  if (phase_ == Phase::kAnswering && unread().empty()) read();
}

void Connection::take_answer(std::uint64_t serial, Response response) {
  // Without an exchange it has left: another response is about to go out, or none.
  if (serial != serial_ || phase_ != Phase::kAnswering || exchange_ == nullptr) return;
  exchange_ = nullptr;
  respond(std::move(response));
}

void Connection::refuse(int status, std::string_view text) {
  ++shared_.refused;
  if (shared_.options.on_refused) shared_.options.on_refused(status);
  keep_alive_ = false;
  is_head_ = false;
  id_.clear();
  Response response = error_response(status, text);
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  respond(std::move(response));
}

void Connection::respond(Response response) {
  if (!is_well_formed(response)) {
    log(LogLevel::kError, "http: a response's status or fields cannot be sent");
    response = error_response(500, "the response's fields cannot be sent");
  }
  if (shared_.draining || peer_closed_) keep_alive_ = false;
  const bool has_no_body = response.status == 204 || response.status == 304;
  std::string& head = out_head_;
  head = "HTTP/1.1 ";
  append_number(head, static_cast<std::size_t>(response.status));
  head.append(" ").append(reason_phrase(response.status)).append("\r\n").append(loop_.date);
  if (!has_no_body) {
    if (!response.body.empty()) head.append("Content-Type: ").append(response.content_type).append("\r\n");
    head.append("Content-Length: ");
    append_number(head, response.body.size());
    head.append("\r\n");
  }
  if (!id_.empty()) head.append("X-Request-Id: ").append(id_).append("\r\n");
  if (!keep_alive_) head.append("Connection: close\r\n");
  if (keep_alive_ && is_http_1_0_) head.append("Connection: keep-alive\r\n");
  for (const auto& [name, value] : response.headers)
    head.append(name).append(": ").append(value).append("\r\n");
  head.append("\r\n");
  out_body_ = has_no_body || is_head_ ? std::string() : std::move(response.body);

  enter(Phase::kWriting, with_transfer(shared_.options.write_timeout, out_body_.size()));
  const std::array<asio::const_buffer, 2> parts{asio::buffer(out_head_), asio::buffer(out_body_)};
  auto done = [self = shared_from_this()](const boost::system::error_code& ec, std::size_t) {
    self->on_written(ec);
  };
  tls_ ? asio::async_write(*tls_, parts, std::move(done))
       : asio::async_write(socket_, parts, std::move(done));
}

void Connection::on_written(const boost::system::error_code& ec) {
  if (phase_ == Phase::kClosed) return;
  if (ec) return close();
  ++shared_.answered;
  account(0);
  out_body_ = std::string();
  if (peer_closed_) return close();
  if (!keep_alive_) return linger();
  enter(Phase::kIdle, idle_time());
  advance();
}

void Connection::linger() {
  if (tls_) {  // its own word for the end, and the client's
    enter(Phase::kLingering, kLinger);
    return tls_->async_shutdown(
        [self = shared_from_this()](const boost::system::error_code&) { self->close(); });
  }
  boost::system::error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
  if (ec) return close();
  begin_ = end_ = 0;
  enter(Phase::kLingering, kLinger);
  read();
}

}  // namespace troupe::http
