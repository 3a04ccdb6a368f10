/// Small changes to bytes, as fuzzers make them.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/core/random.hpp"

namespace troupe::fuzz {

using Input = std::vector<std::byte>;

/// One to four changes: bits, bytes, lengths, parts cut, doubled, or taken from `other`.
Input mutate(Input input, const Input& other, Random& random);

/// No mutated input is longer.
inline constexpr std::size_t kMaxInputBytes = 4096;

}  // namespace troupe::fuzz
