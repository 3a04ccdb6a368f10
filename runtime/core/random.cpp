#include "runtime/core/random.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "runtime/core/assert.hpp"

namespace troupe {
namespace {

std::uint64_t splitmix_finish(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

}  // namespace

void Random::fill(std::span<std::byte> out) {
  for (std::size_t at = 0; at < out.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = next();
    std::memcpy(out.data() + at, &word, std::min(sizeof word, out.size() - at));
  }
}

std::uint64_t Random::below(std::uint64_t bound) {
  TROUPE_ASSERT(bound > 0, "below(0) has no value to give");
  const std::uint64_t limit =
      bound * (UINT64_MAX / bound);  // reject the tail so that every value is as likely
  std::uint64_t word = next();
  while (word >= limit) word = next();
  return word % bound;
}

std::uint64_t SystemRandom::next() {
  std::uint64_t word = 0;
  const ssize_t got = ::getrandom(&word, sizeof word, 0);
  TROUPE_ASSERT(got == static_cast<ssize_t>(sizeof word), "getrandom gives eight bytes at once");
  return word;
}

std::uint64_t SeededRandom::next() {
  return splitmix_finish(state_ += kGolden);
}

std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  return splitmix_finish(seed + kGolden * (splitmix_finish(value + kGolden) | 1));
}

}  // namespace troupe
