/// What a store and its clients say to each other once each has proved that it has the job's key
/// (collectives/rendezvous/handshake.hpp, purpose "store").
///
/// A frame, little-endian; the tag is BLAKE2b keyed with the session's key for the direction, over the
/// frame's number (8 bytes, from 0), the length and the body. What is altered, left out, repeated or
/// reordered does not verify, and ends the connection:
///
///   0   u32 bytes of body (n)         4   body         4 + n   32 bytes of tag
///
///   request   u8 op, u16 bytes of key, key, u64 amount, u32 wait in ms, u32 bytes of value, value
///   response  u8 status, u64 amount, u32 bytes of value, value
///
/// Pure: bytes in, bytes out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/rendezvous/handshake.hpp"
#include "collectives/rendezvous/store.hpp"

namespace troupe::collectives {

enum class StoreOp : std::uint8_t {
  kSet = 1,
  kSetOnce = 2,
  kFind = 3,
  kAdd = 4,
  kJoin = 5,   ///< this connection speaks for its rank from here on; value: who it is
  kLeave = 6,  ///< the rank goes, of its own will
  kErase = 7,  ///< every key that begins with this one; amount of the response: how many
};

struct StoreRequest {
  StoreOp op = StoreOp::kFind;
  std::string key;
  std::string value;
  std::int64_t amount = 0;
  std::uint32_t wait_ms = 0;
  bool operator==(const StoreRequest&) const = default;
};

enum class StoreStatus : std::uint8_t {
  kOk = 1,
  kAbsent = 2,   ///< find: nobody set it in time
  kTaken = 3,    ///< join: another process speaks for this rank; value: who
  kOver = 4,     ///< join: the rank was here and left, or died
  kLimit = 5,    ///< the store is full
  kBad = 6,      ///< add: the value is no number
  kClosing = 7,  ///< the store closes
};

struct StoreResponse {
  StoreStatus status = StoreStatus::kOk;
  std::int64_t amount = 0;
  std::string value;
  bool operator==(const StoreResponse&) const = default;
};

inline constexpr std::size_t kStoreTagBytes = 32;
inline constexpr std::size_t kMaxStoreBody = kMaxStoreKeyBytes + kMaxStoreValueBytes + 32;

std::vector<std::byte> encode(const StoreRequest& request);
std::vector<std::byte> encode(const StoreResponse& response);
/// Errors: kBadInput. Nothing is allocated that the bytes do not hold.
Result<StoreRequest> decode_request(std::span<const std::byte> body);
Result<StoreResponse> decode_response(std::span<const std::byte> body);

/// Makes frames of bodies, for one direction of a session.
class StoreSealer {
 public:
  explicit StoreSealer(const SessionKey& key) : key_(key) {}
  std::vector<std::byte> seal(std::span<const std::byte> body);

 private:
  SessionKey key_;
  std::uint64_t count_ = 0;
};

/// Takes frames apart. After an error it takes no more.
class StoreOpener {
 public:
  explicit StoreOpener(const SessionKey& key) : key_(key) {}
  /// Bytes as they come, cut anywhere.
  void feed(std::span<const std::byte> bytes);
  /// The next body; empty while it is not whole. Errors: kLimit for a length that no body has (before a byte
  /// of it is kept), kRefused for a tag that does not verify.
  Result<std::optional<std::vector<std::byte>>> next();
  /// Whether all that came was taken.
  bool empty() const { return buffer_.empty(); }

 private:
  SessionKey key_;
  std::uint64_t count_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace troupe::collectives
