/// bench_all_reduce: all-reduce of f32 on one machine, ours against Gloo and OpenMPI, in one run.

#include "bench/collectives/harness.hpp"

int main(int argc, char** argv) {
  return bench::run_benchmark({"bench_all_reduce",
                               "all-reduce of f32 on one machine",
                               {bench::Op::kAllReduce},
                               {4 << 10, 64 << 10, 1 << 20, 25 << 20}},
                              argc, argv);
}
