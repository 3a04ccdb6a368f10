#include "runtime/node/limits.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace troupe::node {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  std::uint64_t value = 0;
  const char* end = text + std::strlen(text);
  return std::from_chars(text, end, value).ptr == end && value > 0 ? value : otherwise;
}

}  // namespace

Limits limits_of_this_machine() {
  Limits limits;
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) {
    const auto memory = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
    limits.region_bytes = memory / 2;
    limits.regions_bytes = memory / 4 * 3;
  }
  limits.region_bytes = from_environment("TROUPE_REGION_BYTES", limits.region_bytes);
  limits.regions_bytes = from_environment("TROUPE_REGIONS_BYTES", limits.regions_bytes);
  return limits;
}

}  // namespace troupe::node
