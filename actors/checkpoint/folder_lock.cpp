#include "actors/checkpoint/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace troupe::checkpoint {

Result<FolderLock> FolderLock::take(const std::string& folder, const std::string& who) {
  const std::string path = folder + "/checkpoints.lock";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) return io_error("cannot open '" + path + "'", errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FolderLock(UniqueFd());
    std::array<char, 256> name{};
    const ssize_t got = ::pread(file.get(), name.data(), name.size(), 0);
    const std::string other(name.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return ErrorInfo{ErrorCode::kRefused, "the checkpoint folder '" + folder + "' is in use",
                     (other.empty() ? "another run" : other) + " keeps its checkpoints there; this is " + who,
                     "wait for that run to end, or name another folder"};
  }
  // For people alone: what counts is the lock.
  if (::ftruncate(file.get(), 0) == 0) static_cast<void>(::pwrite(file.get(), who.data(), who.size(), 0));
  return FolderLock(std::move(file));
}

}  // namespace troupe::checkpoint
