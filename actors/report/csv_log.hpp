/// Every figure as a row of CSV: what a data frame reads, whatever the figures are.
///
/// ```
/// name,epoch,global_step,value,time_s
/// step/loss,1,100,0.1234,1.250
/// test/accuracy,1,600,0.9834,13.100
/// ```
/// A step gives step/loss, step/samples_per_s and step/trainers; an epoch gives each of its metrics.
#pragma once

#include "actors/report/log_file.hpp"
#include "actors/report/sink.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::report {

class CsvLog final : public Sink {
 public:
  /// `clock` must outlive it.
  CsvLog(LogFile file, const Clock& clock);
  Result<void> take(const Event& event) override;

 private:
  LogFile file_;
  const Clock& clock_;
  const Instant opened_at_;
  bool begun_;  ///< its header is there
};

}  // namespace troupe::report
