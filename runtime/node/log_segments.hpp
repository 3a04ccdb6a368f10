/// Output on disk in segments of bounded size: the oldest go when the whole is too large. Of a submitted job
/// they hold frames (wire/log_frames.hpp), of a rank of `troupe run` its bytes.
#pragma once

#include <cstdint>
#include <deque>
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

/// The one writer of a job's log. Not thread-safe. A disk that takes nothing loses output, and never holds up
/// who writes: what was lost is counted, and said in the log once it takes some again.
class LogSegments {
 public:
  LogSegments(std::string folder, const LogLimits& limits)
      : files_(std::move(folder), limits, SegmentFiles::Names::kOffsets) {}

  void append(wire::LogStream stream, std::span<const std::byte> bytes);
  /// Bytes that the disk did not take, and that the log does not mention yet.
  std::uint64_t unreported() const { return dropped_; }

 private:
  bool write(wire::LogStream stream, std::span<const std::byte> bytes);

  SegmentFiles files_;
  std::uint64_t dropped_ = 0;
};

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
