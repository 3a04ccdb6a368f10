#include "runtime/core/whole_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "runtime/core/fd.hpp"

namespace troupe {
namespace {

/// Null: all of it is written, and errno says nothing. Else the call that failed, with errno.
const char* write_all(int fd, std::span<const std::byte> rest) {
  while (!rest.empty()) {
    const ssize_t wrote = ::write(fd, rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote == 0) errno = ENOSPC;
    if (wrote <= 0) return "write";
    rest = rest.subspan(static_cast<std::size_t>(wrote));
  }
  return nullptr;
}

const char* write_file(const std::string& temporary, std::span<const std::span<const std::byte>> pieces,
                       const WholeFileOptions& options) {
  ::unlink(temporary.c_str());  // of a writer that died
  const UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, options.mode));
  if (!fd) return "open";
  for (const auto& piece : pieces) {
    if (const char* failed = write_all(fd.get(), piece)) return failed;
  }
  return options.durable && ::fsync(fd.get()) != 0 ? "fsync" : nullptr;
}

const char* sync_folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return !fd || ::fsync(fd.get()) != 0 ? "fsync of the folder" : nullptr;
}

}  // namespace

Result<void> write_whole(const std::string& path, std::span<const std::span<const std::byte>> pieces,
                         const WholeFileOptions& options) {
  const std::string temporary = options.temporary.empty() ? path + ".part" : options.temporary;
  const char* failed = write_file(temporary, pieces, options);
  if (failed == nullptr && std::rename(temporary.c_str(), path.c_str()) != 0) failed = "rename";
  if (failed == nullptr && options.durable) failed = sync_folder_of(path);
  if (failed == nullptr) return {};
  const int why = errno;
  ::unlink(temporary.c_str());
  return io_error((options.what.empty() ? "cannot write " + path : options.what) + ": " + failed, why,
                  options.todo);
}

}  // namespace troupe
