// Apart from the tests, so that the compiler does not see malloc behind new.
#include "tests/runtime/wire/allocations.hpp"

#include <cstdlib>
#include <new>

std::size_t bytes_asked_for = 0;

void* operator new(std::size_t size) {
  bytes_asked_for += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
