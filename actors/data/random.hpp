/// Chance in a dataset: a function of the job's seed, so that every loader draws the same.
#pragma once

#include <cstdint>

#include "runtime/core/random.hpp"

namespace troupe::data {

/// Which stream of numbers a sample draws from.
struct RandomKey {
  std::uint64_t seed = 0;   ///< of the job and the split
  std::uint64_t epoch = 0;  ///< counted from 0
};

/// The numbers of one sample in one epoch: `uniform()` in [0, 1), `below(n)`, `next()` for 64 bits. Keyed by
/// (seed, epoch, index): a sample that is read again, here or in another loader, is the same.
class Random final : public troupe::Random {
 public:
  Random(RandomKey key, std::int64_t index)
      : stream_(mix(mix(mix(0x73616d706c65, key.seed), key.epoch), static_cast<std::uint64_t>(index))) {}
  std::uint64_t next() override { return stream_.next(); }

 private:
  SeededRandom stream_;
};

}  // namespace troupe::data
