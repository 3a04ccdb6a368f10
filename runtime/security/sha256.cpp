#include "runtime/security/sha256.hpp"

#include <unistd.h>

#include <cerrno>
#include <vector>

namespace troupe {

Result<std::string> sha256_of_file(int fd) {
  constexpr std::size_t kReadBytes = std::size_t{256} << 10;
  Sha256 digest;
  std::vector<std::byte> buffer(kReadBytes);
  for (ssize_t got = 0; (got = ::read(fd, buffer.data(), buffer.size())) != 0;) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("cannot read a file", errno);
    digest.update({buffer.data(), static_cast<std::size_t>(got)});
  }
  return digest.finish();
}

}  // namespace troupe
