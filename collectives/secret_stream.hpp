/// Frames that nobody between two ranks can read or change: libsodium's secretstream (XChaCha20-Poly1305).
///
/// Each direction of a connection has a key of its own, which its handshake gives (handshake.hpp). What is
/// sent, little-endian:
///
///   once      24 bytes       libsodium's header: a random nonce
///   a frame   u32 n, at most the limit of the connection; n + 17 bytes: the body, sealed. The MAC covers n.
///
/// The frames are numbered inside the seal. A frame that was altered, repeated, left out or reordered does
/// not open, and the stream takes no more after it.
///
/// Pure: bytes in, bytes out.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::collectives {

/// Of one direction of one connection.
using SessionKey = std::array<std::byte, 32>;

/// Of both directions of one connection, as one of its ends has them.
struct SessionKeys {
  SessionKey out{};
  SessionKey in{};
};

inline constexpr std::size_t kSecretHeaderBytes = 24;
inline constexpr std::size_t kSecretLengthBytes = 4;
inline constexpr std::size_t kSecretTagBytes = 17;

/// libsodium's state, whose header no user of ours needs.
struct SecretState {
  alignas(8) std::array<std::byte, 52> bytes{};
};

/// The end that sends.
class SecretSealer {
 public:
  explicit SecretSealer(const SessionKey& key);
  /// Appends the frame of `body` to `out`, and before the first one the header.
  void seal(std::span<const std::byte> body, std::vector<std::byte>& out);

 private:
  SecretState state_;
  std::array<std::byte, kSecretHeaderBytes> header_{};
  bool said_header_ = false;
};

/// The end that receives. After an error it gives that error for ever.
class SecretOpener {
 public:
  /// `max_body`: longer bodies are refused, before anything is kept of them.
  SecretOpener(const SessionKey& key, std::size_t max_body) : key_(key), max_body_(max_body) {}

  /// Bytes as they come, cut anywhere.
  void feed(std::span<const std::byte> bytes);
  /// Room for at least a whole frame, to receive into; then commit() says how many bytes came.
  std::span<std::byte> room();
  void commit(std::size_t bytes) { end_ += bytes; }

  /// How long the body of the next frame is; empty while it is not whole. Errors: kLimit.
  Result<std::optional<std::size_t>> next_bytes();
  /// Opens the next frame. REQUIRES: next_bytes(), and `body` is as long. Errors: kRefused.
  Result<void> open(std::span<std::byte> body);
  /// The two as one.
  Result<std::optional<std::vector<std::byte>>> next();

  /// Whether all that came was taken: a connection that ends otherwise was cut in the middle of a frame.
  bool empty() const { return begin_ == end_; }

 private:
  std::span<const std::byte> kept() const { return std::span(buffer_).subspan(begin_, end_ - begin_); }
  void make_room(std::size_t bytes);

  SessionKey key_;
  std::size_t max_body_;
  SecretState state_;
  bool has_header_ = false;
  std::optional<ErrorInfo> failure_;
  std::vector<std::byte> buffer_;  ///< what came and was not taken lies from begin_ to end_
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace troupe::collectives
