// Apart from the tests, so that the compiler does not see malloc behind new. Every way to allocate is
// replaced, as a mixture would free with one what another took.
#include "tests/runtime/wire/allocations.hpp"

#include <cstdlib>
#include <new>

std::size_t bytes_asked_for = 0;

void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  bytes_asked_for += size;
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
