/// Durable state, as one of the four seams: a small ordered map that survives a crash of its process and of
/// its machine. The head's cluster state lives in one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe {

using Bytes = std::vector<std::byte>;

/// Changes that happen together or not at all, in the order they were added.
class StoreBatch {
 public:
  StoreBatch& put(std::string key, std::span<const std::byte> value);
  StoreBatch& erase(std::string key);

  struct Change {
    std::string key;
    std::optional<Bytes> value;  ///< none: erase
  };
  const std::vector<Change>& changes() const noexcept { return changes_; }
  bool empty() const noexcept { return changes_.empty(); }

 private:
  std::vector<Change> changes_;
};

/// Bounds on what a store takes; beyond them a write is refused (kLimit).
inline constexpr std::size_t kMaxStoreKeyBytes = 1024;
inline constexpr std::size_t kMaxStoreValueBytes = std::size_t{16} << 20;

/// The check of those bounds, for those who implement Storage.
Result<void> check_bounds(const StoreBatch& batch);

struct StoreEntry {
  std::string key;
  Bytes value;
  bool operator==(const StoreEntry&) const = default;
};

/// One caller at a time (not thread-safe). Calls block for the disk: never make them on a CAF worker thread.
class Storage {
 public:
  virtual ~Storage() = default;

  /// When it returns success, every change is on the disk; when it fails, none is, unless the error says that
  /// the outcome is unknown (the process died in between). Errors: kIo, kLimit.
  virtual Result<void> apply(const StoreBatch& batch) = 0;
  virtual Result<std::optional<Bytes>> get(std::string_view key) = 0;
  /// Every entry whose key starts with `prefix`, in order of the keys' bytes.
  virtual Result<std::vector<StoreEntry>> scan(std::string_view prefix) = 0;

  Result<void> put(std::string key, std::span<const std::byte> value);
  /// Succeeds when the key does not exist.
  Result<void> erase(std::string key);
};

/// A store in memory, for simulations and tests: it fails and crashes when told to.
class MemoryStorage final : public Storage {
 public:
  Result<void> apply(const StoreBatch& batch) override;
  Result<std::optional<Bytes>> get(std::string_view key) override;
  Result<std::vector<StoreEntry>> scan(std::string_view prefix) override;

  /// How a write that was told to fail does so.
  enum class Fault {
    kRefuse,       ///< an error, and nothing was written (disk full)
    kCrashBefore,  ///< the process dies before the write: an error, and so is every call until reopen()
    kCrashAfter,   ///< as above, but the write reached the disk
  };
  /// The `nth` apply from now on (1 is the next) fails so. One fault at a time.
  void fail_write(std::uint64_t nth, Fault fault);
  /// From now on acknowledged writes stay in a cache, as on a disk that lies about its syncs.
  void hold_back_syncs(bool hold);
  /// The machine loses power: what was held back is gone. Calls fail until reopen().
  void crash();
  void reopen();
  /// Number of apply calls so far, to aim fail_write.
  std::uint64_t writes() const noexcept { return writes_; }

 private:
  using Map = std::map<std::string, Bytes, std::less<>>;

  static void change(Map& map, const StoreBatch& batch);

  Map current_;
  Map durable_;  // differs from current_ only while syncs are held back
  bool holding_ = false;
  bool crashed_ = false;
  std::uint64_t writes_ = 0;
  std::uint64_t fail_at_ = 0;  // 0: never
  Fault fault_ = Fault::kRefuse;
};

}  // namespace troupe
