#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

}  // namespace troupe::fuzz
