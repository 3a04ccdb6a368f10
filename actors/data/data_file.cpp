#include "actors/data/data_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "runtime/core/fd.hpp"

namespace troupe::data {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // zlib counts in 32 bits

}  // namespace

std::string find_data_file(const std::string& folder, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    const auto path = std::filesystem::path(folder) / (name + suffix);
    std::error_code none;  // an unreadable folder counts as one without the file
    if (std::filesystem::exists(path, none)) return path.string();
  }
  return {};
}

ErrorInfo corrupt_data_file(std::string_view kind, std::string_view name, std::string why) {
  return {ErrorCode::kCorrupt, "cannot use " + std::string(kind) + " '" + std::string(name) + "'",
          std::move(why), "download it again, or name another folder"};
}

Result<std::vector<std::byte>> read_data_file(const std::string& path, std::string_view kind) {
  const std::string what = "cannot read " + std::string(kind) + " '" + path + "'";
  // O_NONBLOCK: a FIFO in the place of a file must not hang us before it is refused below.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return io_error(what, errno, "check the path and its permissions");
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return io_error(what, errno);
  if (!S_ISREG(info.st_mode)) {
    return ErrorInfo{ErrorCode::kIo, what, "it is not a regular file", "name a folder of data files"};
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > kMaxDataFileBytes) {
    return ErrorInfo{
        ErrorCode::kLimit, what,
        std::to_string(size) + " bytes is above the limit of " + std::to_string(kMaxDataFileBytes),
        "split the file"};
  }
  std::vector<std::byte> bytes(size);
  std::size_t at = 0;
  while (at < size) {
    const ssize_t got = ::read(file.get(), bytes.data() + at, size - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(what, errno);
    if (got == 0) break;  // it shrank meanwhile; the decoder says what is missing
    at += static_cast<std::size_t>(got);
  }
  bytes.resize(at);
  return bytes;
}

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

Inflater::Inflater(std::span<const std::byte> input) : input_(input) {
  constexpr int kGzip = 16;  // expect a gzip header and check its CRC and length
  ready_ = inflateInit2(&stream_, MAX_WBITS + kGzip) == Z_OK;
}

Inflater::~Inflater() {
  if (ready_) inflateEnd(&stream_);
}

std::size_t Inflater::read(std::span<std::uint8_t> out, std::string& why) {
  std::size_t written = 0;
  while (!ended_ && why.empty()) {
    const auto in = std::min<std::size_t>(unread_bytes(), kMostAtOnce);
    const auto room = std::min<std::size_t>(out.size() - written, kMostAtOnce);
    // zlib's C interface takes the input without const and does not write to it.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input_.data() + consumed_));  // NOLINT
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

}  // namespace troupe::data
