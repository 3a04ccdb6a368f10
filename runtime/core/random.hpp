/// Chance, as one of the four seams. Identities and nonces come from SystemRandom; simulations use
/// SeededRandom. (What a job draws for its data and masks is not chance but a function of its seed: see
/// actors/data.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe {

class Random {
 public:
  virtual ~Random() = default;
  /// Uniform over all 64-bit values.
  virtual std::uint64_t next() = 0;
  void fill(std::span<std::byte> out);
  /// Uniform in [0, bound). REQUIRES: bound > 0.
  std::uint64_t below(std::uint64_t bound);
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
};

/// getrandom(2). Thread-safe.
class SystemRandom final : public Random {
 public:
  std::uint64_t next() override;
};

/// splitmix64 (Steele, Lea, Flood 2014): the same seed gives the same numbers everywhere.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() override;

 private:
  std::uint64_t state_;
};

/// One splitmix64 step as a mixing function, to derive independent streams: mix(mix(seed, a), b).
std::uint64_t mix(std::uint64_t seed, std::uint64_t value);

}  // namespace troupe
