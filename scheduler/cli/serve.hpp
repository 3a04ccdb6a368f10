/// troupe serve: list, status, scale, update, rollback, stop. It asks the programs of this user on this
/// machine that serve (actors/serve/control.hpp, where the questions stand); no cluster is asked.
#pragma once

namespace troupe::cli {

/// `argv` begins with "serve". Returns the exit code, or throws troupe::Error with the one line a person
/// reads.
int serve(int argc, char** argv);

}  // namespace troupe::cli
