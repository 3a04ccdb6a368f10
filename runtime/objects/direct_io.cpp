#include "runtime/objects/direct_io.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/core/byte_codec.hpp"

namespace troupe::objects {
namespace {

/// What a pipe of an unprivileged process may hold.
constexpr std::size_t kPipeBytes = std::size_t{1} << 20;

ErrorInfo broke(const std::string& why) {
  return {ErrorCode::kUnavailable, "a direct connection broke", why, "ask again"};
}

Result<void> wait_for(int fd, short events, const TransferDeadline& deadline) {
  const MonotonicClock clock;
  for (;;) {
    const Instant now = clock.now();
    if (auto in_time = deadline.check(now); !in_time) return in_time.error();
    pollfd ready{fd, events, 0};
    const int n = ::poll(&ready, 1, poll_millis(deadline.until() - now));
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return io_error("cannot wait for a connection", errno);
  }
}

Result<void> send_all(int fd, std::span<const std::byte> bytes, TransferDeadline& deadline) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 20;
  while (!bytes.empty()) {
    const auto sent = ::send(fd, bytes.data(), std::min(bytes.size(), kAtOnce), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      deadline.moved(MonotonicClock().now());
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (auto ready = wait_for(fd, POLLOUT, deadline); !ready) return ready.error();
    } else if (errno != EINTR) {
      return broke(std::strerror(errno));
    }
  }
  return {};
}

Result<void> receive_all(int fd, std::span<std::byte> into, TransferDeadline& deadline) {
  while (!into.empty()) {
    const auto got = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
    if (got > 0) {
      deadline.moved(MonotonicClock().now());
      into = into.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return broke("the other end closed it");
    } else if (errno == EAGAIN) {
      if (auto ready = wait_for(fd, POLLIN, deadline); !ready) return ready.error();
    } else if (errno != EINTR) {
      return broke(std::strerror(errno));
    }
  }
  return {};
}

/// From the pipe into memory, all of it.
Result<void> drain(int pipe, int memory, loff_t& at, std::size_t bytes) {
  while (bytes > 0) {
    const auto wrote = ::splice(pipe, nullptr, memory, &at, bytes, SPLICE_F_MOVE);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return io_error("cannot write an object to shared memory", errno, "free memory");
    bytes -= static_cast<std::size_t>(wrote);
  }
  return {};
}

constexpr HandshakeIdentity kOwner{.generation = {}, .world_size = 2, .rank = 0, .purpose = "object"};
constexpr HandshakeIdentity kReader{.generation = {}, .world_size = 2, .rank = 1, .purpose = "object"};

}  // namespace

Result<void> prove_reader(int fd, KeyView key, TransferDeadline& deadline) {
  SystemRandom random;
  ConnectorHandshake handshake(key, kReader, 0, random);
  ChallengeBytes challenge;
  AcceptBytes accept;
  if (auto sent = send_all(fd, handshake.hello(), deadline); !sent) return sent.error();
  if (auto got = receive_all(fd, challenge, deadline); !got) return got.error();
  const auto proof = handshake.on_challenge(challenge);
  if (!proof) return proof.error();
  if (auto sent = send_all(fd, *proof, deadline); !sent) return sent.error();
  if (auto got = receive_all(fd, accept, deadline); !got) return got.error();
  return handshake.on_accept(accept);
}

Result<void> prove_owner(int fd, KeyView key, TransferDeadline& deadline) {
  SystemRandom random;
  AcceptorHandshake handshake(key, kOwner, random);
  HelloBytes hello;
  ProofBytes proof;
  const auto refuse = [&](const ErrorInfo& why) {
    (void)send_all(fd, handshake.refusal(), deadline);  // a courtesy
    return why;
  };
  if (auto got = receive_all(fd, hello, deadline); !got) return got.error();
  const auto challenge = handshake.on_hello(hello);
  if (!challenge) return refuse(challenge.error());
  if (auto sent = send_all(fd, *challenge, deadline); !sent) return sent.error();
  if (auto got = receive_all(fd, proof, deadline); !got) return got.error();
  const auto accept = handshake.on_proof(proof);
  if (!accept) return refuse(accept.error());
  return send_all(fd, *accept, deadline);
}

Result<void> ask_for(int fd, const PartAsked& wanted, TransferDeadline& deadline) {
  std::array<std::byte, 24> bytes;
  put_at(bytes, 0, wanted.number);
  put_at(bytes, 8, wanted.part.offset);
  put_at(bytes, 16, wanted.part.bytes);
  return send_all(fd, bytes, deadline);
}

Result<PartAsked> read_asked(int fd, TransferDeadline& deadline) {
  std::array<std::byte, 24> bytes;
  if (auto got = receive_all(fd, bytes, deadline); !got) return got.error();
  return PartAsked{get_at<std::uint64_t>(bytes, 0),
                   {get_at<std::uint64_t>(bytes, 8), get_at<std::uint64_t>(bytes, 16)}};
}

Result<void> give(int fd, std::span<const std::byte> bytes, TransferDeadline& deadline) {
  std::array<std::byte, 8> length;
  put_at(length, 0, static_cast<std::uint64_t>(bytes.size()));
  if (auto sent = send_all(fd, length, deadline); !sent) return sent.error();
  return send_all(fd, bytes, deadline);
}

Result<void> take(int fd, const Part& wanted, int memory, TransferDeadline& deadline) {
  std::array<std::byte, 8> length;
  if (auto got = receive_all(fd, length, deadline); !got) return got.error();
  const auto comes = get_at<std::uint64_t>(length, 0);
  if (comes == 0)
    return ErrorInfo{ErrorCode::kObjectLost, "an object does not come directly",
                     "it is not in its owner's memory", ""};
  if (comes != wanted.bytes)
    return ErrorInfo{ErrorCode::kRefused, "an object's owner gives no such part",
                     std::to_string(comes) + " bytes come, and not " + std::to_string(wanted.bytes), ""};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return io_error("cannot make a pipe", errno, "raise ulimit -n");
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  ::fcntl(in.get(), F_SETPIPE_SZ, static_cast<int>(kPipeBytes));  // a smaller one does, too
  auto at = static_cast<loff_t>(wanted.offset);
  for (std::uint64_t left = wanted.bytes; left > 0;) {
    const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(left, kPipeBytes));
    const auto got = ::splice(fd, nullptr, in.get(), nullptr, want, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (got > 0) {
      deadline.moved(MonotonicClock().now());
      if (auto wrote = drain(out.get(), memory, at, static_cast<std::size_t>(got)); !wrote)
        return wrote.error();
      left -= static_cast<std::uint64_t>(got);
    } else if (got == 0) {
      return broke("the other end closed it with " + std::to_string(left) + " bytes to come");
    } else if (errno == EAGAIN) {
      if (auto ready = wait_for(fd, POLLIN, deadline); !ready) return ready.error();
    } else if (errno != EINTR) {
      return broke(std::strerror(errno));
    }
  }
  return {};
}

}  // namespace troupe::objects
