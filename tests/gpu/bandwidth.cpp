/// How fast: nccl-tests' table, and the kernel of an exact sum against plain copies of memory. Prints; checks
/// nothing, since nobody promises how busy a GPU is.

#include <algorithm>
#include <cstdio>

#include "collectives/nccl/api.hpp"
#include "collectives/nccl/tree_fold.hpp"
#include "tests/gpu/exact_reference.hpp"
#include "tests/gpu/machine.hpp"

namespace troupe::gpu {

using namespace collectives;
using collectives::testing::one_a_rank;

namespace {

/// Milliseconds from the first call of `launch` that counts to the end of the last; one warms up.
float time_ms(cudaStream_t stream, int rounds, const std::function<void()>& launch) {
  cudaEvent_t start, stop;
  cuda(cudaEventCreate(&start));
  cuda(cudaEventCreate(&stop));
  launch();
  cuda(cudaEventRecord(start, stream));
  for (int i = 0; i < rounds; ++i) launch();
  cuda(cudaEventRecord(stop, stream));
  cuda(cudaEventSynchronize(stop));
  float ms = 0;
  cuda(cudaEventElapsedTime(&ms, start, stop));
  cuda(cudaEventDestroy(start));
  cuda(cudaEventDestroy(stop));
  return ms;
}

struct Measured {
  const char* name;
  double bus_factor;  ///< nccl-tests' doc/PERFORMANCE.md: busbw = algbw x this
  std::function<std::shared_ptr<Work>(std::size_t bytes)> launch;
};

/// Microseconds an operation, of many that are launched one behind the other.
double time_us(Rank& rank, const Measured& what, std::size_t bytes) {
  const int rounds = bytes >= (64 << 20) ? 10 : bytes >= (1 << 20) ? 30 : 100;
  for (int i = 0; i < 4; ++i) finish(*what.launch(bytes));
  rank.group->barrier()->wait();
  return time_ms(rank.stream, rounds, [&] { what.launch(bytes)->wait(); }) * 1e3 / rounds;
}

}  // namespace

void print_bandwidth(Rank& rank) {
  constexpr std::size_t kLargest = 256 << 20;
  const auto n = static_cast<std::size_t>(rank.size);
  Buffer buffer = rank.group->allocate(kLargest / 4, DType::kFloat32);
  Buffer part = rank.group->allocate(kLargest / 4 / n, DType::kFloat32);
  buffer.stream = part.stream = rank.stream;
  cuda(cudaMemsetAsync(buffer.data, 0, kLargest, rank.stream));
  cuda(cudaMemsetAsync(part.data, 0, kLargest / n, rank.stream));
  const auto sized = [](Buffer of, std::size_t count) {
    of.count = count;
    return of;
  };
  const double ring = static_cast<double>(n - 1) / static_cast<double>(n);
  const Measured all[] = {
      {"all_reduce, any order", 2 * ring,
       [&](std::size_t b) {
         return rank.group->all_reduce(sized(buffer, b / 4), Reduction(ReduceOp::kSum, false));
       }},
      {"all_reduce, exact", 2 * ring,
       [&](std::size_t b) { return rank.group->all_reduce(sized(buffer, b / 4), ReduceOp::kSum); }},
      {"all_gather", ring,
       [&](std::size_t b) {
         const std::size_t count = std::max<std::size_t>(b / 4 / n, 1);
         return rank.group->all_gather(sized(part, count), sized(buffer, count * n));
       }},
  };
  for (const Measured& what : all) {
    if (rank.rank == 0) {
      std::printf("  %s, %d ranks\n  %12s %12s %14s %14s\n", what.name, rank.size, "bytes", "us",
                  "algbw GB/s", "busbw GB/s");
    }
    for (std::size_t bytes = 8; bytes <= kLargest; bytes *= bytes < (1 << 20) ? 32 : 4) {
      const double us = time_us(rank, what, bytes);
      const double algbw = static_cast<double>(bytes) / us / 1e3;
      if (rank.rank == 0) {
        std::printf("  %12zu %12.1f %14.2f %14.2f\n", bytes, us, algbw, algbw * what.bus_factor);
      }
    }
  }
}

/// A fold reads its sources once and writes once: at best it moves bytes as fast as a copy does.
void print_fold(Rank& rank) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  constexpr int kRounds = 20, kMost = 8;
  std::byte *received = nullptr, *out = nullptr;
  std::uint8_t* on_device = nullptr;
  cuda(cudaMalloc(&received, kBytes * kMost));
  cuda(cudaMalloc(&out, kBytes * kMost));
  cuda(cudaMalloc(&on_device, kMost));
  cuda(cudaMemset(received, 0, kBytes * kMost));
  // Read and written.
  const float copy_ms = time_ms(rank.stream, kRounds, [&] {
    cuda(cudaMemcpyAsync(out, received, kBytes * kMost, cudaMemcpyDeviceToDevice, rank.stream));
  });
  const double copied = 2.0 * kBytes * kMost * kRounds / copy_ms / 1e6;
  std::printf("  copies of %zu MiB: %.0f GB/s\n  %10s %10s %10s %14s\n", kBytes * kMost >> 20, copied,
              "partials", "dtype", "GB/s", "of a copy");
  for (int sources = 2; sources <= kMost; sources *= 2) {
    const auto program = nccl::fold_program(one_a_rank(sources), sources);
    cuda(cudaMemcpy(on_device, program.data(), program.size(), cudaMemcpyHostToDevice));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
      nccl::TreeFold fold{.received = received, .stride = kBytes, .own_first = sources};
      fold.program = on_device;
      fold.depth = nccl::fold_depth(program);
      fold.sources = sources;
      fold.out = out;
      fold.count = kBytes / element_size(dtype);
      fold.dtype = dtype;
      const float ms = time_ms(rank.stream, kRounds, [&] {
        cuda(static_cast<cudaError_t>(nccl::real_api().cuda.launch_tree_fold(fold, rank.stream)));
      });
      const double folded = static_cast<double>(kBytes) * (sources + 1) * kRounds / ms / 1e6;
      std::printf("  %10d %10s %10.0f %12.0f %%\n", sources, std::string(dtype_name(dtype)).c_str(), folded,
                  100 * folded / copied);
    }
  }
  for (void* memory :
       {static_cast<void*>(received), static_cast<void*>(out), static_cast<void*>(on_device)}) {
    cuda(cudaFree(memory));
  }
}

}  // namespace troupe::gpu
