/// What an actor's process has written, read where it was written.
#pragma once

#include <string>

#include "runtime/wire/messages.hpp"
#include "scheduler/jobs/job_client.hpp"

namespace troupe::cli {

/// All lives of the actor with that id or name, or as `reading` says; with `follow` until it has ended, which
/// is said on standard error. Returns the exit code. Throws Refused if nobody knows such an actor.
int print_output_of_actor(const JobClientOptions& where, const wire::StatusAnswer& all,
                          const std::string& name, const OutputOptions& reading);

}  // namespace troupe::cli
