/// Files of data: read whole, plain or gzip.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::data {

/// Files above this are refused unread: 60,000 images of 28x28 take 47 MB.
inline constexpr std::size_t kMaxDataFileBytes = std::size_t{4} << 30;
/// How much a byte of gzip may become: what a header promises is believed as far as this goes.
inline constexpr std::uint64_t kMaxDeflateRatio = 1032;

/// The path of a file in `folder`: plain, else with ".gz", else empty.
std::string find_data_file(const std::string& folder, const std::string& name);

/// The whole file; `kind` is how messages call it: "IDX file". Errors: kIo (missing, unreadable, not a
/// regular file), kLimit.
Result<std::vector<std::byte>> read_data_file(const std::string& path, std::string_view kind);

/// What is said of a file whose bytes make no sense; `kind` as above, `name` the file's or its path.
ErrorInfo corrupt_data_file(std::string_view kind, std::string_view name, std::string why);

bool is_gzip(std::span<const std::byte> bytes);

/// A gzip stream over bytes in memory.
class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> input);
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater();

  /// False where zlib has no memory.
  bool ready() const { return ready_; }
  /// True once the stream has ended and its checksum held.
  bool ended() const { return ended_; }
  std::size_t unread_bytes() const { return input_.size() - consumed_; }
  /// Inflates into `out` until it is full or the stream ends or breaks. Returns the bytes written; `why` is
  /// set when the stream is broken or ends early.
  std::size_t read(std::span<std::uint8_t> out, std::string& why);

 private:
  std::span<const std::byte> input_;
  std::size_t consumed_ = 0;
  z_stream stream_{};
  bool ready_ = false;
  bool ended_ = false;
};

}  // namespace troupe::data
