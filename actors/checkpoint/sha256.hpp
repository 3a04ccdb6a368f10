/// SHA-256, as everything durable is named and checked by.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace troupe::checkpoint {

/// A digest in the making. Not thread-safe.
class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();
  void update(std::span<const std::byte> bytes);
  /// 64 lower-case hexadecimal digits. REQUIRES: called once, after the last update.
  std::string finish();

 private:
  struct Context;  // OpenSSL's stays out of this header
  struct Free {
    void operator()(Context* context) const;
  };
  std::unique_ptr<Context, Free> context_;  ///< null after finish()
};

/// The digest of one piece of memory.
std::string sha256_hex(std::span<const std::byte> bytes);

/// 64 lower-case hexadecimal digits?
bool is_sha256_hex(const std::string& text);

}  // namespace troupe::checkpoint
