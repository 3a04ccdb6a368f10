#include "collectives/rendezvous/store_wire.hpp"

#include <sodium.h>

#include <array>
#include <cstring>

#include "runtime/core/assert.hpp"
#include "runtime/core/byte_codec.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kLengthBytes = 4;

ErrorInfo malformed(const char* what, std::string why) {
  return {ErrorCode::kBadInput, std::string("a ") + what + " of the store does not decode", std::move(why),
          "the ranks run different builds"};
}

using Tag = std::array<std::byte, kStoreTagBytes>;

Tag tag_of(const SessionKey& key, std::uint64_t count, std::span<const std::byte> length_and_body) {
  static const int ready = sodium_init();
  TROUPE_ASSERT(ready >= 0, "libsodium starts");
  std::vector<std::byte> number;
  ByteWriter(number).write(count);
  crypto_generichash_state state;
  crypto_generichash_init(&state, reinterpret_cast<const unsigned char*>(key.data()), key.size(),
                          kStoreTagBytes);
  for (const auto part : {std::span<const std::byte>(number), length_and_body}) {
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(part.data()), part.size());
  }
  Tag tag;
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(tag.data()), tag.size());
  return tag;
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

std::vector<std::byte> StoreSealer::seal(std::span<const std::byte> body) {
  TROUPE_ASSERT(body.size() <= kMaxStoreBody, "a body is within its limit");
  std::vector<std::byte> frame;
  frame.reserve(kLengthBytes + body.size() + kStoreTagBytes);
  ByteWriter writer(frame);
  writer.write(static_cast<std::uint32_t>(body.size())).write(body);
  writer.write(std::span<const std::byte>(tag_of(key_, count_++, frame)));
  return frame;
}

void StoreOpener::feed(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<std::vector<std::byte>>> StoreOpener::next() {
  std::uint32_t length = 0;
  if (!ByteReader(buffer_).read(length)) return std::optional<std::vector<std::byte>>();
  if (length > kMaxStoreBody) {
    return ErrorInfo{ErrorCode::kLimit, "a frame of the store is too long",
                     std::to_string(length) + " bytes and no more than " + std::to_string(kMaxStoreBody), ""};
  }
  const std::size_t said = kLengthBytes + length;
  if (buffer_.size() < said + kStoreTagBytes) return std::optional<std::vector<std::byte>>();
  const std::span<const std::byte> bytes(buffer_);
  const Tag wanted = tag_of(key_, count_, bytes.first(said));
  if (::sodium_memcmp(bytes.data() + said, wanted.data(), wanted.size()) != 0) {
    return ErrorInfo{ErrorCode::kRefused, "a frame of the store is not what its sender sealed",
                     "it was changed, repeated or left out on its way", ""};
  }
  ++count_;
  const auto body = bytes.subspan(kLengthBytes, length);
  std::vector<std::byte> taken(body.begin(), body.end());
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(said + kStoreTagBytes));
  return std::optional(std::move(taken));
}

}  // namespace troupe::collectives
