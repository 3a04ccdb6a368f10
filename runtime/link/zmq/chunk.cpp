#include "runtime/link/zmq/chunk.hpp"

#include <algorithm>

#include "runtime/core/byte_codec.hpp"
#include "runtime/link/transport.hpp"

namespace troupe {

namespace {

constexpr std::uint16_t kMagic = 0x4c54;
constexpr std::uint8_t kLayoutVersion = 1;
constexpr std::uint8_t kKnownFlags = kChunkLast | kChunkHello | kChunkGoodbye;

ErrorInfo bad_frame(std::string why) {
  return {ErrorCode::kBadInput, "cannot read a frame between machines", std::move(why),
          "all machines of a cluster must run the same version of troupe"};
}

}  // namespace

Result<Chunk> decode_chunk(std::span<const std::byte> frame) {
  ByteReader reader(frame);
  std::uint16_t magic = 0;
  std::uint8_t version = 0;
  Chunk chunk;
  if (!reader.read(magic) || !reader.read(version) || !reader.read(chunk.flags) ||
      !reader.read(chunk.index) || !reader.read(chunk.message_id)) {
    return bad_frame("it has " + std::to_string(frame.size()) + " bytes, less than its header");
  }
  if (magic != kMagic) return bad_frame("wrong magic");
  if (version != kLayoutVersion) {
    return bad_frame("it has layout " + std::to_string(version) + ", this build reads " +
                     std::to_string(kLayoutVersion));
  }
  if ((chunk.flags & ~kKnownFlags) != 0) return bad_frame("unknown flags");
  chunk.payload = reader.rest();
  if ((chunk.hello() || chunk.goodbye()) && (!chunk.last() || chunk.index != 0 || !chunk.payload.empty())) {
    return bad_frame("a hello or a goodbye that is not empty");
  }
  if (chunk.payload.size() > kMaxChunkPayloadBytes) return bad_frame("it is longer than 1 MiB");
  return chunk;
}

void encode_chunk_header(const Chunk& chunk, std::span<std::byte, kChunkHeaderBytes> out) {
  std::size_t at = 0;
  const auto put = [&](std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) out[at++] = static_cast<std::byte>(value >> (8 * i));
  };
  put(kMagic, 2);
  put(kLayoutVersion, 1);
  put(chunk.flags, 1);
  put(chunk.index, 4);
  put(chunk.message_id, 8);
}

Chunk Chunker::next() const {
  TROUPE_ASSERT(!done_, "every chunk of the message was sent");
  const std::size_t size = std::min(kMaxChunkPayloadBytes, message_.size() - offset_);
  const bool last = offset_ + size == message_.size();
  return {last ? kChunkLast : std::uint8_t{0}, index_, message_id_,
          std::span<const std::byte>(message_).subspan(offset_, size)};
}

void Chunker::advance() {
  const Chunk sent = next();
  done_ = sent.last();
  offset_ += sent.payload.size();
  ++index_;
}

void Reassembler::reset() {
  budget_.left += buffer_.size();
  std::vector<std::byte>().swap(buffer_);
  open_ = false;
}

Result<std::optional<std::span<const std::byte>>> Reassembler::feed(const Chunk& chunk, Instant now) {
  using Whole = std::optional<std::span<const std::byte>>;
  const bool continues = open_ && chunk.message_id == message_id_ && chunk.index == next_index_;
  if (!continues) {
    reset();
    if (chunk.index != 0) return bad_frame("a chunk in the middle of a message that did not begin");
    if (chunk.last()) return Whole(chunk.payload);
    open_ = true;
    message_id_ = chunk.message_id;
    next_index_ = 0;
  }
  // Without this an endless message of empty chunks would never end.
  if (chunk.payload.empty() && !chunk.last()) {
    reset();
    return bad_frame("an empty chunk in the middle of a message");
  }
  if (buffer_.size() + chunk.payload.size() > kMaxMessageBytes || chunk.payload.size() > budget_.left) {
    reset();
    return ErrorInfo{ErrorCode::kLimit, "dropped a message between machines",
                     "it or all half-arrived messages together are too long", "send less at once"};
  }
  buffer_.insert(buffer_.end(), chunk.payload.begin(), chunk.payload.end());
  budget_.left -= chunk.payload.size();
  ++next_index_;
  last_chunk_ = now;
  if (!chunk.last()) return Whole();
  // The bytes stay charged until the next chunk of this connection arrives or the sweep finds them.
  open_ = false;
  return Whole(buffer_);
}

bool Reassembler::expire(Instant now, Duration timeout) {
  if (buffer_.empty() || now - last_chunk_ < timeout) return false;
  const bool dropped = open_;
  reset();
  return dropped;
}

}  // namespace troupe
