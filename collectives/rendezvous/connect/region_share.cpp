#include "collectives/rendezvous/connect/region_share.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "collectives/rendezvous/connect/address.hpp"
#include "collectives/texts.hpp"
#include "runtime/core/byte_codec.hpp"
#include "runtime/core/hex.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kNameChars = 32;
constexpr std::size_t kSecretChars = 32;
constexpr std::size_t kMaxVisitors = 256;

std::string random_text(std::size_t chars) {
  std::vector<std::byte> bytes(chars / 2);
  SystemRandom().fill(bytes);
  return to_hex(bytes);
}

bool send_fd(int socket, int fd) {
  char byte = 'r';
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

UniqueFd receive_fd(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) return {};
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return {};
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return UniqueFd(fd);
}

ErrorInfo failed(ErrorCode code, std::string why) {
  return {code, "cannot share memory with the other ranks of this machine", std::move(why),
          "see why they did not get there, or raise the timeout"};
}

}  // namespace

std::vector<std::byte> region_greeting(int rank, std::string_view secret) {
  std::vector<std::byte> bytes;
  ByteWriter(bytes).write(static_cast<std::uint32_t>(rank)).write(secret);
  return bytes;
}

int rank_of_greeting(std::span<const std::byte> greeting, std::string_view secret,
                     const std::vector<int>& receivers) {
  const auto awaited = std::find_if(receivers.begin(), receivers.end(), [&](int rank) {
    const auto wanted = region_greeting(rank, secret);
    return std::equal(wanted.begin(), wanted.end(), greeting.begin(), greeting.end());
  });
  return awaited == receivers.end() ? -1 : *awaited;
}

Result<RegionOffer> RegionOffer::open() {
  RegionOffer offer;
  const std::string name = random_text(kNameChars);
  offer.listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto address = abstract_address(name);
  if (!offer.listener_ || ::bind(offer.listener_.get(), address.get(), address.length) != 0 ||
      ::listen(offer.listener_.get(), SOMAXCONN) != 0) {
    return io_error("cannot listen for the other ranks of this machine", errno, "raise ulimit -n");
  }
  offer.token_ = name + random_text(kSecretChars);
  return offer;
}

Result<void> RegionOffer::hand_out(const SharedMemory& memory, std::vector<int> receivers,
                                   const WaitOptions& options) {
  const MonotonicClock clock;
  const Instant until = clock.now() + options.timeout;
  const std::string secret = token_.substr(kNameChars);
  std::vector<UniqueFd> visitors;
  while (!receivers.empty()) {
    if (options.aborted()) return failed(ErrorCode::kAborted, "another rank is gone");
    if (clock.now() >= until) {
      return failed(ErrorCode::kTimeout, "rank " + listed(receivers) + " did not come for it");
    }
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}, {options.abort_fd, POLLIN, 0}};
    for (const auto& visitor : visitors) entries.push_back({visitor.get(), POLLIN, 0});
    ::poll(entries.data(), entries.size(), wait_ms(clock.now(), until, options));
    for (std::size_t i = visitors.size(); i-- > 0;) {
      if (entries[i + 2].revents == 0) continue;
      std::array<std::byte, 64> said;
      const ssize_t got = ::recv(visitors[i].get(), said.data(), said.size(), MSG_DONTWAIT);
      const int rank =
          got < 0 ? -1
                  : rank_of_greeting(std::span(said).first(static_cast<std::size_t>(got)), secret, receivers);
      if (rank >= 0 && send_fd(visitors[i].get(), memory.fd())) std::erase(receivers, rank);
      visitors.erase(visitors.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if ((entries[0].revents & POLLIN) == 0) continue;
    UniqueFd visitor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!visitor || !is_same_user(visitor.get())) continue;
    if (visitors.size() == kMaxVisitors) visitors.erase(visitors.begin());
    visitors.push_back(std::move(visitor));
  }
  return {};
}

Result<SharedMemory> take_region(const std::string& token, int rank, const WaitOptions& options) {
  if (token.size() != kNameChars + kSecretChars) {
    return ErrorInfo{ErrorCode::kBadInput, "cannot share memory with the other ranks of this machine",
                     "what they published is no token", "the ranks run different builds"};
  }
  const MonotonicClock clock;
  const Instant until = clock.now() + options.timeout;
  const auto address = abstract_address(token.substr(0, kNameChars));
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return io_error("cannot make a socket", errno, "raise ulimit -n");
  const auto greeting = region_greeting(rank, token.substr(kNameChars));
  bool greeted = false;
  while (true) {
    if (options.aborted()) return failed(ErrorCode::kAborted, "another rank is gone");
    if (clock.now() >= until) return failed(ErrorCode::kTimeout, "the rank that has it did not hand it out");
    if (!greeted) {
      if (::connect(fd.get(), address.get(), address.length) != 0) {
        // EAGAIN: its queue is full, of which nothing tells when it no longer is.
        if (errno != EAGAIN && errno != EINTR) return failed(ErrorCode::kUnavailable, std::strerror(errno));
        ::poll(nullptr, 0, 5);
        continue;
      }
      if (!is_same_user(fd.get())) return failed(ErrorCode::kRefused, "another user has it");
      if (::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL) < 0) {
        return failed(ErrorCode::kUnavailable, std::strerror(errno));
      }
      greeted = true;
    }
    pollfd entries[] = {{fd.get(), POLLIN, 0}, {options.abort_fd, POLLIN, 0}};
    if (::poll(entries, 2, wait_ms(clock.now(), until, options)) <= 0 || entries[0].revents == 0) continue;
    UniqueFd memory = receive_fd(fd.get());
    if (!memory) return failed(ErrorCode::kUnavailable, "the rank that has it hung up");
    return SharedMemory::map(std::move(memory), false);
  }
}

}  // namespace troupe::collectives
