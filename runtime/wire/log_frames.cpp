#include "runtime/wire/log_frames.hpp"

#include "runtime/core/assert.hpp"
#include "runtime/core/byte_codec.hpp"

namespace troupe::wire {
namespace {

constexpr std::uint32_t kLogMagic = 0x31464c54;  // "TLF1"

}  // namespace

void append_log_frame(std::vector<std::byte>& to, const LogFrame& frame) {
  TROUPE_ASSERT(frame.bytes.size() <= kMaxLogFrameBytes, "a frame is one read of a pipe");
  ByteWriter(to)
      .write(kLogMagic)
      .write(static_cast<std::uint32_t>(frame.stream))
      .write(static_cast<std::uint32_t>(frame.bytes.size()))
      .write(frame.wall_ms)
      .write(frame.bytes);
}

Result<std::size_t> read_log_frames(std::span<const std::byte> bytes,
                                    const std::function<void(const LogFrame&)>& take) {
  std::size_t at = 0;
  while (bytes.size() - at >= kLogHeaderBytes) {
    ByteReader reader(bytes.subspan(at));
    std::uint32_t magic = 0, stream = 0, length = 0;
    std::uint64_t wall_ms = 0;
    const bool whole =
        reader.read(magic) && reader.read(stream) && reader.read(length) && reader.read(wall_ms);
    if (!whole || magic != kLogMagic || stream < 1 || stream > 3 || length > kMaxLogFrameBytes)
      return ErrorInfo{ErrorCode::kCorrupt, "cannot read a job's output",
                       "it is damaged at byte " + std::to_string(at), ""};
    if (bytes.size() - at - kLogHeaderBytes < length) break;
    take({static_cast<LogStream>(stream), wall_ms, bytes.subspan(at + kLogHeaderBytes, length)});
    at += kLogHeaderBytes + length;
  }
  return at;
}

}  // namespace troupe::wire
