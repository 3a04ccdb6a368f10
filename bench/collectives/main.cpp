/// bench_collectives: the collectives beside all-reduce on one machine, ours against Gloo and OpenMPI, in one
/// run.

#include "bench/collectives/harness.hpp"

int main(int argc, char** argv) {
  using bench::Op;
  return bench::run_benchmark({"bench_collectives",
                               "collectives on f32 on one machine",
                               {Op::kBroadcast, Op::kReduceScatter, Op::kAllGather, Op::kAllToAll},
                               {4 << 10, 64 << 10, 1 << 20, 25 << 20}},
                              argc, argv);
}
