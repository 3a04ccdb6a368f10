#include "tests/run_catch.hpp"

int main(int argc, char** argv) {
  return troupe::test::run_catch(argc, argv);
}
