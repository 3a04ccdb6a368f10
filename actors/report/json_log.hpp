/// `--json FILE`: every event as one object a line, for programs to read.
///
/// ```
/// {"event":"step","epoch":1,"step":100,"steps_per_epoch":600,"loss":0.1234,"samples_per_s":12345.0,
///  "trainers_alive":2,"time_s":1.25}
/// ```
/// `event` is job_started, step, fault, resized, epoch, checkpoint, warning or job_done; `time_s` (last)
/// counts from the opening of the file; a time of a fault that does not apply, and a number that is none, is
/// null.
#pragma once

#include <string>

#include "actors/report/events.hpp"
#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"

namespace troupe::report {

/// The line of an event, without its end. Text that is not UTF-8 is written with replacement characters.
std::string json_line(const Event& event, double time_s);

/// Movable. Not thread-safe.
class JsonLog {
 public:
  /// Opens `path`, emptying a file that is there. Error (kIo): names the path and why it cannot be written.
  static Result<JsonLog> open(const std::string& path, const Clock& clock);
  /// Writes and flushes the event's line with one write(2). After an error (kIo) later events are dropped:
  /// the caller reports it once, and training goes on.
  Result<void> write(const Event& event);

 private:
  JsonLog(UniqueFd file, std::string path, const Clock& clock);

  UniqueFd file_;  // none after an error
  std::string path_;
  const Clock* clock_;
  Instant opened_at_;
};

}  // namespace troupe::report
