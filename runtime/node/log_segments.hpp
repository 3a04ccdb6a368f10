/// Output on disk in segments of bounded size: the oldest go when the whole is too large. Of a submitted job
/// they hold frames (wire/log_frames.hpp), of a rank of `troupe run` its bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/wire/log_frames.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe::node {

struct LogLimits {
  std::uint64_t segment_bytes = std::uint64_t{8} << 20;
  std::uint64_t total_bytes = std::uint64_t{64} << 20;
};

/// Of the file system that has a folder, in bytes.
struct DiskRoom {
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};
/// None: unknown.
std::optional<DiskRoom> disk_room(const std::string& folder);
/// Whether what is left is for the records of head and nodes: less than 64 MiB, or a twentieth of a smaller
/// disk.
bool is_nearly_full(const DiskRoom& room);

/// The segments of one log, and its one writer. Not thread-safe.
class SegmentFiles {
 public:
  enum class Names {
    kOffsets,  ///< `path` is a folder, there and empty: each is named by the offset at which it begins
    kNewest,   ///< the newest is `path`, an older one `path`.OFFSET, of 12 digits: in order as names are
  };
  SegmentFiles(std::string path, const LogLimits& limits, Names names)
      : path_(std::move(path)), limits_(limits), names_(names) {}

  /// All of it, or false and nothing of it: error() says why.
  bool write(std::span<const std::byte> bytes);
  int error() const { return error_; }  ///< errno of the last write that failed
  /// Bytes of the front that are gone.
  std::uint64_t trimmed() const { return starts_.empty() ? 0 : starts_.front(); }

 private:
  bool open_segment();
  std::string path_of(std::uint64_t start) const;

  std::string path_;
  LogLimits limits_;
  Names names_;
  std::deque<std::uint64_t> starts_;  ///< of the segments that are there
  UniqueFd file_;                     ///< of the last one
  std::uint64_t end_ = 0;
  int error_ = 0;
};

/// The one writer of a job's log. Not thread-safe. A disk that takes nothing, or is nearly full, loses
/// output, and never holds up who writes: what was lost is counted, and said in the log.
class LogSegments {
 public:
  using LookAtRoom = std::function<std::optional<DiskRoom>(const std::string& folder)>;

  LogSegments(std::string folder, const LogLimits& limits, LookAtRoom look_at_room = disk_room)
      : folder_(std::move(folder)),
        look_at_room_(std::move(look_at_room)),
        files_(folder_, limits, SegmentFiles::Names::kOffsets) {}

  /// A note is written even to a disk that is nearly full.
  void append(wire::LogStream stream, std::span<const std::byte> bytes);
  /// So many bytes never came here.
  void missed(std::uint64_t bytes, std::string why);
  /// Nothing follows. The frame that says what was lost, where the disk did not even take that: readers get
  /// it from memory (add_to_end). Empty: there is nothing to say.
  wire::Bytes finish();
  /// Bytes that are lost, and that the log does not mention yet.
  std::uint64_t unreported() const { return lost_; }

 private:
  bool write(wire::LogStream stream, std::span<const std::byte> bytes);
  bool write_note(const std::string& text);
  bool report_lost();
  std::string lost_text() const;

  std::string folder_;
  LookAtRoom look_at_room_;
  SegmentFiles files_;
  std::uint64_t lost_ = 0;
  std::string why_lost_;
};

/// To a piece of a closed log, for which `ask` asked: `note` follows what is on disk.
void add_to_end(wire::LogPart& part, const wire::LogAsk& ask, wire::ByteView note);

/// A piece of the log in `folder`, without `attempt` and `closed`. From the oldest that is there, if
/// `ask.offset` is gone. Errors: kUnavailable (there is no such log), kIo.
Result<wire::LogPart> read_log(const std::string& folder, const wire::LogAsk& ask);

/// What stands before a node's id in LogAsk::id of who wants what the node itself has logged. No submission's
/// id has a colon.
inline constexpr std::string_view kNodeLog = "node:";

/// A piece of the file that is written through the descriptor `stream`: bytes, no frames. Errors:
/// kUnavailable (it is no file), kIo.
Result<wire::LogPart> read_log_of_process(int stream, const wire::LogAsk& ask);

}  // namespace troupe::node
