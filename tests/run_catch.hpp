// Catch2's runner, compiled once for all tests.
#pragma once

namespace troupe::test {

/// Runs the tests of this program as its flags say; what main returns.
int run_catch(int argc, char** argv);

}  // namespace troupe::test
