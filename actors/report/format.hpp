/// Text from events. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "actors/report/events.hpp"

namespace troupe::report {

/// "0.3 ms", "14 ms", "2.5 s": two digits that matter.
std::string format_ms(double ms);
/// "12,345".
std::string format_count(std::int64_t value);

/// "epoch 1/3  step 100/600  loss 0.1234  12,345 samples/s  2 trainers".
std::string step_line(const StepDone& step, int epochs);
/// The same with a bar of what is done and the time that is left ("ETA 1:05"), at most `columns` wide; narrow
/// terminals lose the end of the line.
std::string progress_bar(const StepDone& step, int epochs, int columns,
                         std::optional<double> seconds_left = {});
/// "1:05", "2:00:07".
std::string format_time(double seconds);
/// "what · detected after 0.3 ms · left the collective after 2 ms · training again after 14 ms".
std::string fault_line(const Fault& fault);

/// The head of the table of epochs, with a column a metric (train/ first), and a row of it. A metric whose
/// name ends in "accuracy" is shown in percent.
std::string epoch_header(const Metrics& metrics);
std::string metrics_row(const std::string& label, const Metrics& metrics, double seconds);
/// Lines of at most `columns`, broken before a middle dot where they can be; what follows is indented.
std::string wrap(const std::string& text, int columns);

/// With '?' for each control character but line ends: what a user's code throws, or a process's last words,
/// move no cursor and set no title.
std::string without_controls(std::string text);

/// "600 steps in 12.3 s, 1 fault survived"; the hash has a line of its own.
std::string summary_line(const JobDone& done);
/// What is lost of a job whose final state is in no checkpoint. REQUIRES: done.lost_after.
std::string unsaved_line(const JobDone& done);
/// "A LOG IS INCOMPLETE ...". REQUIRES: logs > 0.
std::string incomplete_line(int logs);

}  // namespace troupe::report
