#define CATCH_CONFIG_RUNNER
#include "tests/run_catch.hpp"

#include <catch2/catch.hpp>

int troupe::test::run_catch(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
