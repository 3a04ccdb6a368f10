#include "tests/gpu/machine.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kGenerations = 1001;  // for 1,000 rebuilds
constexpr std::size_t kPage = 4096;
constexpr Duration kCaseLimit = 1200s;  ///< of all ranks of a case; the group's own deadlines are far below

/// Rank 0's invitation, after the page of the abort word.
struct Invitation {
  std::atomic<int> ready;
  int length;
  char text[kPage - 8];
};
static_assert(sizeof(Invitation) == kPage);

/// The exit status of a process; empty where a signal ended it, which is ours once `until` has passed.
std::optional<int> end_of(pid_t pid, Instant until) {
  const MonotonicClock clock;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (clock.now() > until) {
      std::fprintf(stderr, "FAILED: process %d hangs and is killed\n", static_cast<int>(pid));
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      return std::nullopt;
    }
    std::this_thread::sleep_for(1ms);
  }
  if (!WIFEXITED(status)) return std::nullopt;
  return WEXITSTATUS(status);
}

int run_rank(Rank& rank, const std::function<void(Rank&)>& body) {
  try {
    cuda(cudaSetDevice(rank.device));
    cuda(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    rank.make(1);
    body(rank);
    rank.group.reset();
    cuda(cudaStreamDestroy(rank.stream));
  } catch (const std::exception& e) {
    check(false, "rank " + std::to_string(rank.rank) + " of " + std::to_string(rank.size) + ": " + e.what());
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int failures = 0;

void check(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  if (failures <= 20) std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

void cuda(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(code));
}

int count_gpus() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int count = 0;
    ::_exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  }
  const auto status = end_of(pid, MonotonicClock().now() + 60s);
  return status ? *status : 0;
}

Shared::Shared(bool shares_gpus) : shares_gpus_(shares_gpus) {
  for (std::size_t i = 0; i <= kGenerations; ++i) {
    generations_.push_back(
        std::make_shared<SharedMemory>(SharedMemory::create("gpu-test", 2 * kPage, true).value()));
  }
}

collectives::NcclGroupOptions Shared::options(int rank, int size, int device, std::uint32_t counter) const {
  collectives::NcclGroupOptions options;
  options.rank = rank;
  options.size = size;
  options.device = device;
  options.generation = {1, counter};
  options.timeout = 60s;
  options.share_gpu = shares_gpus_;
  const auto region = generations_.at(counter);
  options.board = collectives::make_word_board(region, options.generation);
  options.exchange = [rank, region](const std::string& mine) {
    auto* at = reinterpret_cast<Invitation*>(region->data() + kPage);
    if (rank == 0) {
      if (mine.size() > sizeof at->text) throw std::runtime_error("the invitation is too long");
      at->length = static_cast<int>(mine.size());
      std::memcpy(at->text, mine.data(), mine.size());
      at->ready.store(1);
    }
    for (int turn = 0; at->ready.load() == 0; ++turn) {
      if (turn > 60'000) throw std::runtime_error("rank 0 did not invite within 60 s");
      std::this_thread::sleep_for(1ms);
    }
    return std::string(at->text, static_cast<std::size_t>(at->length));
  };
  return options;
}

void Rank::make(std::uint32_t counter) {
  group = collectives::make_nccl_group(shared->options(rank, size, device, counter));
}

collectives::Buffer Rank::put(const std::vector<std::byte>& bytes, collectives::DType dtype) {
  void* data = nullptr;
  cuda(cudaMalloc(&data, std::max<std::size_t>(bytes.size(), 1)));
  cuda(cudaMemcpyAsync(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream));
  return {data,
          bytes.size() / collectives::element_size(dtype),
          dtype,
          {collectives::DeviceKind::kCuda, device},
          stream};
}

std::vector<std::byte> Rank::get(const collectives::Buffer& buffer) {
  std::vector<std::byte> bytes(buffer.count * collectives::element_size(buffer.dtype));
  cuda(cudaMemcpyAsync(bytes.data(), buffer.data, bytes.size(), cudaMemcpyDeviceToHost, stream));
  cuda(cudaStreamSynchronize(stream));
  return bytes;
}

void finish(collectives::Work& work) {
  while (!work.wait_for(1s)) {
  }
}

int run_ranks(int size, int gpus, const std::function<void(Rank&)>& body, bool killed) {
  const Shared shared(size > gpus);
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      Rank rank{.rank = r, .size = size, .device = r % gpus, .shared = &shared};
      const int code = run_rank(rank, body);
      std::fflush(stdout);
      ::_exit(code);
    }
    children.push_back(pid);
  }
  int failed = 0;
  const Instant until = MonotonicClock().now() + kCaseLimit;
  for (const pid_t child : children) {
    const bool to_be_killed = killed && child == children.back();
    if (end_of(child, until) != (to_be_killed ? std::nullopt : std::optional(0))) ++failed;
  }
  return failed;
}

}  // namespace troupe::gpu
