#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

void (*on_decoded)() = nullptr;
void decoded() {
  if (on_decoded != nullptr) on_decoded();
}

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

}  // namespace troupe::fuzz
