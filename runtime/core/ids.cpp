#include "runtime/core/ids.hpp"

#include <cstdio>

namespace troupe {

std::string to_hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string to_string(Generation generation) {
  return std::to_string(generation.incarnation) + "." + std::to_string(generation.counter);
}

}  // namespace troupe
