#include "collectives/rendezvous/job_key.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "runtime/core/clock.hpp"
#include "runtime/core/hex.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

constexpr std::size_t kMaxFileBytes = 4096;
constexpr int kTries = 100;
constexpr Duration kFolderLocked = std::chrono::seconds(5);

/// Whether a file or folder is this user's, and nobody else has any right on it.
bool is_private(const struct stat& info) {
  return info.st_uid == ::geteuid() && (info.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

ErrorInfo not_private(const std::string& path) {
  return {ErrorCode::kRefused, "refused '" + path + "'",
          "it belongs to another user, or others have rights on it",
          "remove it, or chmod it to be its owner's alone"};
}

std::string folder_of(const Environment& environment) {
  const char* runtime = environment("XDG_RUNTIME_DIR");
  struct stat info {};
  // It may be left over from another user or a session that is over.
  if (runtime != nullptr && *runtime == '/' && ::stat(runtime, &info) == 0 && S_ISDIR(info.st_mode) &&
      info.st_uid == ::geteuid()) {
    return std::string(runtime) + "/troupe";
  }
  return "/tmp/troupe-" + std::to_string(::geteuid());
}

std::string file_of(const std::string& folder, std::uint16_t port) {
  return folder + "/" + std::to_string(port) + ".key";
}

Result<void> check_folder(const std::string& folder) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) {
    const int cause = errno;
    auto error = io_error("cannot look at '" + folder + "'", cause);
    if (cause == ENOENT) error.code = ErrorCode::kUnavailable;  // the job that it was of is over
    return error;
  }
  if (!S_ISDIR(info.st_mode) || !is_private(info)) return not_private(folder);
  return {};
}

/// The folder, which no other rank 0 writes to until this is closed. Empty: that took too long, or it is
/// gone.
UniqueFd lock_folder(const std::string& folder) {
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  const MonotonicClock clock;
  for (const Instant until = clock.now() + kFolderLocked; fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;) {
    const bool is_held = errno == EWOULDBLOCK || errno == EINTR;  // else it has no locks
    if (!is_held || clock.now() > until) fd.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return fd;
}

/// "29500.key", or with ".77" behind it, which process 77 has not finished. Other keys in the folder are
/// somebody else's: TROUPE_FOLDER may be this one, and have the cluster's machine.key there.
bool is_name_of_key(const std::string& name) {
  const std::size_t digits = name.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string::npos &&
         (name.substr(digits) == ".key" || name.substr(digits).starts_with(".key."));
}

/// Keys whose rank 0 was killed: a living one has its own locked. REQUIRES: the folder is locked.
void remove_left_keys(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!is_name_of_key(at->path().filename().string())) continue;
    const UniqueFd fd(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(at->path().c_str());
  }
}

/// Writes a file that is there as a whole or not at all, and leaves it open in `fd`, locked; an error with
/// errno ENOENT where the folder is gone.
int write_private_file(const std::string& path, const std::string& text, UniqueFd& fd) {
  const std::string temporary = path + "." + std::to_string(::getpid());
  fd = UniqueFd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return errno;
  (void)::flock(fd.get(), LOCK_EX | LOCK_NB);  // where files have no locks, none is removed either
  int error = 0;
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    error = errno != 0 ? errno : EIO;
  } else if (::rename(temporary.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) ::unlink(temporary.c_str());
  return error;
}

}  // namespace

Result<JobKey> parse_job_key(std::string_view text, const std::string& source) {
  constexpr std::string_view kSpace = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  text = text.substr(0, text.find_last_not_of(kSpace) + 1);
  JobKey key;
  if (from_hex(text, key)) return key;
  return ErrorInfo{ErrorCode::kBadConfig, "cannot read the job key in " + source,
                   "it is not 64 hexadecimal digits, but " + std::to_string(text.size()) + " characters",
                   "make one with: openssl rand -hex 32"};
}

std::string to_text(const JobKey& key) {
  return to_hex(key);
}

JobKey random_job_key() {
  JobKey key;
  SystemRandom().fill(key);
  return key;
}

Result<std::string> read_private_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) return ErrorInfo{ErrorCode::kUnavailable, "no '" + path + "' yet", "", ""};
  if (!fd) return io_error("cannot read '" + path + "'", errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("cannot look at '" + path + "'", errno);
  if (!S_ISREG(info.st_mode) || !is_private(info)) return not_private(path);
  std::string text(kMaxFileBytes, '\0');
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), 0);
  if (got < 0) return io_error("cannot read '" + path + "'", errno);
  text.resize(static_cast<std::size_t>(got));
  return text;
}

Result<std::optional<JobKey>> configured_job_key(const std::string& option, const Environment& environment) {
  const auto parsed = [](std::string_view text, const std::string& source) -> Result<std::optional<JobKey>> {
    auto key = parse_job_key(text, source);
    if (!key) return key.error();
    return std::optional<JobKey>(*key);
  };
  if (!option.empty()) return parsed(option, "the options");
  if (const char* text = environment("TROUPE_JOB_KEY")) return parsed(text, "TROUPE_JOB_KEY");
  const char* path = environment("TROUPE_JOB_KEY_FILE");
  if (path == nullptr) return std::optional<JobKey>();
  auto text = read_private_file(path);
  if (!text) {
    auto error = text.error();
    if (error.code == ErrorCode::kUnavailable) {
      error = {ErrorCode::kBadConfig, "there is no job key",
               "TROUPE_JOB_KEY_FILE is '" + std::string(path) + "', where there is no file",
               "make it with: (umask 077; openssl rand -hex 32 > FILE)"};
    }
    return error;
  }
  return parsed(*text, "the file TROUPE_JOB_KEY_FILE");
}

Result<LocalKeyFile> LocalKeyFile::create(std::uint16_t port, const Environment& environment) {
  const std::string folder = folder_of(environment);
  const JobKey key = random_job_key();
  int error = 0;
  // Another job of this user may remove the folder, empty as it is, between the two steps.
  for (int i = 0; i < kTries; ++i) {
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return io_error("cannot make the folder '" + folder + "' for the job's key", errno,
                      "set TROUPE_JOB_KEY, or XDG_RUNTIME_DIR to a folder of yours");
    }
    if (auto good = check_folder(folder); !good) {
      if (good.error().code == ErrorCode::kUnavailable) continue;
      return good.error();
    }
    const UniqueFd locked = lock_folder(folder);
    if (locked) remove_left_keys(folder);
    UniqueFd file;
    error = write_private_file(file_of(folder, port), to_text(key) + "\n", file);
    if (error == 0) return LocalKeyFile(file_of(folder, port), key, std::move(file));
    if (error != ENOENT) break;
  }
  return io_error("cannot write '" + file_of(folder, port) + "'", error, "free space, or set TROUPE_JOB_KEY");
}

Result<JobKey> LocalKeyFile::read(std::uint16_t port, const Environment& environment) {
  const std::string folder = folder_of(environment);
  const std::string path = file_of(folder, port);
  auto text = read_private_file(path);
  if (!text) return text.error();
  if (auto good = check_folder(folder); !good) return good.error();
  return parse_job_key(*text, path);
}

LocalKeyFile::~LocalKeyFile() {
  if (path_.empty()) return;
  ::unlink(path_.c_str());
  ::rmdir(path_.substr(0, path_.rfind('/')).c_str());  // stays where other jobs have keys in it
}

}  // namespace troupe::collectives
