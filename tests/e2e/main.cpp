// The main of tests that start clusters: their heads, nodes and workers are this very executable.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "scheduler/init/process_roles.hpp"

int main(int argc, char** argv) {
  troupe::become_role_if_asked();
  return Catch::Session().run(argc, argv);
}
