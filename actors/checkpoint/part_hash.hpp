/// XXH3-128: what says whether a part of a state is what it was, at the speed of memory. It finds damage and
/// difference, and protects against nobody: SHA-256 is for what leaves the job.
#pragma once

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

}  // namespace troupe::checkpoint
