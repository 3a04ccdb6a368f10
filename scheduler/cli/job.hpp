/// troupe job: submit, list, status, logs, stop, wait.
#pragma once

namespace troupe::cli {

/// `argv` begins with "job". Returns the exit code, or throws troupe::Error with the one line a person reads.
int job(int argc, char** argv);

}  // namespace troupe::cli
