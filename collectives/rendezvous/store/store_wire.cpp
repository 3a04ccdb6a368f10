#include "collectives/rendezvous/store/store_wire.hpp"

#include <algorithm>

#include "collectives/group_facts.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/byte_codec.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kMaxRankBytes = kMaxGroupRanks / 8;

ErrorInfo malformed(const char* what, std::string why) {
  return {ErrorCode::kBadInput, std::string("a ") + what + " of the store does not decode", std::move(why),
          "the ranks run different builds"};
}

bool read_value(ByteReader& reader, std::string& value) {
  std::uint32_t bytes = 0;
  return reader.read(bytes) && bytes <= kMaxStoreValueBytes && reader.read(value, bytes) && reader.done();
}

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Whether an operation is about a key.
bool is_keyed(StoreOp op) {
  return op != StoreOp::kJoin && op != StoreOp::kLeave;
}

}  // namespace

std::uint32_t wait_ms(Duration wait) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(ms, 0, UINT32_MAX));
}

std::vector<std::byte> encode(const StoreRequest& request) {
  TROUPE_ASSERT(request.key.size() <= kMaxStoreKeyBytes && request.value.size() <= kMaxStoreValueBytes,
                "a request is within its limits");
  std::vector<std::byte> body;
  ByteWriter(body)
      .write(static_cast<std::uint8_t>(request.op))
      .write(request.id)
      .write(static_cast<std::uint16_t>(request.key.size()))
      .write(std::string_view(request.key))
      .write(static_cast<std::uint64_t>(request.amount))
      .write(request.wait_ms)
      .write(static_cast<std::uint32_t>(request.value.size()))
      .write(std::string_view(request.value));
  return body;
}

std::vector<std::byte> encode(const StoreResponse& response) {
  TROUPE_ASSERT(response.value.size() <= kMaxStoreValueBytes, "a response is within its limits");
  std::vector<std::byte> body;
  ByteWriter(body)
      .write(response.id)
      .write(static_cast<std::uint8_t>(response.status))
      .write(static_cast<std::uint64_t>(response.amount))
      .write(static_cast<std::uint32_t>(response.value.size()))
      .write(std::string_view(response.value));
  return body;
}

Result<StoreRequest> decode_request(std::span<const std::byte> body) {
  ByteReader reader(body);
  StoreRequest request;
  std::uint8_t op = 0;
  std::uint16_t key_bytes = 0;
  std::uint64_t amount = 0;
  if (!reader.read(op) || op < 1 || op > static_cast<std::uint8_t>(StoreOp::kLeave)) {
    return malformed("request", "it has no known operation");
  }
  request.op = static_cast<StoreOp>(op);
  if (!reader.read(request.id) || request.id == 0) return malformed("request", "it has no id");
  if (!reader.read(key_bytes) || key_bytes > kMaxStoreKeyBytes || (is_keyed(request.op) && key_bytes == 0) ||
      !reader.read(request.key, key_bytes)) {
    return malformed("request", "its key is empty, longer than 256 bytes or cut off");
  }
  if (!reader.read(amount) || !reader.read(request.wait_ms) || !read_value(reader, request.value)) {
    return malformed("request", "its value is longer than 64 KiB or does not end where the frame does");
  }
  request.amount = static_cast<std::int64_t>(amount);
  return request;
}

Result<StoreResponse> decode_response(std::span<const std::byte> body) {
  ByteReader reader(body);
  StoreResponse response;
  std::uint8_t status = 0;
  std::uint64_t amount = 0;
  if (!reader.read(response.id) || !reader.read(status) || status < 1 ||
      status > static_cast<std::uint8_t>(StoreStatus::kFailed)) {
    return malformed("response", "it has no known status");
  }
  if (!reader.read(amount) || !read_value(reader, response.value)) {
    return malformed("response", "its value is longer than 64 KiB or does not end where the frame does");
  }
  response.status = static_cast<StoreStatus>(status);
  response.amount = static_cast<std::int64_t>(amount);
  return response;
}

std::string encode(const Entry& entry) {
  TROUPE_ASSERT(!entry.ranks.empty() && entry.value.size() <= kMaxEntryValueBytes,
                "an entry is within its limits");
  std::vector<std::byte> ranks(static_cast<std::size_t>(entry.ranks.back()) / 8 + 1);
  for (const int r : entry.ranks) {
    ranks[static_cast<std::size_t>(r) / 8] |= std::byte{1} << (static_cast<unsigned>(r) % 8);
  }
  std::vector<std::byte> bytes;
  ByteWriter(bytes)
      .write(static_cast<std::uint8_t>(entry.survivors ? 1 : 0))
      .write(static_cast<std::uint16_t>(ranks.size()))
      .write(std::span<const std::byte>(ranks))
      .write(std::string_view(entry.value));
  return as_text(bytes);
}

Result<Entry> decode_entry(std::string_view text) {
  ByteReader reader(std::as_bytes(std::span(text)));
  std::uint8_t survivors = 0;
  std::uint16_t rank_bytes = 0;
  if (!reader.read(survivors) || survivors > 1 || !reader.read(rank_bytes) || rank_bytes > kMaxRankBytes ||
      reader.rest().size() < rank_bytes) {
    return malformed("entry", "its ranks are cut off, or too many");
  }
  Entry entry{.survivors = survivors == 1};
  const auto bits = reader.rest().first(rank_bytes);
  for (std::size_t r = 0; r < bits.size() * 8; ++r) {
    if ((bits[r / 8] >> (r % 8) & std::byte{1}) != std::byte{0}) entry.ranks.push_back(static_cast<int>(r));
  }
  const auto value = reader.rest().subspan(rank_bytes);
  if (entry.ranks.empty() || bits.back() == std::byte{0} || value.size() > kMaxEntryValueBytes) {
    return malformed("entry", "it has no ranks, or its value is longer than 4 KiB");
  }
  entry.value.assign(reinterpret_cast<const char*>(value.data()), value.size());
  return entry;
}

std::string encode_gathered(const std::vector<std::pair<int, const std::string*>>& all, std::size_t first) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.write(static_cast<std::uint32_t>(all.size()));
  for (std::size_t i = first; i < all.size(); ++i) {
    const auto& [rank, value] = all[i];
    if (bytes.size() + 8 + value->size() > kMaxStoreValueBytes) break;
    writer.write(static_cast<std::uint32_t>(rank))
        .write(static_cast<std::uint32_t>(value->size()))
        .write(std::string_view(*value));
  }
  return as_text(bytes);
}

Result<void> decode_gathered(std::string_view text, Gathered& gathered) {
  ByteReader reader(std::as_bytes(std::span(text)));
  std::uint32_t total = 0;
  if (!reader.read(total) || (gathered.total != 0 && gathered.total != total)) {
    return malformed("list of values", "it does not say how many ranks there are");
  }
  gathered.total = total;
  while (!reader.done()) {
    std::uint32_t rank = 0, bytes = 0;
    std::string value;
    if (!reader.read(rank) || rank >= kMaxGroupRanks || !reader.read(bytes) || !reader.read(value, bytes) ||
        gathered.values.size() == total ||
        (!gathered.values.empty() && gathered.values.back().first >= static_cast<int>(rank))) {
      return malformed("list of values", "a value is cut off, or its rank is out of order");
    }
    gathered.values.emplace_back(static_cast<int>(rank), std::move(value));
  }
  return {};
}

}  // namespace troupe::collectives
