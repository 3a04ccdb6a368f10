/// Recorded runs of other packages' schedulers, decided again by ours.
#pragma once

#include <iosfwd>
#include <string>

namespace troupe::tune {

enum class Replayed { kSame = 0, kDiffers = 1, kNotThere = 77 };

/// Steps the scheduler of a trace (JSON lines) through its events, with the trace's own random draws, and
/// prints each of its decisions. Ends at the first that differs from the recorded one, and prints both.
/// kNotThere: no scheduler or search of ours is the one of this trace.
Replayed replay(std::istream& trace, std::ostream& out);

/// The same of TPE's suggestions, behind the trace's first line.
Replayed replay_tpe(const std::string& header, std::istream& trace, std::ostream& out);

}  // namespace troupe::tune
