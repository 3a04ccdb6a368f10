/// Bytes that must not be seen. A Secret has no conversion to text, no ordering and no stream operator, so it
/// cannot reach a log, argv or a status page by accident; it is zeroed when it dies and compared in constant
/// time.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace troupe {

/// Overwrites `bytes` in a way that the compiler may not leave out.
void wipe(std::span<std::byte> bytes) noexcept;
/// Whether both hold the same bytes, in a time that depends on the lengths alone.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;
/// Fills `out` from the system's cryptographic source. Thread-safe.
void fill_random(std::span<std::byte> out);

/// `Size` secret bytes. Copies are allowed (each one wipes itself); not thread-safe to write.
template <std::size_t Size>
class Secret {
 public:
  static constexpr std::size_t kSize = Size;

  /// All zero.
  Secret() = default;
  explicit Secret(std::span<const std::byte, Size> bytes) {
    for (std::size_t i = 0; i < Size; ++i) bytes_[i] = bytes[i];
  }
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret() { wipe(bytes_); }

  /// Fresh random bytes.
  static Secret generate() {
    Secret secret;
    fill_random(secret.bytes_);
    return secret;
  }

  /// The bytes themselves, for the library call that needs them. Never print them.
  std::span<const std::byte, Size> reveal() const noexcept { return bytes_; }
  std::span<std::byte, Size> reveal_for_writing() noexcept { return bytes_; }

  bool operator==(const Secret& other) const noexcept { return equal_in_constant_time(bytes_, other.bytes_); }

 private:
  std::array<std::byte, Size> bytes_{};
};

/// Proves to both ends of the data plane that they belong to the same job.
using JobKey = Secret<32>;

}  // namespace troupe
