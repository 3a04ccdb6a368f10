/// What is checked on GPUs when something goes wrong, and in CUDA graphs.

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "tests/gpu/machine.hpp"

namespace troupe::gpu {
namespace {

using namespace collectives;
using namespace std::chrono_literals;

Buffer ones(Rank& rank, std::size_t count) {
  const std::vector<float> values(count, 1);
  std::vector<std::byte> bytes(count * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return rank.put(bytes, DType::kFloat32);
}

float element(Rank& rank, const Buffer& buffer, std::size_t i) {
  float value = 0;
  std::memcpy(&value, rank.get(buffer).data() + i * sizeof value, sizeof value);
  return value;
}

/// Connects everybody with everybody, which takes until all have called it.
void connect(Rank& rank) {
  finish(*rank.group->all_reduce(ones(rank, 1000), ReduceOp::kSum));
  finish(*rank.group->barrier());
}

}  // namespace

void check_killed(Rank& rank) {
  connect(rank);
  if (rank.rank == rank.size - 1) {
    std::fflush(stdout);
    ::kill(::getpid(), SIGKILL);
  }
  const auto work = rank.group->all_reduce(ones(rank, 1 << 20), ReduceOp::kSum);
  check_throws<Error>("a rank was killed", [&] { finish(*work); });
  rank.group.reset();
  const int survivors = rank.size - 1;
  rank.group = make_nccl_group(rank.shared->options(rank.rank, survivors, rank.device, 2));
  const Buffer buffer = ones(rank, 1000);
  finish(*rank.group->all_reduce(buffer, ReduceOp::kSum));
  check(element(rank, buffer, 999) == static_cast<float>(survivors), "the survivors' sum");
}

void check_abort_with_receive(Rank& rank) {
  connect(rank);
  if (rank.rank == 0) {
    const Buffer buffer = ones(rank, 1000);
    const auto received = rank.group->recv(buffer, 1);
    check(!received->is_completed(), "nobody has sent");  // and so it is issued
    rank.group->abort("the test");
    check_throws<CollectiveAborted>("a receive that was pending", [&] { finish(*received); });
  } else {
    const auto work = rank.group->all_reduce(ones(rank, 1000), ReduceOp::kSum);
    check_throws<CollectiveAborted>("another rank aborted", [&] { finish(*work); });
  }
  cuda(cudaStreamSynchronize(rank.stream));
}

void check_mismatch(Rank& rank) {
  auto options = rank.shared->options(rank.rank, rank.size, rank.device, 2);
  options.compare_calls = true;
  const auto group = make_nccl_group(options);
  const MonotonicClock clock;
  const Instant start = clock.now();
  check_throws<CollectiveAborted>("ranks called different operations", [&] {
    finish(*group->broadcast(ones(rank, rank.rank == 0 ? 5 : 6), 0));
    finish(*group->barrier());
  });
  check(group->abort_reason().find("called different operations") != std::string::npos, "the reason");
  check(clock.now() - start < 30s, "it is found by comparing, not by the deadline");
}

void check_graph(Rank& rank) {
  connect(rank);
  const Buffer exact = ones(rank, 100'003), fast = ones(rank, 100'003);
  finish(*rank.group->all_reduce(ones(rank, 100'003), Reduction(ReduceOp::kSum, false)));  // connects
  cuda(cudaStreamSynchronize(rank.stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  // The watching thread asks for events all the while: in the global mode that could end the capture.
  cuda(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeGlobal));
  rank.group->all_reduce(exact, ReduceOp::kSum)->wait();
  rank.group->all_reduce(fast, Reduction(ReduceOp::kSum, false))->wait();
  cuda(cudaStreamEndCapture(rank.stream, &graph));
  cuda(cudaGraphInstantiate(&replay, graph, 0));
  for (int i = 0; i < 2; ++i) cuda(cudaGraphLaunch(replay, rank.stream));
  const auto expected = static_cast<float>(rank.size * rank.size);
  check(element(rank, exact, 100'002) == expected, "an exact sum, replayed");
  check(element(rank, fast, 100'002) == expected, "NCCL's sum, replayed");
  cuda(cudaGraphExecDestroy(replay));
  cuda(cudaGraphDestroy(graph));
  finish(*rank.group->barrier());
}

/// Above a piece, and at an address that no wide load may have.
void check_large(Rank& rank) {
  constexpr std::size_t kCount = (std::size_t{80} << 20) / sizeof(float) + 5;  // a piece has 64 MiB
  Buffer buffer = ones(rank, kCount);
  buffer.data = static_cast<float*>(buffer.data) + 1;
  buffer.count = kCount - 1;
  finish(*rank.group->all_reduce(buffer, ReduceOp::kSum));
  for (const std::size_t i : {std::size_t{0}, kCount / 2, kCount - 2}) {
    check(element(rank, buffer, i) == static_cast<float>(rank.size), "a sum in pieces, misaligned");
  }
}

/// Memory of the GPU after many groups is what it was after a few.
void check_rebuilds(Rank& rank) {
  constexpr std::uint32_t kRebuilds = 1000, kFirst = 50;
  constexpr std::size_t kSlack = std::size_t{64} << 20;
  std::size_t before = 0, after = 0, total = 0;
  for (std::uint32_t i = 1; i <= kRebuilds; ++i) {
    rank.group.reset();
    auto options = rank.shared->options(rank.rank, rank.size, rank.device, 1 + i);
    options.messages = false;
    rank.group = make_nccl_group(options);
    finish(*rank.group->all_reduce(ones(rank, 10), ReduceOp::kSum));
    finish(*rank.group->barrier());
    if (i == kFirst) cuda(cudaMemGetInfo(&before, &total));
  }
  cuda(cudaMemGetInfo(&after, &total));
  check(after + kSlack >= before, "1,000 rebuilds leave less memory");
}

}  // namespace troupe::gpu
