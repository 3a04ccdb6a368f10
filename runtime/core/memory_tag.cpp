#include "runtime/core/memory_tag.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace troupe {
namespace {

Result<off_t> place_of_tag(const UniqueFd& fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("cannot see an object's memory", errno);
  if (info.st_size < static_cast<off_t>(kTagBytes))
    return ErrorInfo{ErrorCode::kRefused, "cannot read an object's memory", "it is too short", ""};
  return info.st_size - static_cast<off_t>(kTagBytes);
}

}  // namespace

Result<UniqueFd> reopen(const UniqueFd& fd, int flags) {
  UniqueFd own(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), flags | O_CLOEXEC));
  if (!own) return io_error("cannot open an object's memory", errno, "objects need /proc, and ulimit -n");
  return own;
}

Result<MemoryTag> read_tag(const UniqueFd& fd) {
  const auto at = place_of_tag(fd);
  if (!at) return at.error();
  MemoryTag tag;
  if (::pread(fd.get(), &tag, sizeof tag, *at) != static_cast<ssize_t>(sizeof tag))
    return io_error("cannot read an object's memory", errno);
  return tag;
}

Result<void> write_tag(const UniqueFd& fd, const MemoryTag& tag) {
  const auto at = place_of_tag(fd);
  if (!at) return at.error();
  if (::pwrite(fd.get(), &tag, sizeof tag, *at) != static_cast<ssize_t>(sizeof tag))
    return io_error("cannot write an object to shared memory", errno, "free memory");
  return {};
}

bool is_unread(const UniqueFd& fd) {
  const auto own = reopen(fd, O_RDONLY);
  return own && ::flock(own->get(), LOCK_EX | LOCK_NB) == 0;
}

bool take_memory(const UniqueFd& fd) {
  const auto own = reopen(fd, O_RDWR);
  if (!own || ::flock(own->get(), LOCK_EX | LOCK_NB) != 0) return false;
  const auto tag = read_tag(*own);
  // The tag is written last: without one somebody may be at it.
  return tag && *tag != MemoryTag{} && write_tag(*own, {}).ok();
}

}  // namespace troupe
