/// Text from events. Pure.
#pragma once

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
/// The same with a bar of what is done, at most `columns` wide; narrow terminals lose the end of the line.
std::string progress_bar(const StepDone& step, int epochs, int columns);
/// "what · detected after 0.3 ms · left the collective after 2 ms · training again after 14 ms".
std::string fault_line(const Fault& fault);

/// The head of the table of epochs, and a row of it.
std::string epoch_header();
std::string epoch_row(const EpochDone& epoch);

/// "600 steps in 12.3 s, 1 fault survived"; the hash has a line of its own.
std::string summary_line(const JobDone& done);

}  // namespace troupe::report
