/// What an actor's process has written, read where it was written.
#pragma once

#include <chrono>
#include <string>

#include "runtime/core/clock.hpp"
#include "runtime/wire/messages.hpp"
#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

/// How often output that grows is looked at, and how long a head may be on its way back meanwhile.
inline constexpr Duration kLook = std::chrono::milliseconds(300);
inline constexpr Duration kAway = std::chrono::seconds(60);

/// All lives of the actor with that id or name, or as `reading` says; with `follow` until it has ended, which
/// is said on standard error. Returns the exit code. Throws Refused if nobody knows such an actor.
int print_output_of_actor(const JobClientOptions& where, const wire::StatusAnswer& all,
                          const std::string& name, const OutputOptions& reading);

}  // namespace troupe::cli
