/// The common part of bench_collectives and bench_all_reduce: flags, runs and the report.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/collectives/pattern.hpp"

namespace bench {

struct Program {
  const char* name;
  const char* about;
  std::vector<Op> ops;             ///< by default
  std::vector<std::size_t> sizes;  ///< by default: bytes of a rank's larger buffer
};

/// main() of `program`: 0 if every contender ran and computed rightly, 1 if not, 2 for wrong flags.
int run_benchmark(const Program& program, int argc, char** argv);

}  // namespace bench
