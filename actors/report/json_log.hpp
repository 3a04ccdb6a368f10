/// Every event as one JSON object a line, for programs to read.
///
/// ```
/// {"event":"step","epoch":1,"step":100,"steps_per_epoch":600,"loss":0.1234,"samples_per_s":12345.0,
///  "trainers_alive":2,"time_s":1.25}
/// ```
/// `event` is job_started, step, fault, resized, evaluating, epoch (its figures under "metrics"), checkpoint,
/// warning or job_done; `time_s` (last) counts from the opening of the file; a time of a fault that does not
/// apply, and a number that is none, is null.
#pragma once

#include <string>

#include "actors/report/log_file.hpp"
#include "actors/report/sink.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::report {

/// The line of an event, without its end. Text that is not UTF-8 is written with replacement characters.
std::string json_line(const Event& event, double time_s);

class JsonLog final : public Sink {
 public:
  /// `clock` must outlive it.
  JsonLog(LogFile file, const Clock& clock);
  Result<void> take(const Event& event) override;

 private:
  LogFile file_;
  const Clock& clock_;
  const Instant opened_at_;
};

}  // namespace troupe::report
