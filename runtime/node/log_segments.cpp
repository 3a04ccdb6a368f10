#include "runtime/node/log_segments.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "runtime/core/count.hpp"

namespace troupe::node {
namespace {

constexpr std::string_view kSuffix = ".out";
constexpr std::uint32_t kMostReadBytes = 512 << 10;
constexpr std::uint64_t kMostReserveBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kReservePart = 20;
constexpr const char* kNearlyFull =
    "the node's disk is nearly full, and what is left is for the cluster's records";

std::string path_of(const std::string& folder, std::uint64_t start) {
  char name[32];
  std::snprintf(name, sizeof name, "/%016llx", static_cast<unsigned long long>(start));
  return folder + name + std::string(kSuffix);
}

/// Where the segments begin that are there, in order.
std::vector<std::uint64_t> list_segments(const std::string& folder) {
  std::vector<std::uint64_t> starts;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    std::uint64_t start = 0;
    const char* end = name.data() + name.size() - std::min(name.size(), kSuffix.size());
    if (name.ends_with(kSuffix) && std::from_chars(name.data(), end, start, 16).ptr == end)
      starts.push_back(start);
  }
  std::sort(starts.begin(), starts.end());
  return starts;
}

/// For people who read the output: it decides nothing.
std::uint64_t wall_clock_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

}  // namespace

std::optional<DiskRoom> disk_room(const std::string& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return std::nullopt;
  return DiskRoom{std::uint64_t{disk.f_blocks} * disk.f_frsize, std::uint64_t{disk.f_bavail} * disk.f_frsize};
}

bool is_nearly_full(const DiskRoom& room) {
  return room.free < std::min(kMostReserveBytes, room.total / kReservePart);
}

std::string SegmentFiles::path_of(std::uint64_t start) const {
  if (names_ == Names::kOffsets) return node::path_of(path_, start);
  if (start == starts_.back()) return path_;
  char number[32];
  std::snprintf(number, sizeof number, ".%012llu", static_cast<unsigned long long>(start));
  return path_ + number;
}

bool SegmentFiles::open_segment() {
  file_.reset();  // what cannot be opened gets nothing of what follows
  const bool is_new = starts_.empty() || starts_.back() != end_;
  if (is_new) starts_.push_back(end_);
  if (is_new && names_ == Names::kNewest && starts_.size() > 1)
    ::rename(path_.c_str(), path_of(starts_[starts_.size() - 2]).c_str());
  UniqueFd file(::open(path_of(end_).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                       names_ == Names::kOffsets ? 0600 : 0644));
  if (!file) {
    error_ = errno;
    return false;
  }
  file_ = std::move(file);
  while (starts_.size() > 1 && end_ - starts_.front() + limits_.segment_bytes > limits_.total_bytes) {
    ::unlink(path_of(starts_.front()).c_str());
    starts_.pop_front();
  }
  return true;
}

bool SegmentFiles::write(std::span<const std::byte> bytes) {
  const bool is_full = !starts_.empty() && end_ - starts_.back() >= limits_.segment_bytes;
  if ((!file_ || is_full) && !open_segment()) return false;
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (wrote > 0) {
      done += static_cast<std::size_t>(wrote);
    } else if (wrote == 0 || errno != EINTR) {
      error_ = wrote == 0 ? ENOSPC : errno;
      // Without the half of it. If even that fails, what follows goes to a segment of its own.
      if (done > 0 && (::ftruncate(file_.get(), static_cast<off_t>(end_ - starts_.back())) != 0 ||
                       ::lseek(file_.get(), 0, SEEK_END) < 0))
        file_.reset();
      return false;
    }
  }
  end_ += bytes.size();
  return true;
}

bool LogSegments::write(wire::LogStream stream, std::span<const std::byte> bytes) {
  std::vector<std::byte> frame;
  wire::append_log_frame(frame, {stream, wall_clock_ms(), bytes});
  return files_.write(frame);
}

bool LogSegments::write_note(const std::string& text) {
  return write(wire::LogStream::kNote, std::as_bytes(std::span(text)));
}

std::string LogSegments::lost_text() const {
  return count_of(static_cast<std::int64_t>(lost_), "byte") + " of output " + (lost_ == 1 ? "was" : "were") +
         " lost: " + why_lost_ + "\n";
}

/// Whether the log mentions all that is lost.
bool LogSegments::report_lost() {
  if (lost_ > 0 && write_note(lost_text())) lost_ = 0;
  return lost_ == 0;
}

void LogSegments::append(wire::LogStream stream, std::span<const std::byte> bytes) {
  const bool is_note = stream == wire::LogStream::kNote;
  const auto room = is_note ? std::nullopt : look_at_room_(folder_);
  const bool stops = room && is_nearly_full(*room);
  if (!stops && report_lost() && write(stream, bytes)) return;
  if (is_note) return;
  const bool begins = lost_ == 0;
  missed(bytes.size(), stops ? kNearlyFull : errno_text(files_.error()));
  if (begins) write_note("output is lost from here on: " + why_lost_ + "\n");  // for who reads meanwhile
}

void LogSegments::missed(std::uint64_t bytes, std::string why) {
  lost_ += bytes;
  why_lost_ = std::move(why);
}

wire::Bytes LogSegments::finish() {
  wire::Bytes frame;
  if (report_lost()) return frame;
  const std::string text = lost_text();
  wire::append_log_frame(frame, {wire::LogStream::kNote, wall_clock_ms(), std::as_bytes(std::span(text))});
  return frame;
}

void add_to_end(wire::LogPart& part, const wire::LogAsk& ask, wire::ByteView note) {
  const std::uint64_t written = std::exchange(part.end, part.end + note.size());
  if (!ask.from_segment && ask.offset > written) part.offset = std::min(ask.offset, part.end);
  const std::uint64_t read = part.offset + part.bytes.size();
  if (read < written) return;
  const auto rest = note.subspan(read - written);
  const auto fits = rest.first(std::min<std::size_t>(rest.size(), ask.most_bytes - part.bytes.size()));
  part.bytes.insert(part.bytes.end(), fits.begin(), fits.end());
}

Result<wire::LogPart> read_log(const std::string& folder, const wire::LogAsk& ask) {
  constexpr int kTries = 5;  // segments may go while they are looked at
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) {
      return ErrorInfo{ErrorCode::kUnavailable, "cannot read the job's output", "it has none of that attempt",
                       "ask for the latest attempt"};
    }
    const auto starts = list_segments(folder);
    wire::LogPart part;
    if (starts.empty()) return part;
    struct stat info {};
    if (::stat(path_of(folder, starts.back()).c_str(), &info) != 0) continue;
    part.first = starts.front();
    part.end = starts.back() + static_cast<std::uint64_t>(info.st_size);
    part.offset = std::clamp(ask.offset, part.first, part.end);
    const auto next = std::upper_bound(starts.begin(), starts.end(), part.offset);
    const auto start = *std::prev(next);
    if (ask.from_segment) part.offset = start;
    const UniqueFd file(::open(path_of(folder, start).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file && errno == ENOENT) continue;
    if (!file) return io_error("cannot read the job's output", errno, "look at the node's disk");
    std::uint64_t most = std::min(ask.most_bytes, kMostReadBytes);
    if (next != starts.end()) most = std::min(most, *next - part.offset);
    part.bytes.resize(most);
    const ssize_t got =
        ::pread(file.get(), part.bytes.data(), part.bytes.size(), static_cast<off_t>(part.offset - start));
    if (got < 0) return io_error("cannot read the job's output", errno, "look at the node's disk");
    part.bytes.resize(static_cast<std::size_t>(got));
    part.end = std::max(part.end, part.offset + part.bytes.size());
    return part;
  }
  return ErrorInfo{ErrorCode::kUnavailable, "cannot read the job's output",
                   "it is trimmed faster than it is read", "try again"};
}

Result<wire::LogPart> read_log_of_process(int stream, const wire::LogAsk& ask) {
  constexpr const char* kWhat = "cannot read the log of the node";
  struct stat info {};
  if (::fstat(stream, &info) != 0 || !S_ISREG(info.st_mode)) {
    return ErrorInfo{ErrorCode::kUnavailable, kWhat, "it goes to a terminal or a pipe, and is kept nowhere",
                     "look where its troupe start runs, or start it with --detach"};
  }
  const UniqueFd file(::open(("/proc/self/fd/" + std::to_string(stream)).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return io_error(kWhat, errno, "look at the node's disk");
  wire::LogPart part;
  part.attempt = 1;
  part.end = static_cast<std::uint64_t>(info.st_size);
  part.offset = std::min(ask.offset, part.end);
  part.bytes.resize(
      std::min<std::uint64_t>(part.end - part.offset, std::min(ask.most_bytes, kMostReadBytes)));
  const ssize_t got =
      ::pread(file.get(), part.bytes.data(), part.bytes.size(), static_cast<off_t>(part.offset));
  if (got < 0) return io_error(kWhat, errno, "look at the node's disk");
  part.bytes.resize(static_cast<std::size_t>(got));
  return part;
}

}  // namespace troupe::node
