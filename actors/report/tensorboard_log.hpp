/// Figures as an event file of TensorBoard (`tensorboard --logdir FOLDER` shows them).
///
/// The file is a sequence of TFRecords: length (u64), masked CRC-32C of it, that many bytes, masked CRC-32C
/// of them; little endian. The bytes are an `Event` message of tensorflow/core/util/event.proto, of which
/// these fields are written: wall_time = 1 (double), step = 2 (int64), file_version = 3 (the first record
/// alone), summary = 5 { value = 1 { tag = 1 (string), simple_value = 2 (float) } }.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "actors/report/figures.hpp"
#include "actors/report/log_file.hpp"
#include "actors/report/sink.hpp"

namespace troupe::report {

/// CRC-32C (Castagnoli), as TFRecord has it before masking.
std::uint32_t crc32c(std::string_view bytes);
/// `bytes` as a record.
std::string tf_record(std::string_view bytes);
/// The first record's bytes, and those of one step's figures. `wall_time_s`: since 1970.
std::string tensorboard_version(double wall_time_s);
std::string tensorboard_event(double wall_time_s, const Figures& figures);

/// Movable. Not thread-safe.
class TensorBoardFile {
 public:
  /// Makes `folder` where it is missing and begins a file in it, named as TensorBoard looks for it; `writer`
  /// tells it from others of this program. One that it has begun in the same second goes on. Error (kIo): names the path and why it cannot be written.
  static Result<TensorBoardFile> open(const std::string& folder, double wall_time_s,
                                      const std::string& writer);
  /// Of an event the bytes.
  Result<void> write(std::string_view event);

 private:
  explicit TensorBoardFile(LogFile file) : file_(std::move(file)) {}
  LogFile file_;
};

class TensorBoardLog final : public Sink {
 public:
  /// Seconds since 1970.
  using WallTime = std::function<double()>;

  /// As TensorBoardFile::open.
  static Result<TensorBoardLog> open(const std::string& folder, WallTime wall_time);
  Result<void> take(const Event& event) override;

 private:
  TensorBoardLog(TensorBoardFile file, WallTime wall_time)
      : file_(std::move(file)), wall_time_(std::move(wall_time)) {}

  TensorBoardFile file_;
  WallTime wall_time_;
};

}  // namespace troupe::report
