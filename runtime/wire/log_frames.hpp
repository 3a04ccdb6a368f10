/// The output of a submitted job as it lies on its node and travels: one frame for each read of its pipes.
///
/// ```
///  0  u32 magic "TLF1"    4  u8 stream    5  u8[3] zero    8  u32 length    12  u64 wall clock, ms    20
///  bytes
/// ```
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::wire {

enum class LogStream : std::uint8_t {
  kOutput = 1,
  kErrors = 2,
  kNote = 3,  ///< of the node: what was dropped, and why
};

struct LogFrame {
  LogStream stream = LogStream::kOutput;
  std::uint64_t wall_ms = 0;
  std::span<const std::byte> bytes;
};

inline constexpr std::size_t kLogHeaderBytes = 20;
/// The longest frame's bytes.
inline constexpr std::size_t kMaxLogFrameBytes = std::size_t{64} << 10;

/// Header and bytes, appended to `to`. REQUIRES: frame.bytes.size() <= kMaxLogFrameBytes.
void append_log_frame(std::vector<std::byte>& to, const LogFrame& frame);

/// Takes whole frames off the front of `bytes`, and returns how many bytes they took: the rest is the
/// beginning of a frame. Total. Errors: kCorrupt (no frame begins there).
Result<std::size_t> read_log_frames(std::span<const std::byte> bytes,
                                    const std::function<void(const LogFrame&)>& take);

}  // namespace troupe::wire
