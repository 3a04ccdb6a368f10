#include "collectives/native/data_space.hpp"

#include <algorithm>
#include <iterator>

#include "runtime/core/assert.hpp"

namespace troupe::collectives {

std::optional<DataSpace::Run> DataSpace::take(std::size_t bytes) {
  const auto at =
      std::find_if(free_.begin(), free_.end(), [&](const auto& run) { return run.second >= bytes; });
  if (at == free_.end()) return std::nullopt;
  const auto [offset, had] = *at;
  free_.erase(at);
  if (had > bytes) free_[offset + bytes] = had - bytes;
  taken_[offset] = bytes;
  const Run made{offset, offset < used_};
  used_ = std::max(used_, offset + bytes);
  return made;
}

std::size_t DataSpace::bytes_at(std::size_t offset) const {
  const auto taken = taken_.find(offset);
  return taken == taken_.end() ? 0 : taken->second;
}

void DataSpace::give(std::size_t offset) {
  const auto taken = taken_.find(offset);
  TROUPE_ASSERT(taken != taken_.end(), "only what was taken is given back");
  auto run = free_.emplace(offset, taken->second).first;
  taken_.erase(taken);
  if (const auto next = std::next(run); next != free_.end() && run->first + run->second == next->first) {
    run->second += next->second;
    free_.erase(next);
  }
  if (run != free_.begin()) {
    const auto before = std::prev(run);
    if (before->first + before->second == run->first) {
      before->second += run->second;
      free_.erase(run);
    }
  }
}

std::size_t DataSpace::left() const {
  std::size_t all = 0;
  for (const auto& [offset, bytes] : free_) all += bytes;
  return all;
}

std::size_t DataSpace::largest() const {
  std::size_t most = 0;
  for (const auto& [offset, bytes] : free_) most = std::max(most, bytes);
  return most;
}

}  // namespace troupe::collectives
