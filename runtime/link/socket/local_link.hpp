/// The socket between a process and its node: packets in order, with descriptors attached.
///
/// A sequenced-packet Unix socket, made by socketpair before the process is started, so it has no name that anybody
/// else could connect to. The peer's credentials are checked all the same.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::transport {

/// The longest packet. Longer messages are cut into fragments by the layer above (wire/frame.hpp).
inline constexpr std::size_t kPacketMax = 64 * 1024;
/// The most descriptors a packet may carry.
inline constexpr std::size_t kPacketFdsMax = 4;

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

enum class LinkStatus { kOk, kWouldBlock, kClosed };

/// One end. One thread receives; any thread may send.
class LocalLink {
 public:
  LocalLink() = default;
  explicit LocalLink(UniqueFd socket) : socket_(std::move(socket)) {}

  /// Both ends of a new link, close-on-exec.
  static Result<std::pair<LocalLink, LocalLink>> pair();

  /// Sends head and body as one packet with copies of `fds`. Waits for room while `block` is set, for 10 s at most.
  /// REQUIRES: head.size() + body.size() <= kPacketMax, fds.size() <= kPacketFdsMax.
  LinkStatus send(std::span<const std::byte> head, std::span<const std::byte> body, std::span<const int> fds, bool block);
  /// Receives one packet. A closed or broken peer is kClosed.
  LinkStatus receive(Packet& packet, bool block);

  /// True when the peer runs under our own user id.
  bool peer_is_us() const;
  int fd() const { return socket_.get(); }
  UniqueFd& socket() { return socket_; }
  /// Wakes a blocked receive with kClosed. Thread-safe.
  void shutdown();

 private:
  UniqueFd socket_;
};

}  // namespace troupe::transport
