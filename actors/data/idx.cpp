#include "actors/data/idx.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

#include "runtime/core/fd.hpp"

namespace troupe::data {
namespace {

constexpr std::uint64_t kMaxDeflateRatio = 1032;

ErrorInfo corrupt(std::string_view name, std::string why) {
  return {ErrorCode::kCorrupt, "cannot use IDX file '" + std::string(name) + "'", std::move(why),
          "download it again, or point --data at another folder"};
}

std::uint32_t big_endian(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint32_t>(bytes[at + i]);
  return value;
}

std::size_t header_bytes(IdxKind kind) {
  return kind == IdxKind::kImages ? 16 : 8;
}

/// The dimensions of a header, with `data` still empty, and the number of bytes that must follow it.
struct Header {
  IdxArray array;
  std::uint64_t payload_bytes = 0;
};

Result<Header> decode_header(std::string_view name, std::span<const std::byte> bytes, IdxKind kind) {
  if (bytes.size() < header_bytes(kind)) {
    return corrupt(name, "expected a header of " + std::to_string(header_bytes(kind)) + " bytes, found " +
                             std::to_string(bytes.size()));
  }
  const std::uint32_t magic = big_endian(bytes, 0);
  if (magic != static_cast<std::uint32_t>(kind)) {
    return corrupt(name, "expected magic " + std::to_string(static_cast<std::uint32_t>(kind)) + " (" +
                             (kind == IdxKind::kImages ? "images" : "labels") + "), found " +
                             std::to_string(magic));
  }
  Header header;
  header.array.count = big_endian(bytes, 4);
  if (kind == IdxKind::kImages) {
    header.array.rows = big_endian(bytes, 8);
    header.array.columns = big_endian(bytes, 12);
  }
  // Three 32-bit factors can overflow 64 bits.
  const std::uint64_t image = std::uint64_t{header.array.rows} * header.array.columns;
  if (image != 0 && header.array.count > std::numeric_limits<std::uint64_t>::max() / image) {
    return corrupt(name, "the header's dimensions multiply to more than 2^64 bytes");
  }
  header.payload_bytes = image * header.array.count;
  return header;
}

Result<IdxArray> decode_plain(std::string_view name, std::span<const std::byte> bytes, IdxKind kind) {
  auto header = decode_header(name, bytes, kind);
  if (!header) return header.error();
  const auto payload = bytes.subspan(header_bytes(kind));
  if (payload.size() != header->payload_bytes) {
    return corrupt(name, "expected " + std::to_string(header->payload_bytes) +
                             " bytes after the header, found " + std::to_string(payload.size()));
  }
  const auto* first = reinterpret_cast<const std::uint8_t*>(payload.data());
  header->array.data.assign(first, first + payload.size());
  return std::move(header->array);
}

/// A zlib stream over bytes in memory.
class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> input) : input_(input) {
    constexpr int kGzip = 16;  // expect a gzip header and check its CRC and length
    ready_ = inflateInit2(&stream_, MAX_WBITS + kGzip) == Z_OK;
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (ready_) inflateEnd(&stream_);
  }

  bool ready() const { return ready_; }
  /// True once the stream has ended and its checksum held.
  bool ended() const { return ended_; }
  std::size_t unread_bytes() const { return input_.size() - consumed_; }

  /// Inflates into `out` until it is full or the stream ends or breaks. Returns the bytes written; `why` is
  /// set when the stream is broken or ends early.
  std::size_t read(std::span<std::uint8_t> out, std::string& why) {
    std::size_t written = 0;
    while (!ended_ && why.empty()) {
      const auto in = std::min<std::size_t>(unread_bytes(), kChunk);
      const auto room = std::min<std::size_t>(out.size() - written, kChunk);
      // zlib's C interface takes the input without const and does not write to it.
      stream_.next_in =
          reinterpret_cast<Bytef*>(const_cast<std::byte*>(input_.data() + consumed_));  // NOLINT
      stream_.avail_in = static_cast<uInt>(in);
      std::uint8_t none = 0;
      stream_.next_out = room > 0 ? out.data() + written : &none;
      stream_.avail_out = static_cast<uInt>(room);
      const int code = inflate(&stream_, Z_NO_FLUSH);
      consumed_ += in - stream_.avail_in;
      written += room - stream_.avail_out;
      if (code == Z_STREAM_END) {
        ended_ = true;
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        why = std::string("the gzip stream is damaged (") +
              (stream_.msg != nullptr ? stream_.msg : "zlib error") + ")";
      } else if (written == out.size()) {
        break;
      } else if (code == Z_BUF_ERROR) {
        why = "the gzip stream is cut off";
      }
    }
    return written;
  }

 private:
  static constexpr std::size_t kChunk = std::size_t{1} << 30;
  std::span<const std::byte> input_;
  std::size_t consumed_ = 0;
  z_stream stream_{};
  bool ready_ = false;
  bool ended_ = false;
};

Result<IdxArray> decode_gzip(std::string_view name, std::span<const std::byte> bytes, IdxKind kind) {
  Inflater inflater(bytes);
  if (!inflater.ready()) {
    return ErrorInfo{ErrorCode::kLimit, "cannot read '" + std::string(name) + "'", "zlib has no memory", ""};
  }
  std::array<std::uint8_t, 16> head{};
  std::string why;
  const std::size_t got = inflater.read(std::span(head).first(header_bytes(kind)), why);
  if (!why.empty()) return corrupt(name, why);
  auto header = decode_header(name, std::as_bytes(std::span(head).first(got)), kind);
  if (!header) return header.error();
  if (header->payload_bytes / kMaxDeflateRatio > bytes.size()) {
    return corrupt(name, "the header promises " + std::to_string(header->payload_bytes) +
                             " bytes, more than " + std::to_string(bytes.size()) +
                             " compressed bytes can hold");
  }
  header->array.data.resize(header->payload_bytes);
  const std::size_t filled = inflater.read(header->array.data, why);
  if (!why.empty()) return corrupt(name, why);
  if (filled != header->payload_bytes) {
    return corrupt(name, "expected " + std::to_string(header->payload_bytes) +
                             " bytes after the header, found " + std::to_string(filled));
  }
  std::array<std::uint8_t, 1> excess{};
  const std::size_t beyond = inflater.read(excess, why);
  if (!why.empty()) return corrupt(name, why);
  if (beyond != 0 || !inflater.ended()) {
    return corrupt(
        name, "expected " + std::to_string(header->payload_bytes) + " bytes after the header, found more");
  }
  if (inflater.unread_bytes() != 0) {
    return corrupt(name,
                   std::to_string(inflater.unread_bytes()) + " bytes follow the end of the gzip stream");
  }
  return std::move(header->array);
}

}  // namespace

Result<IdxArray> decode_idx(std::string_view name, std::span<const std::byte> bytes, IdxKind kind) {
  const bool gzip = bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
  return gzip ? decode_gzip(name, bytes, kind) : decode_plain(name, bytes, kind);
}

Result<IdxArray> read_idx(const std::string& path, IdxKind kind) {
  const std::string what = "cannot read IDX file '" + path + "'";
  // O_NONBLOCK: a FIFO in the place of a file must not hang us before it is refused below.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return io_error(what, errno, "check the path and its permissions");
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return io_error(what, errno);
  if (!S_ISREG(info.st_mode)) {
    return ErrorInfo{ErrorCode::kIo, what, "it is not a regular file",
                     "point --data at a folder of IDX files"};
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > kMaxIdxFileBytes) {
    return ErrorInfo{
        ErrorCode::kLimit, what,
        std::to_string(size) + " bytes is above the limit of " + std::to_string(kMaxIdxFileBytes),
        "split the file"};
  }
  auto bytes = std::make_unique_for_overwrite<std::byte[]>(size);
  std::size_t at = 0;
  while (at < size) {
    const ssize_t got = ::read(file.get(), bytes.get() + at, size - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(what, errno);
    if (got == 0) break;  // it shrank meanwhile; the decoder says what is missing
    at += static_cast<std::size_t>(got);
  }
  return decode_idx(path, {bytes.get(), at}, kind);
}

}  // namespace troupe::data
