/// Output of a submitted job on its node's disk: frames (wire/log_frames.hpp) in segments of bounded size,
/// each named by the offset at which it begins. The oldest go when the whole is too large.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>

#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"
#include "runtime/wire/log_frames.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe::node {

struct LogLimits {
  std::uint64_t segment_bytes = std::uint64_t{8} << 20;
  std::uint64_t total_bytes = std::uint64_t{64} << 20;
};

/// The one writer of a log. Not thread-safe. A disk that takes nothing loses output, and never holds up who
/// writes: what was lost is counted, and said in the log once it takes some again.
class LogSegments {
 public:
  /// `folder` is there and empty.
  LogSegments(std::string folder, const LogLimits& limits) : folder_(std::move(folder)), limits_(limits) {}

  void append(wire::LogStream stream, std::span<const std::byte> bytes);
  /// Bytes that the disk did not take and that were not said so far.
  std::uint64_t unsaid() const { return dropped_; }

 private:
  bool write(wire::LogStream stream, std::span<const std::byte> bytes);
  bool open_segment();

  const std::string folder_;
  const LogLimits limits_;
  std::deque<std::uint64_t> starts_;  ///< of the segments that are there
  UniqueFd file_;                     ///< of the last one
  std::uint64_t end_ = 0;
  std::uint64_t dropped_ = 0;
  int error_ = 0;  ///< why the last write failed
};

/// A piece of the log in `folder`, without `attempt` and `closed`. From the oldest that is there, if
/// `ask.offset` is gone. Errors: kUnavailable (there is no such log), kIo.
Result<wire::LogPart> read_log(const std::string& folder, const wire::LogAsk& ask);

}  // namespace troupe::node
