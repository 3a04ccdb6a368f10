#include "actors/ddp/freed_memory.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

namespace troupe::train {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::int64_t page_faults() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_minflt;
}

/// Takes, writes and frees tensors as steps do: 24 MiB a step, in pieces of 64 KiB to 4 MiB.
void run_steps(int steps) {
  for (int step = 0; step < steps; ++step) {
    std::vector<void*> activations;
    for (const std::size_t bytes : {kMiB / 16, kMiB, 4 * kMiB, 2 * kMiB, kMiB / 4, 4 * kMiB, 4 * kMiB,
                                    3 * kMiB, 2 * kMiB, 3 * kMiB, kMiB / 2}) {
      void* piece = nullptr;
      if (::posix_memalign(&piece, 64, bytes) != 0) std::abort();
      std::memset(piece, 1, bytes);
      activations.push_back(piece);
    }
    for (void* piece : activations) std::free(piece);
  }
}

/// Of 50 steps, once a few have run, in a thread: trainers compute in one, whose heap is not the process's.
std::int64_t faults_of_steps() {
  std::int64_t faults = 0;
  std::thread([&] {
    run_steps(3);
    const std::int64_t before = page_faults();
    run_steps(50);
    faults = page_faults() - before;
  }).join();
  return faults;
}

std::int64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident;
}

/// In a process of its own: the allocator of this one stays as it is.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

// An epoch of the MNIST example took 3.4 million page faults, since activations went to the kernel and came
// back in every step.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which have allocators of their own
TEST_CASE("a process that keeps freed memory takes no page faults for a step like the one before") {
  const std::int64_t pages_of_a_step = static_cast<std::int64_t>(24 * kMiB) / ::getpagesize();
  CHECK(in_child([&] {
          keep_freed_memory();
          // Less than one step's, over 50. The least of three: others may have the kernel take pages back.
          const std::int64_t faults = std::min({faults_of_steps(), faults_of_steps(), faults_of_steps()});
          return static_cast<int>(std::min<std::int64_t>(faults / pages_of_a_step, 100));
        }) == 0);
}

TEST_CASE("memory that was kept goes back when it is told to") {
  CHECK(in_child([] {
          keep_freed_memory();
          const std::int64_t before = resident_pages();
          run_steps(3);
          const std::int64_t kept = resident_pages();
          give_back_freed_memory();
          const std::int64_t page = ::getpagesize();
          const auto mib = [&](std::int64_t pages) { return pages * page / static_cast<std::int64_t>(kMiB); };
          if (mib(kept - before) < 12) return 1;
          return mib(resident_pages() - before) < 6 ? 0 : 2;
        }) == 0);
}
#endif

TEST_CASE("an allocator that the environment sets stays as it is set") {
  CHECK(in_child([] {
          ::setenv("MALLOC_TOP_PAD_", "4096", 1);
          keep_freed_memory();
          // With a padding of 64 MiB the next growth of the heap would be as large.
          char* const end = static_cast<char*>(::sbrk(0));
          std::vector<void*> pieces;
          while (::sbrk(0) == end && pieces.size() < 10'000) pieces.push_back(std::malloc(4096));
          return static_cast<char*>(::sbrk(0)) - end < static_cast<std::ptrdiff_t>(8 * kMiB) ? 0 : 1;
        }) == 0);
}

}  // namespace troupe::train
