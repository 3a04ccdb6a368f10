#include "collectives/rendezvous/store/store_client.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/watch_silence.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

constexpr Duration kAnswerTime = std::chrono::seconds(10);  ///< a store that takes longer is taken for dead
constexpr Duration kLongest = std::chrono::hours(1);        ///< of one look at the connection

ErrorInfo gone(std::string why) {
  return {ErrorCode::kUnavailable, "the store of the job is gone", std::move(why),
          "the rank that served it is gone: rebuild() goes on without it, or form the group anew"};
}

/// Waits for `events`; false: the time is over.
bool ready(int fd, short events, Instant until) {
  const MonotonicClock clock;
  while (true) {
    pollfd entry{fd, events, 0};
    const int n = ::poll(&entry, 1, poll_millis(until - clock.now()));
    if (n > 0) return true;
    if (n == 0) return false;
  }
}

/// Empty: done. Otherwise why not.
std::string send_all(int fd, std::span<const std::byte> bytes, Instant until) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!ready(fd, POLLOUT, until)) return "it does not answer";
    } else if (errno != EINTR) {
      return std::strerror(errno);
    }
  }
  return {};
}

/// What there is, and waits for it until `until`. Empty: `got` says how much. Otherwise why nothing will
/// come.
std::string receive_some(int fd, std::span<std::byte> into, std::size_t& got, Instant until) {
  while (true) {
    const ssize_t n = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
    if (n > 0) {
      got = static_cast<std::size_t>(n);
      return {};
    }
    if (n == 0) return "it closed the connection";
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return std::strerror(errno);
    if (!ready(fd, POLLIN, until)) return {};
  }
}

std::string receive_all(int fd, std::span<std::byte> into, Instant until) {
  while (!into.empty()) {
    std::size_t got = 0;
    if (auto why = receive_some(fd, into, got, until); !why.empty()) return why;
    if (got == 0) return "it does not answer";
    into = into.subspan(got);
  }
  return {};
}

/// REQUIRES of requests; what is about no key has none.
void check(const StoreRequest& request) {
  const auto& [key, value] = std::tie(request.key, request.value);
  const bool needs_key = request.op <= StoreOp::kErase;
  if ((!key.empty() || !needs_key) && key.size() <= kMaxStoreKeyBytes && value.size() <= kMaxStoreValueBytes)
    return;
  throw_error({ErrorCode::kBadInput, "the store does not take this",
               "a key has 1 to 256 bytes and a value at most 64 KiB; these have " +
                   std::to_string(key.size()) + " and " + std::to_string(value.size()),
               "use shorter ones"});
}

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::connect(const Options& options, Verdict* verdict,
                                                          bool* refused) {
  const MonotonicClock clock;
  const Instant until = clock.now() + options.timeout;
  // On the host of the server within it; a store that listens at all addresses does not say which is its own.
  const bool anywhere = options.at.host == "0.0.0.0" || options.at.host == "::";
  auto fd = dial_abstract(store_socket(options.key, options.at, options.server));
  if (refused != nullptr) *refused = false;
  if (!fd || anywhere) fd = dial(options.at, options.timeout, refused);
  if (!fd) return fd.error();
  watch_silence(fd->get());
  SystemRandom random;
  ConnectorHandshake handshake(options.key,
                               {.world_size = options.world_size, .rank = options.rank, .purpose = "store"},
                               options.server, random);
  const auto failed = [&](ErrorInfo error) {
    if (verdict != nullptr) *verdict = handshake.verdict();
    return error;
  };
  const auto unavailable = [&](std::string why) {
    return ErrorInfo{ErrorCode::kUnavailable, "cannot reach the store at " + to_string(options.at),
                     std::move(why), ""};
  };
  ChallengeBytes challenge;
  AcceptBytes accept;
  if (auto why = send_all(fd->get(), handshake.hello(), until); !why.empty()) return unavailable(why);
  if (auto why = receive_all(fd->get(), challenge, until); !why.empty()) return unavailable(why);
  const auto proof = handshake.on_challenge(challenge);
  if (!proof) return failed(proof.error());
  if (auto why = send_all(fd->get(), *proof, until); !why.empty()) return unavailable(why);
  if (auto why = receive_all(fd->get(), accept, until); !why.empty()) return unavailable(why);
  if (auto accepted = handshake.on_accept(accept); !accepted) return failed(accepted.error());
  return std::make_unique<StoreClient>(StoreSession{.fd = std::move(*fd),
                                                    .send_key = handshake.session_key("up"),
                                                    .receive_key = handshake.session_key("down")});
}

StoreClient::StoreClient(StoreSession session)
    : session_(std::move(session)),
      sealer_(session_.send_key),
      opener_(session_.receive_key, kMaxStoreBody) {}

StoreClient::Call::~Call() {
  const std::lock_guard lock(client_.mutex_);
  client_.calls_.erase(id_);
}

void StoreClient::Call::notify() {
  changed_.notify_all();
  const std::uint64_t one = 1;
  if (news_) (void)!::write(news_.get(), &one, sizeof one);
}

bool StoreClient::Call::has_news() const {
  const std::lock_guard lock(client_.mutex_);
  return !answers_.empty() || !client_.broken_.empty();
}

int StoreClient::Call::news_fd() {
  const std::lock_guard lock(client_.mutex_);
  if (!news_) {
    news_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!news_) throw_error(io_error("cannot make an event descriptor", errno, "raise ulimit -n"));
    if (!answers_.empty() || !client_.broken_.empty()) notify();
  }
  return news_.get();
}

std::optional<StoreResponse> StoreClient::Call::next(Duration limit, const Call* unless) {
  std::unique_lock lock(client_.mutex_);
  client_.await(lock, changed_, MonotonicClock().now() + limit,
                [&] { return !answers_.empty() || (unless != nullptr && !unless->answers_.empty()); });
  if (!answers_.empty()) {
    StoreResponse first = std::move(answers_.front());
    answers_.pop_front();
    return first;
  }
  if (!client_.broken_.empty()) throw_error(gone(client_.broken_));
  return std::nullopt;
}

/// Waits until `done`, the connection is broken or the time is over: reads, or is told by the thread that
/// does.
template <class Done>
void StoreClient::await(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Instant until,
                        Done done) {
  const MonotonicClock clock;
  while (!done() && broken_.empty()) {
    const Instant now = clock.now();
    if (!reading_) {
      reading_ = true;
      read_until(lock, std::min(until, now + kLongest));
      while (!done() && broken_.empty() && clock.now() < until)
        read_until(lock, std::min(until, clock.now() + kLongest));
      reading_ = false;
      notify_all();  // one of them reads on
      return;
    }
    if (now >= until) return;
    changed.wait_for(lock, std::min(until - now, kLongest));
  }
}

/// Reads what there is; waits for it until `until`.
void StoreClient::read_until(std::unique_lock<std::mutex>& lock, Instant until) {
  lock.unlock();
  std::array<std::byte, 16 * 1024> bytes;
  std::size_t got = 0;
  const auto why = receive_some(session_.fd.get(), bytes, got, until);
  lock.lock();
  if (got != 0) return take(std::span(bytes).first(got));
  if (!why.empty()) fail(why + (opener_.empty() ? "" : ", in the middle of a frame"));
}

void StoreClient::take(std::span<const std::byte> bytes) {
  opener_.feed(bytes);
  while (broken_.empty()) {
    const auto body = opener_.next();
    if (!body) return fail(body.error().message());
    if (!*body) return;
    auto response = decode_response(**body);
    if (!response) return fail(response.error().message());
    const auto call = calls_.find(response->id);
    if (response->status == StoreStatus::kClosing) {
      fail(std::string(kServerLeft));
    } else if (response->id == 0) {
      const bool died = response->status == StoreStatus::kLost;
      departures_.emplace_back(static_cast<int>(response->amount), Departure{died, response->value});
      departed_.notify_all();
    } else if (call != calls_.end()) {  // else nobody waits for it any more
      call->second->answers_.push_back(*std::move(response));
      // Who waits for another answer may do so unless this one comes.
      if (call->second->news_) {
        notify_all();
      } else {
        call->second->notify();
      }
    }
  }
}

/// The first reason stays.
void StoreClient::fail(std::string why) {
  if (broken_.empty()) broken_ = std::move(why);
  ::shutdown(session_.fd.get(), SHUT_RDWR);
  for (const auto& [id, call] : calls_) call->notify();
  departed_.notify_all();
}

void StoreClient::notify_all() {
  for (const auto& [id, call] : calls_) {
    if (call->answers_.empty()) {
      call->changed_.notify_all();
    } else {
      call->notify();
    }
  }
  departed_.notify_all();
}

std::unique_ptr<StoreClient::Call> StoreClient::begin(StoreRequest request) {
  check(request);
  std::unique_ptr<Call> call;
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.empty()) throw_error(gone(broken_));
    while (next_id_ == 0 || calls_.contains(next_id_)) ++next_id_;
    call.reset(new Call(*this, next_id_++));
    calls_.emplace(call->id_, call.get());
    request.id = call->id_;
  }
  const std::lock_guard lock(send_mutex_);
  std::vector<std::byte> frame;
  sealer_.seal(encode(request), frame);
  const Instant until = MonotonicClock().now() + kAnswerTime;
  // A store that closes says so before it hangs up: whoever reads finds that when nothing can be sent.
  (void)send_all(session_.fd.get(), frame, until);
  return call;
}

StoreResponse StoreClient::ask(StoreRequest request, Duration limit, const Call* unless) {
  const auto call = begin(std::move(request));
  if (auto answer = call->next(limit, unless)) return *std::move(answer);
  if (unless != nullptr && unless->has_news()) return {.status = StoreStatus::kFailed};
  const std::lock_guard lock(mutex_);
  fail("it does not answer");
  throw_error(gone(broken_));
}

StoreResponse StoreClient::checked(StoreRequest request) {
  const Duration wait = std::chrono::milliseconds(request.wait_ms);
  auto response = ask(std::move(request), wait + kAnswerTime);
  if (response.status == StoreStatus::kLimit) {
    throw_error({ErrorCode::kLimit, "the store is full", "its limit is 256 MiB, and 1,024 waits of a rank",
                 "keep less in it"});
  }
  return response;
}

void StoreClient::set(const std::string& key, std::string_view value) {
  checked({.op = StoreOp::kSet, .key = key, .value = std::string(value)});
}

std::optional<std::string> StoreClient::find(const std::string& key, Duration wait) {
  auto response = checked({.op = StoreOp::kFind, .key = key, .wait_ms = wait_ms(wait)});
  if (response.status != StoreStatus::kOk) return std::nullopt;
  return std::move(response.value);
}

std::int64_t StoreClient::erase(const std::string& prefix) {
  return checked({.op = StoreOp::kErase, .key = prefix}).amount;
}

StoreResponse StoreClient::join(const std::string& who) {
  return ask({.op = StoreOp::kJoin, .value = who.substr(0, kMaxStoreKeyBytes)}, kAnswerTime);
}

void StoreClient::leave(Duration limit) {
  try {
    (void)ask({.op = StoreOp::kLeave}, limit);
  } catch (const Error&) {
    // The store is gone: nobody is left to be told.
  }
}

std::pair<int, Departure> StoreClient::next_departure() {
  std::unique_lock lock(mutex_);
  const MonotonicClock clock;
  while (departures_.empty() && broken_.empty())
    await(lock, departed_, clock.now() + kLongest, [&] { return !departures_.empty(); });
  if (departures_.empty()) throw_error(gone(broken_));
  auto next = std::move(departures_.front());
  departures_.pop_front();
  return next;
}

void StoreClient::interrupt() {
  ::shutdown(session_.fd.get(), SHUT_RDWR);
}

}  // namespace troupe::collectives
