#include "runtime/core/storage.hpp"

#include <algorithm>

namespace troupe {

StoreBatch& StoreBatch::put(std::string key, std::span<const std::byte> value) {
  changes_.push_back({std::move(key), Bytes(value.begin(), value.end())});
  return *this;
}

StoreBatch& StoreBatch::erase(std::string key) {
  changes_.push_back({std::move(key), std::nullopt});
  return *this;
}

Result<void> check_bounds(const StoreBatch& batch) {
  for (const StoreBatch::Change& change : batch.changes()) {
    if (change.key.empty() || change.key.size() > kMaxStoreKeyBytes) {
      return ErrorInfo{ErrorCode::kLimit, "cannot store an entry",
                       "its key has " + std::to_string(change.key.size()) + " bytes",
                       "keys have 1 to " + std::to_string(kMaxStoreKeyBytes) + " bytes"};
    }
    if (change.value && change.value->size() > kMaxStoreValueBytes) {
      return ErrorInfo{ErrorCode::kLimit, "cannot store '" + change.key + "'",
                       "its value has " + std::to_string(change.value->size()) + " bytes",
                       "values have at most " + std::to_string(kMaxStoreValueBytes)};
    }
  }
  return {};
}

Result<void> Storage::put(std::string key, std::span<const std::byte> value) {
  return apply(StoreBatch().put(std::move(key), value));
}

Result<void> Storage::erase(std::string key) {
  return apply(StoreBatch().erase(std::move(key)));
}

namespace {

ErrorInfo store_is_down() {
  return {ErrorCode::kIo, "the store does not answer", "its process or machine crashed (simulated)",
          "reopen it"};
}

}  // namespace

void MemoryStorage::change(Map& map, const StoreBatch& batch) {
  for (const StoreBatch::Change& change : batch.changes()) {
    if (change.value) {
      map.insert_or_assign(change.key, *change.value);
    } else {
      map.erase(change.key);
    }
  }
}

Result<void> MemoryStorage::apply(const StoreBatch& batch) {
  if (crashed_) return store_is_down();
  if (auto bounded = check_bounds(batch); !bounded) return bounded;
  ++writes_;
  const bool fails = writes_ == fail_at_;
  if (fails && fault_ == Fault::kRefuse) {
    return ErrorInfo{ErrorCode::kIo, "cannot write to the store", "no space left on device (simulated)",
                     "free space"};
  }
  if (fails && fault_ == Fault::kCrashBefore) {
    crash();
    return store_is_down();
  }
  change(current_, batch);
  if (!holding_) change(durable_, batch);
  if (fails) {
    crash();
    return store_is_down();
  }
  return {};
}

Result<std::optional<Bytes>> MemoryStorage::get(std::string_view key) {
  if (crashed_) return store_is_down();
  const auto at = current_.find(key);
  if (at == current_.end()) return std::optional<Bytes>();
  return std::optional<Bytes>(at->second);
}

Result<std::vector<StoreEntry>> MemoryStorage::scan(std::string_view prefix) {
  if (crashed_) return store_is_down();
  std::vector<StoreEntry> found;
  for (auto at = current_.lower_bound(prefix); at != current_.end() && at->first.starts_with(prefix); ++at) {
    found.push_back({at->first, at->second});
  }
  return found;
}

void MemoryStorage::fail_write(std::uint64_t nth, Fault fault) {
  fail_at_ = writes_ + nth;
  fault_ = fault;
}

void MemoryStorage::hold_back_syncs(bool hold) {
  holding_ = hold;
  if (!hold) durable_ = current_;
}

void MemoryStorage::crash() {
  crashed_ = true;
  current_ = durable_;
}

void MemoryStorage::reopen() {
  crashed_ = false;
}

}  // namespace troupe
