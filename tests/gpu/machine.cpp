#include "tests/gpu/machine.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#include "tests/collectives/word_group.hpp"

namespace troupe::gpu {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kGenerations = 1001;  // for 1,000 rebuilds
constexpr std::size_t kPage = 4096;
constexpr Duration kCaseLimit = 1200s;  ///< of all ranks of a case; the group's own deadlines are far below

constexpr int kMaxRanks = 16;

/// A text of one rank for the others.
template <std::size_t kBytes>
struct Note {
  std::atomic<int> ready;
  int length;
  char text[kBytes - 8];

  void write(const std::string& from) {
    if (from.size() > sizeof text) throw std::runtime_error("a note is too long");
    length = static_cast<int>(from.size());
    std::memcpy(text, from.data(), from.size());
    ready.store(1);
  }
  std::string read() const {
    for (int turn = 0; ready.load() == 0; ++turn) {
      if (turn > 60'000) throw std::runtime_error("a rank said nothing within 60 s");
      std::this_thread::sleep_for(1ms);
    }
    return {text, static_cast<std::size_t>(length)};
  }
};
/// The exchange of a generation, in the page after that of the abort word.
struct Exchange {
  Note<128> said[kMaxRanks];
  Note<kPage - 128 * kMaxRanks> answer;
};
static_assert(sizeof(Exchange) == kPage);

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

Shared::Shared(bool shares_gpus) : shares_gpus_(shares_gpus), folder_("/tmp/troupe-gpu-test-XXXXXX") {
  if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no folder in /tmp");
  url_ = "file://" + folder_ + "/meeting";
  for (std::size_t i = 0; i <= kGenerations; ++i) {
    generations_.push_back(
        std::make_shared<SharedMemory>(SharedMemory::create("gpu-test", 2 * kPage, true).value()));
  }
}

Shared::~Shared() {
  std::filesystem::remove_all(folder_);
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
  options.host = std::make_shared<collectives::testing::WordGroup>(rank, size, options.generation, region);
  options.exchange = [rank, size, region](const std::string& mine,
                                          const collectives::NcclGroupOptions::Answer& answer) {
    if (size > kMaxRanks) throw std::runtime_error("this test has room for 16 ranks");
    auto* at = reinterpret_cast<Exchange*>(region->data() + kPage);
    at->said[rank].write(mine);
    if (rank == 0) {
      std::vector<std::string> said;
      for (int r = 0; r < size; ++r) said.push_back(at->said[r].read());
      at->answer.write(answer(said));
    }
    return at->answer.read();
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
