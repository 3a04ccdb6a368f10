#include "runtime/node/regions.hpp"

#include "runtime/core/abort_word.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxRegions = 4096;
constexpr std::size_t kMaxKeyBytes = 256;

ErrorInfo refuse(const std::string& key, std::string why, std::string todo) {
  return {ErrorCode::kLimit, "no shared memory '" + key.substr(0, kMaxKeyBytes) + "'", std::move(why),
          std::move(todo)};
}

}  // namespace

Result<int> Regions::open(const std::string& key, std::size_t bytes, bool abortable, ProcessId process,
                          const std::string& label) {
  auto at = regions_.find(key);
  if (at == regions_.end()) {
    if (key.empty() || key.size() > kMaxKeyBytes)
      return refuse(key, "its name is empty or too long", "use up to 256 bytes");
    if (regions_.size() >= kMaxRegions)
      return refuse(key, "the node has 4096 regions already", "drop regions");
    if (abortable && bytes < kAbortWordBytes)
      return refuse(key, "it has no room for an abort word", "ask for more");
    auto memory = SharedMemory::create("troupe:" + key, bytes, true);
    if (!memory) return memory.error();
    at = regions_.emplace(key, Region{*std::move(memory), abortable, {}}).first;
  } else if (at->second.memory.size() < bytes || at->second.abortable != abortable) {
    return refuse(key, "it is there with another size or kind", "every member must ask for the same");
  }
  at->second.holders[process] = label;
  return at->second.memory.fd();
}

void Regions::process_died(ProcessId process, const std::string& reason) {
  for (auto at = regions_.begin(); at != regions_.end();) {
    auto& region = at->second;
    const auto holder = region.holders.find(process);
    if (holder != region.holders.end()) {
      if (region.abortable)
        abort_region(region.memory.data(), holder->second + " died: " + reason, AbortKind::kMemberDied);
      region.holders.erase(holder);
    }
    at = region.holders.empty() ? regions_.erase(at) : std::next(at);
  }
}

}  // namespace troupe
