/// XXH3-128: what says whether a part of a state is what it was, at the speed of memory. It finds damage and
/// difference, and protects against nobody: SHA-256 is for what leaves the job.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/checkpoint/safetensors.hpp"

namespace troupe::checkpoint {

struct Digest128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const Digest128&) const = default;
};

/// A digest in the making, for a part that streams by. Not thread-safe.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;
  /// Begins anew.
  void reset();
  void update(std::span<const std::byte> bytes);
  /// Of all since the last reset.
  Digest128 digest() const;

 private:
  struct State;  // xxHash's stays out of this header
  struct Free {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Free> state_;
};

/// A part and its hash. The hash is of the bytes alone: name, type and shape are compared as they are.
struct PartHash {
  std::string name;
  Digest128 digest;
  bool operator==(const PartHash&) const = default;
};

/// Where two walks over the same state differ: "'fc.weight' differs", "'norm.mean' is not in both". Empty if
/// they do not.
inline std::string first_difference(std::span<const PartHash> a, std::span<const PartHash> b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size() || a[i].name != b[i].name)
      return "'" + (i < a.size() ? a : b)[i].name + "' is not in both";
    if (a[i].digest != b[i].digest) return "'" + a[i].name + "' differs";
  }
  return {};
}

}  // namespace troupe::checkpoint
