/// The folder of an embedded cluster's state, in $XDG_RUNTIME_DIR or /tmp: gone with its program, or with a
/// later one's start.
#pragma once

#include <string>

#include "runtime/core/clock.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/core/result.hpp"

namespace troupe {

/// Where the folder is made. Throws IoError when it may not be written.
std::string temporary_base();
/// A name there that nobody has. Not made here: a driver that is killed at once would leave it behind.
std::string choose_temporary_folder(const std::string& base);
/// The folder is in use for as long as the descriptor is open, whoever serves the store in it. Errors: kIo.
Result<UniqueFd> hold_temporary_folder(const std::string& folder);
/// Removes the folders in `base` that are this user's, older than `age`, and held by nobody: their programs
/// were killed together with all their processes. What is left of those, because it was stopped, is killed
/// (SIGKILL): waits a second for that, at most.
void remove_abandoned_folders(const std::string& base, Duration age = std::chrono::minutes(1));

/// "NAME=VALUE" in the environment of every process of the cluster, and of what they start.
std::string mark_of_cluster(const std::string& folder);
/// Takes it off this process, as others see it: of several nodes that kill what is left of their cluster,
/// none kills another that does.
void take_off_mark_of_cluster();

}  // namespace troupe
