#include "tests/fuzz/mutate.hpp"

#include <algorithm>
#include <cstdint>

namespace troupe::fuzz {
namespace {

/// Numbers at which decoders err: signs, powers of two and their neighbours.
std::uint64_t edge(Random& random) {
  const std::uint64_t power = random.below(64) == 0 ? 0 : std::uint64_t{1} << random.below(64);
  switch (random.below(4)) {
    case 0:
      return power;
    case 1:
      return power - 1;
    case 2:
      return power + 1;
    default:
      return ~power;
  }
}

std::size_t place(const Input& input, Random& random) {
  return random.below(input.size() + 1);
}

void put_number(Input& input, Random& random) {
  const std::size_t size = std::size_t{1} << random.below(4);  // 1, 2, 4, 8
  if (input.size() < size) return;
  const std::size_t at = random.below(input.size() - size + 1);
  const std::uint64_t number = random.below(3) == 0 ? input.size() + random.below(5) - 2 : edge(random);
  const bool big_endian = random.below(2) == 0;
  for (std::size_t i = 0; i < size; ++i) {
    input[at + (big_endian ? size - 1 - i : i)] = static_cast<std::byte>(number >> (8 * i));
  }
}

void change_once(Input& input, const Input& other, Random& random) {
  const auto part = [&random](const Input& of) {  // at most 64 bytes of it
    const std::size_t from = place(of, random);
    const std::size_t size = std::min<std::size_t>(random.below(64) + 1, of.size() - from);
    return Input(of.begin() + static_cast<std::ptrdiff_t>(from),
                 of.begin() + static_cast<std::ptrdiff_t>(from + size));
  };
  const auto at = input.begin() + static_cast<std::ptrdiff_t>(place(input, random));
  switch (random.below(8)) {
    case 0:
      if (at != input.end()) *at ^= std::byte{1} << random.below(8);
      return;
    case 1:
      if (at != input.end()) *at = static_cast<std::byte>(random.below(256));
      return;
    case 2:
      return put_number(input, random);
    case 3:
      input.erase(at, input.end());
      return;
    case 4:
      input.erase(at, at + std::min<std::ptrdiff_t>(input.end() - at,
                                                    static_cast<std::ptrdiff_t>(random.below(16) + 1)));
      return;
    case 5:
      input.insert(at, random.below(16) + 1, static_cast<std::byte>(random.below(256)));
      return;
    case 6: {
      const Input copy = part(input);
      input.insert(at, copy.begin(), copy.end());
      return;
    }
    default: {
      const Input copy = part(other);
      const auto overlap =
          std::min<std::ptrdiff_t>(input.end() - at, static_cast<std::ptrdiff_t>(copy.size()));
      if (random.below(2) == 0)
        std::copy_n(copy.begin(), overlap, at);
      else
        input.insert(at, copy.begin(), copy.end());
      return;
    }
  }
}

}  // namespace

Input mutate(Input input, const Input& other, Random& random) {
  for (std::uint64_t changes = random.below(4) + 1; changes > 0; --changes) change_once(input, other, random);
  if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
  return input;
}

}  // namespace troupe::fuzz
