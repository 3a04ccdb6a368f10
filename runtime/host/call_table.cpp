#include "runtime/host/call_table.hpp"

#include <algorithm>

namespace troupe {

std::uint64_t CallTable::add(PendingCall call) {
  const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  Shard& at = shard(number);
  const std::lock_guard lock(at.mutex);
  at.calls.emplace(number, std::move(call));
  return number;
}

std::optional<PendingCall> CallTable::take(std::uint64_t number, ProcessAddress from) {
  Shard& in = shard(number);
  const std::lock_guard lock(in.mutex);
  const auto at = in.calls.find(number);
  if (at == in.calls.end() || at->second.to.home() != from) return std::nullopt;
  PendingCall call = std::move(at->second);
  in.calls.erase(at);
  return call;
}

std::vector<PendingCall> CallTable::take_where(const std::function<bool(const PendingCall&)>& which) {
  std::vector<std::pair<std::uint64_t, PendingCall>> taken;
  for (Shard& in : shards_) {
    const std::lock_guard lock(in.mutex);
    for (auto at = in.calls.begin(); at != in.calls.end();) {
      if (!which(at->second)) {
        ++at;
        continue;
      }
      taken.emplace_back(at->first, std::move(at->second));
      at = in.calls.erase(at);
    }
  }
  std::sort(taken.begin(), taken.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PendingCall> calls;
  calls.reserve(taken.size());
  for (auto& [number, call] : taken) calls.push_back(std::move(call));
  return calls;
}

std::size_t CallTable::size() const {
  std::size_t all = 0;
  for (const Shard& in : shards_) {
    const std::lock_guard lock(in.mutex);
    all += in.calls.size();
  }
  return all;
}

}  // namespace troupe
