#include "runtime/node/region_memory.hpp"

#include <fcntl.h>

#include <cerrno>

#include "runtime/core/abort_word.hpp"
#include "runtime/core/memory_tag.hpp"

namespace troupe::node {
namespace {

Result<UniqueFd> own_descriptor(const SharedMemory& memory) {
  UniqueFd copy(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return io_error("no shared memory", errno, "raise ulimit -n");
  return copy;
}

}  // namespace

Result<void> RegionMemory::make(const MakeRegion& region) {
  if (auto kept = regions_.extract(region.instead_of)) {
    const auto fd = own_descriptor(kept.mapped());
    if (fd && take_memory(*fd)) {
      regions_.insert_or_assign(region.region, std::move(kept.mapped()));
      return {};
    }
  }
  auto memory = SharedMemory::create("troupe:" + region.name.substr(0, 200), region.bytes, false, true);
  if (!memory) return memory.error();
  regions_.insert_or_assign(region.region, *std::move(memory));
  return {};
}

void RegionMemory::abort(const AbortRegions& regions) {
  for (const RegionId region : regions.regions) {
    const auto at = regions_.find(region);
    if (at != regions_.end()) abort_region(at->second.data(), regions.reason, AbortKind::kMemberDied);
  }
}

Result<UniqueFd> RegionMemory::descriptor(RegionId region) const {
  const auto at = regions_.find(region);
  if (at == regions_.end())
    return ErrorInfo{ErrorCode::kUnavailable, "no shared memory", "it was dropped", "ask again"};
  return own_descriptor(at->second);
}

}  // namespace troupe::node
