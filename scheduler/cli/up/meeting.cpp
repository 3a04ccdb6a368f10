#include "scheduler/cli/up/meeting.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <thread>

#include "runtime/core/error.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/whole_file.hpp"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWant = "want-", kToken = "token-", kEnd = "end-";
constexpr std::size_t kMostHosts = 4096, kMostBytes = 64;
constexpr int kLooksAtEnd = 50;  // five seconds

/// Whole or not at all.
Result<void> write_short(const std::string& path, std::string_view text) {
  return write_whole(path, text,
                     {.temporary = path + ".new",
                      .mode = 0600,
                      .todo = "give --shared a folder that every host may write to"});
}

std::string read_short(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  char text[kMostBytes];
  const ssize_t got = fd ? ::read(fd.get(), text, sizeof text) : -1;
  return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "";
}

/// Ids are our own: 16 hexadecimal digits. Another name is no host's.
bool is_id(std::string_view text) {
  return text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

Result<MeetingHost> MeetingHost::open(const std::string& folder) {
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return io_error("cannot make " + folder, errno, "give --shared a folder that every host may write to");
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
      (info.st_mode & 077) != 0)
    return ErrorInfo{ErrorCode::kRefused, "cannot meet in " + folder,
                     "it is another user's, or others may look into it",
                     "remove it, or give another --shared"};
  MeetingHost host(folder);
  host.remove_files();
  return host;
}

/// Ours alone: whatever else lies there is somebody's.
void MeetingHost::remove_files() const {
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), last; !error && at != last; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool is_ours = name.starts_with("beat") || name.starts_with(kWant) || name.starts_with(kToken) ||
                         name.starts_with(kEnd);
    if (is_ours) ::unlink(at->path().c_str());
  }
}

std::vector<std::string> MeetingHost::waiting() const {
  std::vector<std::string> ids;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), last; !error && at != last && ids.size() < kMostHosts;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kWant) || !is_id(std::string_view(name).substr(kWant.size()))) continue;
    if (std::string id = name.substr(kWant.size()); !answered_.contains(id)) ids.push_back(std::move(id));
  }
  return ids;
}

Result<void> MeetingHost::answer(const std::string& id, const std::string& token) {
  auto wrote = write_short(folder_ + "/" + std::string(kToken) + id, token + "\n");
  if (wrote) answered_.insert(id);
  return wrote;
}

Result<void> MeetingHost::beat() {
  return write_short(folder_ + "/beat", std::to_string(++beats_));
}

void MeetingHost::end(int exit_code) {
  const auto path = [&](const std::string& id) { return folder_ + "/" + std::string(kEnd) + id; };
  for (const std::string& id : answered_) static_cast<void>(write_short(path(id), std::to_string(exit_code)));
  // Who has read it removes it.
  for (int looks = 0; looks < kLooksAtEnd; ++looks) {
    const bool is_read = std::none_of(answered_.begin(), answered_.end(), [&](const std::string& one) {
      return ::access(path(one).c_str(), F_OK) == 0;
    });
    if (is_read) {
      remove_files();
      ::rmdir(folder_.c_str());
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

bool MeetingGuest::ask() const {
  const std::string path = folder_ + "/" + std::string(kWant) + id_;
  if (::access(path.c_str(), F_OK) == 0) return true;
  return write_short(path, "").ok();
}

std::optional<std::string> MeetingGuest::token() const {
  std::string path = folder_ + "/" + std::string(kToken) + id_;
  return ::access(path.c_str(), R_OK) == 0 ? std::optional(std::move(path)) : std::nullopt;
}

std::optional<int> MeetingGuest::ended() const {
  const std::string text = read_short(folder_ + "/" + std::string(kEnd) + id_);
  int code = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), code);
  return !text.empty() && read.ec == std::errc() ? std::optional(code) : std::nullopt;
}

Duration MeetingGuest::silence(Instant now) {
  const std::string beat = read_short(folder_ + "/beat");
  if (heard_ == Instant{} || (!beat.empty() && beat != last_beat_)) {
    heard_ = now;
    last_beat_ = beat;
  }
  return now - heard_;
}

void MeetingGuest::leave() const {
  for (const std::string_view kind : {kWant, kToken, kEnd})
    ::unlink((folder_ + "/" + std::string(kind) + id_).c_str());
}

}  // namespace troupe::cli
