#include "scheduler/init/temporary_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string_view>

#include "runtime/core/ids.hpp"
#include "runtime/core/random.hpp"
#include "runtime/node/program.hpp"
#include "scheduler/store/sqlite_storage.hpp"

namespace troupe {
namespace {

constexpr std::string_view kPrefix = "troupe-";
constexpr std::size_t kDigits = 16;
constexpr const char* kMark = "TROUPE_EMBEDDED";
/// Until the kernel has closed what a killed process had open.
constexpr int kLooks = 100;
constexpr int kLook_us = 10'000;

bool is_name_of_folder(std::string_view name) {
  return name.starts_with(kPrefix) && name.size() == kPrefix.size() + kDigits &&
         name.substr(kPrefix.size()).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

UniqueFd open_folder(const std::string& folder) {
  return UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

/// The program is gone, and its head is not: a process that was stopped before its program was killed ends
/// only when it goes on.
void end_remains(const std::string& folder) {
  node::kill_marked({mark_of_cluster(folder)});
  for (int i = 0; i < kLooks && remove_unused_store(folder); ++i) ::usleep(kLook_us);
}

}  // namespace

std::string temporary_base() {
  const char* variable = std::getenv("XDG_RUNTIME_DIR");
  std::string base = variable == nullptr || *variable == '\0' ? "/tmp" : variable;
  if (::access(base.c_str(), W_OK | X_OK) != 0) {
    throw_error(io_error("cannot make a folder for the cluster's state in " + base, errno,
                         "set XDG_RUNTIME_DIR to a folder that you may write"));
  }
  return base;
}

std::string choose_temporary_folder(const std::string& base) {
  const std::string digits = to_hex(SystemRandom().next());
  return base + "/" + std::string(kPrefix) + std::string(kDigits - digits.size(), '0') + digits;
}

Result<UniqueFd> hold_temporary_folder(const std::string& folder) {
  UniqueFd fd = open_folder(folder);
  if (!fd || ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0)
    return io_error("cannot hold the cluster's folder " + folder, errno, "see who removes folders there");
  return fd;
}

void remove_abandoned_folders(const std::string& base, Duration age) {
  const std::time_t newest = std::time(nullptr) - age / std::chrono::seconds(1);
  std::error_code error;
  for (std::filesystem::directory_iterator at(base, error), end; !error && at != end; at.increment(error)) {
    if (!is_name_of_folder(at->path().filename().string())) continue;
    const std::string folder = at->path().string();
    const UniqueFd fd = open_folder(folder);
    struct stat info {};
    if (!fd || ::fstat(fd.get(), &info) != 0 || info.st_uid != ::geteuid() || info.st_mtime > newest ||
        ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
      continue;
    if (remove_unused_store(folder)) end_remains(folder);
  }
}

std::string mark_of_cluster(const std::string& folder) {
  return std::string(kMark) + "=" + folder;
}

void take_off_mark_of_cluster() {
  // In place: /proc/PID/environ shows what this process was started with, where it was then.
  if (char* folder = std::getenv(kMark)) *folder = '\0';
}

}  // namespace troupe
