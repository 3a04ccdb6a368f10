#include "tests/fuzz/allocations.hpp"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

// Several threads may allocate (ZeroMQ has some); marks are set by one.
std::atomic<std::size_t> held{0};
std::atomic<std::size_t> most{0};
std::atomic<bool> counting{false};
std::size_t held_at_mark = 0;

}  // namespace

namespace troupe::fuzz {

void mark_allocations() {
  held_at_mark = held.load();
  most = held_at_mark;
  counting = true;
}
void stop_counting() {
  counting = false;
}
std::size_t most_allocated() {
  return most.load() - held_at_mark;
}

}  // namespace troupe::fuzz

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

void* allocate(std::size_t bytes, std::size_t alignment) {
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes)
                     : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t now = held += ::malloc_usable_size(memory);
  if (counting.load() && now > most.load()) most = now;
  return memory;
}
void release(void* memory) {
  if (memory == nullptr) return;
  held -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

#endif
