#include "collectives/rendezvous/meeting_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

namespace troupe::collectives {
namespace {

constexpr std::string_view kFirstLine = "troupe meeting 1";
constexpr std::string_view kLastLine = "end";
constexpr const char* kOtherPath = "give every job a path of its own";

ErrorInfo file_refused(const std::string& path, std::string why) {
  return {ErrorCode::kRefused, "cannot meet at '" + path + "'", std::move(why), kOtherPath};
}

ErrorInfo no_note() {
  return {ErrorCode::kBadInput, "cannot meet at the file of a file:// URL",
          "it is something else than a note of rank 0", kOtherPath};
}

bool is_same_file(int fd, const std::string& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(fd, &held) == 0 && ::lstat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

}  // namespace

std::string to_text(const MeetingNote& note) {
  return std::string(kFirstLine) + "\n" + to_string(note.at) + "\n" + (note.key ? to_text(*note.key) : "-") +
         "\n" + std::string(kLastLine) + "\n";
}

Result<MeetingNote> parse_meeting_note(std::string_view text) {
  const ErrorInfo not_whole{ErrorCode::kUnavailable, "rank 0's note is not written yet", "", ""};
  std::array<std::string_view, 4> lines;
  const std::string first = std::string(kFirstLine) + "\n";
  const auto n = std::min(text.size(), first.size());
  if (text.substr(0, n) != std::string_view(first).substr(0, n)) return no_note();
  for (auto& line : lines) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return not_whole;
    line = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  auto at = parse_endpoint(lines[1]);
  if (!at || !text.empty() || lines[3] != kLastLine) return no_note();
  MeetingNote note{.at = *at};
  if (lines[2] != "-") {
    auto key = parse_job_key(lines[2], "the file of a file:// URL");
    if (!key) return no_note();
    note.key = *key;
  }
  return note;
}

Result<MeetingFile> MeetingFile::take(const std::string& path) {
  constexpr int kTries = 100;
  constexpr Duration kLockTime = std::chrono::seconds(1);
  for (int i = 0; i < kTries; ++i) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!fd) {
      return io_error("cannot write '" + path + "', where the ranks are to meet", errno,
                      "give a file:// path in a folder that every rank can write");
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      // Of a rank 0 that was killed the connections may be seen to end before its lock does.
      if (errno == EWOULDBLOCK && i + 1 < kTries) {
        std::this_thread::sleep_for(kLockTime / kTries);
        continue;
      }
      if (errno == EWOULDBLOCK) return file_refused(path, "the rank 0 of a job that runs holds it");
      return io_error("cannot lock '" + path + "'", errno, "give a path on a file system that has locks");
    }
    if (!is_same_file(fd.get(), path)) continue;  // its owner removed it in between
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0) return io_error("cannot look at '" + path + "'", errno);
    if (info.st_size > 0) {
      const auto text = read_private_file(path);
      if (!text) return text.error();
      const auto note = parse_meeting_note(*text);
      if (!note && note.error().code != ErrorCode::kUnavailable) return file_refused(path, note.error().why);
    } else if (::fchmod(fd.get(), 0600) != 0) {  // what mktemp made, say
      return io_error("cannot make '" + path + "' this user's alone", errno, kOtherPath);
    }
    if (::ftruncate(fd.get(), 0) != 0) return io_error("cannot write '" + path + "'", errno);
    return MeetingFile(path, std::move(fd));
  }
  return file_refused(path, "somebody removes it as fast as it is made");
}

Result<void> MeetingFile::write(const MeetingNote& note) {
  const std::string text = to_text(note);
  const ssize_t written = ::pwrite(fd_.get(), text.data(), text.size(), 0);
  if (written != static_cast<ssize_t>(text.size())) {
    return io_error("cannot write '" + path_ + "'", written < 0 ? errno : ENOSPC, "free space");
  }
  ::fsync(fd_.get());  // so that other machines see it
  return {};
}

Result<MeetingNote> MeetingFile::read(const std::string& path) {
  // One that somebody made for the ranks is anybody's until rank 0 makes it its own.
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0)
    return ErrorInfo{ErrorCode::kUnavailable, "rank 0's note is not written yet", "", ""};
  const auto text = read_private_file(path);
  if (!text) return text.error();
  auto note = parse_meeting_note(*text);
  if (!note && note.error().code != ErrorCode::kUnavailable) return file_refused(path, note.error().why);
  return note;
}

MeetingFile::~MeetingFile() {
  if (fd_ && is_same_file(fd_.get(), path_)) ::unlink(path_.c_str());
}

}  // namespace troupe::collectives
