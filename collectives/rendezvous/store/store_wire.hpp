/// What a store and its clients say to each other once each has proved that it has the job's key
/// (handshake.hpp, purpose "store"): requests, and responses that may come in another order. Everything is
/// sealed (secret_stream.hpp), with a key for each direction. The bodies, little-endian:
///
///   request   u8 op, u32 id, u16 bytes of key, key, u64 amount, u32 wait in ms, u32 bytes of value, value
///   response  u32 id, u8 status, u64 amount, u32 bytes of value, value
///
/// A response has the id of its request. Those with the id 0 were not asked for: the store closes (kClosing),
/// or a rank went (kLeft, kLost).
///
/// Pure: bytes in, bytes out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/rendezvous/store/store.hpp"
#include "runtime/core/result.hpp"

namespace troupe::collectives {

enum class StoreOp : std::uint8_t {
  kSet = 1,
  kFind = 2,   ///< waits for the key
  kErase = 3,  ///< every key that begins with this one; amount of the response: how many
  kEnter = 4,  ///< this rank's part in a formation (formations.hpp); value: an Entry; waits for the others
  kMore = 5,   ///< the values of a formation from the one numbered `amount` on
  kReady = 6,  ///< this rank has its part of the group; waits for the others
  kFail = 7,   ///< this rank gives the formation up, or has heard that it failed; value: why
  kJoin = 8,   ///< this connection speaks for its rank from here on; value: who it is
  kLeave = 9,  ///< the rank goes, of its own will
};

struct StoreRequest {
  StoreOp op = StoreOp::kFind;
  std::uint32_t id = 0;
  std::string key;
  std::string value;
  std::int64_t amount = 0;
  std::uint32_t wait_ms = 0;
  bool operator==(const StoreRequest&) const = default;
};
/// StoreRequest::wait_ms of so long.
std::uint32_t wait_ms(Duration wait);

enum class StoreStatus : std::uint8_t {
  kOk = 1,
  kAbsent = 2,   ///< find: nobody set it in time; kMore, kReady, kFail: there is no such formation
  kTaken = 3,    ///< join: another process speaks for this rank; value: who
  kOver = 4,     ///< join: the rank was here and left, or died
  kLimit = 5,    ///< the store is full, or this client waits for too much
  kBad = 6,      ///< it makes no sense
  kClosing = 7,  ///< the store closes
  kLeft = 8,     ///< a rank (amount) left; value: who it was
  kLost = 9,     ///< a rank died
  kFailed = 10,  ///< the formation came to nothing; amount: FormationFailure; value: why
};

struct StoreResponse {
  std::uint32_t id = 0;
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

/// With which a rank enters a formation: u8 survivors, u16 bytes of the ranks, the ranks as bits from rank 0
/// on, the value.
struct Entry {
  bool survivors = false;  ///< those of `ranks` that live; else all of them
  std::vector<int> ranks;  ///< ascending, at least one
  std::string value;       ///< at most kMaxEntryValueBytes
  bool operator==(const Entry&) const = default;
};
inline constexpr std::size_t kMaxEntryValueBytes = 4096;

std::string encode(const Entry& entry);
/// Errors: kBadInput.
Result<Entry> decode_entry(std::string_view text);

/// What the ranks of a formation entered with, or as much of it as fits into a response: u32 ranks in all,
/// then for each u32 rank, u32 bytes of its value, value.
struct Gathered {
  std::uint32_t total = 0;
  std::vector<std::pair<int, std::string>> values;  ///< by rank, ascending
};
/// The values from `first` on.
std::string encode_gathered(const std::vector<std::pair<int, const std::string*>>& all, std::size_t first);
/// Adds what `text` has to `gathered`. Errors: kBadInput, where it does not continue it.
Result<void> decode_gathered(std::string_view text, Gathered& gathered);

}  // namespace troupe::collectives
