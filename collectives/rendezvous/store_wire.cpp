#include "collectives/rendezvous/store_wire.hpp"

#include "runtime/core/assert.hpp"
#include "runtime/core/byte_codec.hpp"

namespace troupe::collectives {
namespace {

ErrorInfo malformed(const char* what, std::string why) {
  return {ErrorCode::kBadInput, std::string("a ") + what + " of the store does not decode", std::move(why),
          "the ranks run different builds"};
}

bool read_value(ByteReader& reader, std::string& value) {
  std::uint32_t bytes = 0;
  return reader.read(bytes) && bytes <= kMaxStoreValueBytes && reader.read(value, bytes) && reader.done();
}

}  // namespace

std::vector<std::byte> encode(const StoreRequest& request) {
  TROUPE_ASSERT(request.key.size() <= kMaxStoreKeyBytes && request.value.size() <= kMaxStoreValueBytes,
                "a request is within its limits");
  std::vector<std::byte> body;
  ByteWriter(body)
      .write(static_cast<std::uint8_t>(request.op))
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
  if (!reader.read(op) || op < 1 || op > static_cast<std::uint8_t>(StoreOp::kErase)) {
    return malformed("request", "it has no known operation");
  }
  request.op = static_cast<StoreOp>(op);
  const bool keyed = request.op <= StoreOp::kAdd || request.op == StoreOp::kErase;
  if (!reader.read(key_bytes) || key_bytes > kMaxStoreKeyBytes || (keyed && key_bytes == 0) ||
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
  if (!reader.read(status) || status < 1 || status > static_cast<std::uint8_t>(StoreStatus::kClosing)) {
    return malformed("response", "it has no known status");
  }
  if (!reader.read(amount) || !read_value(reader, response.value)) {
    return malformed("response", "its value is longer than 64 KiB or does not end where the frame does");
  }
  response.status = static_cast<StoreStatus>(status);
  response.amount = static_cast<std::int64_t>(amount);
  return response;
}

}  // namespace troupe::collectives
