#include "actors/checkpoint/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace troupe::checkpoint {
namespace {

constexpr std::size_t kMostText = 4096;

}  // namespace

Result<FolderLock> FolderLock::take(const std::string& folder, const std::string& who) {
  const std::string path = folder + "/checkpoints.lock";
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) return io_error("cannot open '" + path + "'", errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FolderLock(UniqueFd(), folder, who);
    std::array<char, 256> name{};
    const ssize_t got = ::pread(file.get(), name.data(), name.size(), 0);
    const std::string other(name.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return ErrorInfo{ErrorCode::kRefused, "the checkpoint folder '" + folder + "' is in use",
                     (other.empty() ? "another run" : other) + " keeps its checkpoints there; this is " + who,
                     "wait for that run to end, or name another folder"};
  }
  // What counts is the lock. The text is for people, and for trainers on other hosts, where it has to arrive.
  if (::ftruncate(file.get(), 0) == 0) static_cast<void>(::pwrite(file.get(), who.data(), who.size(), 0));
  static_cast<void>(::fsync(file.get()));
  return FolderLock(std::move(file), folder, who);
}

bool FolderLock::is_of(FileSystem& files, const std::string& folder, const std::string& who) {
  if (who.empty()) return true;
  const auto text = files.read(folder + "/checkpoints.lock", kMostText);
  return text && std::equal(text->begin(), text->end(), who.begin(), who.end(),
                            [](std::byte read, char said) { return read == static_cast<std::byte>(said); });
}

Result<bool> FolderLock::renew() {
  struct stat held {};
  struct stat there {};
  if (!file_ || ::fstat(file_.get(), &held) != 0) return false;
  const std::string path = folder_ + "/checkpoints.lock";
  if (::stat(path.c_str(), &there) == 0 && there.st_ino == held.st_ino && there.st_dev == held.st_dev)
    return false;
  auto again = take(folder_, who_);
  if (!again) return again.error();
  *this = *std::move(again);
  return true;
}

}  // namespace troupe::checkpoint
