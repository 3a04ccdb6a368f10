#include "runtime/node/limits.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "runtime/core/control_groups.hpp"

namespace troupe::node {
namespace {

/// Sets `bytes` if the variable is set.
Result<void> read_environment(const char* name, std::uint64_t& bytes) {
  const char* text = std::getenv(name);
  if (text == nullptr) return {};
  const char* end = text + std::strlen(text);
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value == 0) {
    return ErrorInfo{ErrorCode::kBadConfig, std::string("cannot use ") + name + "=" + text,
                     "it bounds shared memory and is a number of bytes, 1 or more",
                     "write a whole number, as in " + std::string(name) + "=4294967296, or unset it"};
  }
  bytes = value;
  return {};
}

}  // namespace

Result<Limits> limits_of_this_machine() {
  Limits limits;
  if (const auto memory = usable_memory()) {
    limits.region_bytes = *memory / 2;
    limits.regions_bytes = *memory / 4 * 3;
  }
  if (auto read = read_environment("TROUPE_REGION_BYTES", limits.region_bytes); !read) return read.error();
  if (auto read = read_environment("TROUPE_REGIONS_BYTES", limits.regions_bytes); !read) return read.error();
  return limits;
}

}  // namespace troupe::node
