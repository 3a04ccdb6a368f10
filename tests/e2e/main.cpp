// The main of tests that start clusters: their heads, nodes and workers are this very executable.
#include "scheduler/init/process_roles.hpp"
#include "tests/run_catch.hpp"

int main(int argc, char** argv) {
  troupe::become_role_if_asked();
  return troupe::test::run_catch(argc, argv);
}
