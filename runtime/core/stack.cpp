#include "runtime/core/stack.hpp"

#include <pthread.h>

#include <cstdint>

namespace troupe {
namespace {

struct Stack {
  std::uintptr_t lowest = 0;
  std::size_t bytes = 0;
};

Stack own_stack() {
  Stack stack;
  pthread_attr_t attributes;
  if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return stack;
  void* lowest = nullptr;
  if (::pthread_attr_getstack(&attributes, &lowest, &stack.bytes) == 0)
    stack.lowest = reinterpret_cast<std::uintptr_t>(lowest);
  ::pthread_attr_destroy(&attributes);
  return stack;
}

}  // namespace

StackRoom stack_room() {
  thread_local const Stack stack = own_stack();
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  if (stack.lowest == 0 || here < stack.lowest) return {};
  return {stack.bytes, here - stack.lowest};
}

}  // namespace troupe
