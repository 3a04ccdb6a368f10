/// Dumps as files: FOLDER/GROUP-gINCARNATION.COUNTER/rank-N.flight.
#pragma once

#include <string>
#include <vector>

#include "collectives/flight/dump.hpp"

namespace troupe::collectives::flight {

/// Folders of groups that are kept, of failures and of normal ends (is_normal_end); writing the first dump of
/// another one removes the oldest.
constexpr std::size_t kKeptGroups = 20;
constexpr std::size_t kKeptNormalEnds = 5;

/// $TROUPE_FLIGHT_FOLDER if it is set (empty: no dumps are written), else $TROUPE_FOLDER/flight, else
/// $XDG_STATE_HOME/troupe/flight, else ~/.local/state/troupe/flight; empty when none of these is set.
std::string default_flight_folder();

/// $TROUPE_TIMELINE; empty when it is not set.
std::string timeline_folder();

/// Writes a dump under `folder` and returns its path. Whole or not at all: a temporary file is renamed, over
/// an earlier dump of that rank if there is one. It is not forced to the disk, since ranks that recover wait
/// for it. Folders that are missing are made with mode 0700, files have 0600. Errors: kIo; kRefused when the
/// folder belongs to another user or others may write to it.
/// `forgets`: the oldest groups' dumps go (kKeptGroups).
Result<std::string> write_dump(const std::string& folder, const Dump& dump, bool forgets = true);

/// The files of dumps at `path`: itself, or those in the folder or in its groups' folders, sorted. Errors:
/// kBadInput when there are none, kIo.
Result<std::vector<std::string>> find_dumps(const std::string& path);

/// Errors: as parse_dump; kIo when it cannot be read.
Result<Dump> read_dump(const std::string& path);

}  // namespace troupe::collectives::flight
