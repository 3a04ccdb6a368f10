/// troupe serve: run (serve_run.hpp), and list, status, scale, update, rollback, stop, which ask the programs
/// of this user on this machine that serve (actors/serve/control.hpp, where the questions stand), and no
/// cluster.
#pragma once

namespace troupe::cli {

/// `argv` begins with "serve". Returns the exit code, or throws troupe::Error with the one line a person
/// reads.
int serve(int argc, char** argv);

}  // namespace troupe::cli
