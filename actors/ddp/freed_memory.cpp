#include "actors/ddp/freed_memory.hpp"

#include <malloc.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace troupe::train {
namespace {

/// Larger pieces are mapped and unmapped, each by itself: glibc's limit for a threshold.
constexpr int kLargestKept_bytes = 32 << 20;
/// Also what a thread's heap keeps; glibc's heaps are no larger.
constexpr int kTopPad_bytes = 64 << 20;

bool set_by_environment() {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr && std::strstr(tunables, "glibc.malloc.") != nullptr;
}

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  if (set_by_environment()) return;
  ::mallopt(M_MMAP_THRESHOLD, kLargestKept_bytes);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_TOP_PAD, kTopPad_bytes);
#endif
}

void give_back_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace troupe::train
