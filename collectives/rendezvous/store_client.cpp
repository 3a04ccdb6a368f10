#include "collectives/rendezvous/store_client.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "collectives/rendezvous/address.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

constexpr Duration kAnswerTime = std::chrono::seconds(10);  ///< a store that takes longer is taken for dead
constexpr Duration kSlice = std::chrono::milliseconds(50);  ///< of a wait: other threads ask in between

ErrorInfo gone(std::string why) {
  return {ErrorCode::kUnavailable, "the store of the job is gone", std::move(why),
          "the rank that served it is gone: rebuild() goes on without it, or form the group anew"};
}

/// Waits for `events`; false: the time is over.
bool ready(int fd, short events, Instant until) {
  const MonotonicClock clock;
  while (true) {
    pollfd entry{fd, events, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock.now()).count();
    const int n = ::poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000)));
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

/// At least one byte. Empty: done. Otherwise why not.
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
    if (!ready(fd, POLLIN, until)) return "it does not answer";
  }
}

std::string receive_all(int fd, std::span<std::byte> into, Instant until) {
  while (!into.empty()) {
    std::size_t got = 0;
    if (auto why = receive_some(fd, into, got, until); !why.empty()) return why;
    into = into.subspan(got);
  }
  return {};
}

void check_key(const std::string& key, std::string_view value) {
  if (!key.empty() && key.size() <= kMaxStoreKeyBytes && value.size() <= kMaxStoreValueBytes) return;
  throw_error({ErrorCode::kBadInput, "the store does not take this",
               "a key has 1 to 256 bytes and a value at most 64 KiB; these have " +
                   std::to_string(key.size()) + " and " + std::to_string(value.size()),
               "use shorter ones"});
}

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::connect(const Options& options, Verdict* verdict) {
  const MonotonicClock clock;
  const Instant until = clock.now() + options.timeout;
  auto fd = dial(options.at, options.timeout);
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

StoreResponse StoreClient::exchange(const StoreRequest& request, Duration limit) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) throw_error(gone(broken_));
  const MonotonicClock clock;
  const Instant until = clock.now() + limit;
  const auto fail = [&](std::string why) {
    broken_ = std::move(why);
    ::shutdown(session_.fd.get(), SHUT_RDWR);
    throw_error(gone(broken_));
  };
  // A store that closes says so before it hangs up: that is still there to be read when nothing can be sent.
  std::vector<std::byte> frame;
  sealer_.seal(encode(request), frame);
  (void)send_all(session_.fd.get(), frame, until);
  while (true) {
    auto body = opener_.next();
    if (!body) fail(body.error().message());
    if (*body) {
      auto response = decode_response(**body);
      if (!response) fail(response.error().message());
      if (response->status == StoreStatus::kClosing) fail(std::string(kServerLeft));
      return *std::move(response);
    }
    std::array<std::byte, 4096> bytes;
    std::size_t got = 0;
    if (auto why = receive_some(session_.fd.get(), bytes, got, until); !why.empty()) {
      fail(why + (opener_.empty() ? "" : ", in the middle of a frame"));
    }
    opener_.feed(std::span(bytes).first(got));
  }
}

StoreResponse StoreClient::ask(const StoreRequest& request, Duration limit) {
  check_key(request.key, request.value);
  auto response = exchange(request, limit);
  if (response.status == StoreStatus::kLimit) {
    throw_error({ErrorCode::kLimit, "the store is full", "its limit is 256 MiB", "keep less in it"});
  }
  if (response.status == StoreStatus::kBad) {
    throw_error({ErrorCode::kBadInput, "cannot add to '" + request.key + "' in the store",
                 "what it holds is no number", "use another key"});
  }
  return response;
}

void StoreClient::set(const std::string& key, std::string_view value) {
  ask({.op = StoreOp::kSet, .key = key, .value = std::string(value)}, kAnswerTime);
}

std::string StoreClient::set_once(const std::string& key, std::string_view value) {
  return ask({.op = StoreOp::kSetOnce, .key = key, .value = std::string(value)}, kAnswerTime).value;
}

std::optional<std::string> StoreClient::find(const std::string& key, Duration wait) {
  const MonotonicClock clock;
  const Instant until = clock.now() + wait;
  while (true) {
    auto value = find_undisturbed(key, std::clamp(until - clock.now(), Duration::zero(), kSlice));
    if (value || clock.now() >= until) return value;
  }
}

std::optional<std::string> StoreClient::find_undisturbed(const std::string& key, Duration wait) {
  const auto wait_ms = static_cast<std::uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
  auto response = ask({.op = StoreOp::kFind, .key = key, .wait_ms = wait_ms}, wait + kAnswerTime);
  if (response.status != StoreStatus::kOk) return std::nullopt;
  return std::move(response.value);
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t by) {
  return ask({.op = StoreOp::kAdd, .key = key, .amount = by}, kAnswerTime).amount;
}

std::int64_t StoreClient::erase(const std::string& prefix) {
  return ask({.op = StoreOp::kErase, .key = prefix}, kAnswerTime).amount;
}

StoreResponse StoreClient::join(const std::string& who) {
  return exchange({.op = StoreOp::kJoin, .value = who.substr(0, kMaxStoreKeyBytes)}, kAnswerTime);
}

void StoreClient::leave(Duration limit) {
  try {
    (void)exchange({.op = StoreOp::kLeave}, limit);
  } catch (const Error&) {
    // The store is gone: nobody is left to be told.
  }
}

void StoreClient::interrupt() {
  ::shutdown(session_.fd.get(), SHUT_RDWR);
}

}  // namespace troupe::collectives
