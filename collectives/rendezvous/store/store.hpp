/// A small key-value store at which the ranks of a job meet: addresses, unique ids and the like go through
/// it, never the data of a collective.
///
/// Keys have 1 to 256 bytes, values at most 64 KiB. Thread-safe. Every call throws Unavailable once the store
/// is gone (the rank that serves it, 0 at first, has left or died).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/core/clock.hpp"

namespace troupe::collectives {

inline constexpr std::size_t kMaxStoreKeyBytes = 256;
inline constexpr std::size_t kMaxStoreValueBytes = 64 * 1024;
inline constexpr std::size_t kMaxStoreBytes = std::size_t{256} << 20;  ///< keys and values together

class Store {
 public:
  Store() = default;
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual void set(const std::string& key, std::string_view value) = 0;
  /// The value, waiting up to `wait` for somebody to set it; empty when nobody did.
  virtual std::optional<std::string> find(const std::string& key, Duration wait = Duration::zero()) = 0;
  /// Erases every key that begins with `prefix`, which is not empty; returns how many there were. Nobody is
  /// told: who waits for such a key goes on waiting.
  virtual std::int64_t erase(const std::string& prefix) = 0;

  /// As find; throws Timeout, which names the key.
  std::string get(const std::string& key, Duration limit);
};

}  // namespace troupe::collectives
