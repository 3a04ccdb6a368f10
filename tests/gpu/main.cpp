/// The NCCL backend on real GPUs: gpu_test [--ranks N] [--no-bandwidth]. Exits with 77 without a GPU.
///
/// Runs one rank, then 2, 3 and the GPUs' number of ranks, each in processes of their own. More ranks than
/// GPUs share them: good for correctness and aborts, and not for speed.

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

#include "tests/gpu/machine.hpp"

using namespace troupe::gpu;

namespace {

int run_case(const char* name, int ranks, int gpus, void (*body)(Rank&), bool killed = false) {
  std::printf("%s, %d %s\n", name, ranks, ranks == 1 ? "rank" : "ranks");
  std::fflush(stdout);
  const int failed = run_ranks(ranks, gpus, body, killed);
  if (failed != 0) std::printf("  FAILED on %d ranks\n", failed);
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  int only = 0;
  bool bandwidth = true;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--no-bandwidth") {
      bandwidth = false;
    } else if (flag == "--ranks" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      only = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: gpu_test [--ranks N] [--no-bandwidth]\n");
      return 2;
    }
  }
  rlimit files{};  // a region of shared memory a generation
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  const int gpus = count_gpus();
  if (gpus == 0) {
    std::printf("gpu: skipped: CUDA finds no GPU\n");
    return 77;
  }
  std::set<int> sizes{1, 2, 3, gpus};
  if (only > 0) sizes = {only};
  int failed = 0;
  for (const int ranks : sizes) {
    failed += run_case("reductions", ranks, gpus, check_reductions);
    failed += run_case("tree", ranks, gpus, check_tree);
    failed += run_case("moves", ranks, gpus, check_moves);
    failed += run_case("streams", ranks, gpus, check_streams);
    if (ranks > 1) failed += run_case("abort, shrink, all again", ranks, gpus, check_membership);
    failed += run_case("graphs", ranks, gpus, check_graph);
    failed += run_case("above a piece, misaligned", ranks, gpus, check_large);
    if (ranks > 1) {
      failed += run_case("abort with a receive pending", ranks, gpus, check_abort_with_receive);
      failed += run_case("different calls", ranks, gpus, check_mismatch);
      failed += run_case("kill -9 of a rank", ranks, gpus, check_killed, true);
    }
    if (ranks == 2) failed += run_case("1,000 rebuilds", ranks, gpus, check_rebuilds);
    failed += run_case("by name", ranks, gpus, check_by_name);
    if (bandwidth) failed += run_case("bandwidth", ranks, gpus, print_bandwidth);
  }
  if (bandwidth) failed += run_case("fold against copies", 1, gpus, print_fold);
  std::printf(failed == 0 ? "gpu: all passed\n" : "gpu: FAILED\n");
  return failed == 0 ? 0 : 1;
}
