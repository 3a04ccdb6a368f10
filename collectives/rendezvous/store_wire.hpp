/// What a store and its clients say to each other once each has proved that it has the job's key
/// (collectives/rendezvous/handshake.hpp, purpose "store").
///
/// Everything after the handshake is sealed (secret_stream.hpp), with a key for each direction. The bodies,
/// little-endian:
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

/// Of a sealed frame.
inline constexpr std::size_t kMaxStoreBody = kMaxStoreKeyBytes + kMaxStoreValueBytes + 32;

std::vector<std::byte> encode(const StoreRequest& request);
std::vector<std::byte> encode(const StoreResponse& response);
/// Errors: kBadInput. Nothing is allocated that the bytes do not hold.
Result<StoreRequest> decode_request(std::span<const std::byte> body);
Result<StoreResponse> decode_response(std::span<const std::byte> body);

}  // namespace troupe::collectives
