#include "runtime/config/small_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/core/fd.hpp"

namespace troupe::config {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace

Result<std::string> read_small_file(const std::string& path, std::size_t most_bytes) {
  const std::string todo = "name a TOML file of settings";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // of a pipe, too, it returns
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return io_error("cannot read " + path, errno, todo);
  if (!S_ISREG(info.st_mode))
    return ErrorInfo{ErrorCode::kBadInput, "cannot read " + path,
                     S_ISDIR(info.st_mode) ? "it is a folder" : "it is a pipe or a device, and no file",
                     todo};
  std::string text(most_bytes + 1, '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read " + path, errno, todo);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  if (length > most_bytes)
    return ErrorInfo{ErrorCode::kLimit, "cannot read " + path,
                     "it has more than " + (most_bytes >= kMiB ? std::to_string(most_bytes / kMiB) + " MiB"
                                                               : std::to_string(most_bytes >> 10) + " KiB"),
                     todo};
  text.resize(length);
  return text;
}

}  // namespace troupe::config
