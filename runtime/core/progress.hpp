/// How far something is that takes a while, in words for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/core/clock.hpp"

namespace troupe {

/// "120 of 546 MB": a megabyte is 1,000,000 bytes. Of less than one "0 of 999 bytes".
inline std::string part_of_bytes(std::uint64_t done, std::uint64_t total) {
  const bool is_small = total < 1'000'000;
  const std::uint64_t unit = is_small ? 1 : 1'000'000;
  return std::to_string(done / unit) + " of " + std::to_string(total / unit) + (is_small ? " bytes" : " MB");
}

/// When a line about it is worth reading: after a second, and every ten seconds from then on.
class ProgressTimes {
 public:
  explicit ProgressTimes(Instant begun) : next_(begun + std::chrono::seconds(1)) {}
  bool is_due(Instant now) {
    if (now < next_) return false;
    next_ = now + std::chrono::seconds(10);
    return true;
  }

 private:
  Instant next_;
};

}  // namespace troupe
