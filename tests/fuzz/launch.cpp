// What a rank of `troupe run` leaves for people.
#include <algorithm>

#include "scheduler/launch/error_file.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

bool error_file(std::span<const std::byte> bytes) {
  const auto message = launch::parse_error_file(text_of(bytes));
  if (!message) return false;
  check(message->size() <= 1000, "a message is short");
  check(std::none_of(message->begin(), message->end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }),
        "a message is a line without control characters");
  return true;
}

}  // namespace troupe::fuzz
