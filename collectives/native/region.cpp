#include "collectives/native/region.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <limits>

#include "runtime/core/futex.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

constexpr std::uint64_t kLayoutVersion = 1;
constexpr std::size_t kGeometryStampAt = kAbortWordBytes;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::uint64_t geometry_stamp(const Geometry& geometry) {
  std::uint64_t hash = mix(kLayoutVersion, static_cast<std::uint64_t>(geometry.world_size));
  hash = mix(hash, geometry.data_bytes);
  hash = mix(mix(hash, kChunkBytes), kStages);
  for (int rank : geometry.local_ranks) hash = mix(hash, static_cast<std::uint64_t>(rank));
  return hash | 1;  // never 0, which is a region that nobody has attached
}

}  // namespace

std::size_t region_bytes(const Geometry& geometry) {
  const std::size_t locals = geometry.local_ranks.size();
  return kPage + locals * (kPage + kStages * kChunkBytes + round_up(geometry.data_bytes, kPage));
}

Result<Region> Region::attach(std::shared_ptr<SharedMemory> memory, const Geometry& geometry,
                              Generation generation) {
  if (memory == nullptr || memory->data() == nullptr || memory->size() < region_bytes(geometry)) {
    return ErrorInfo{ErrorCode::kLimit, "cannot attach to the group's shared region",
                     "it has " + std::to_string(memory == nullptr ? 0 : memory->size()) + " bytes and " +
                         std::to_string(region_bytes(geometry)) + " are needed",
                     "size it with native_region_bytes()"};
  }
  if (auto stamped = stamp_region(memory->data(), generation); !stamped) return stamped.error();
  auto& stamp = *reinterpret_cast<std::atomic<std::uint64_t>*>(memory->data() + kGeometryStampAt);
  std::uint64_t found = 0;
  const std::uint64_t wanted = geometry_stamp(geometry);
  if (!stamp.compare_exchange_strong(found, wanted, std::memory_order_acq_rel) && found != wanted) {
    return ErrorInfo{ErrorCode::kRefused, "refused the group's shared region",
                     "another rank attached with another world size, other local ranks or data bytes",
                     "give every rank the same NativeGroupOptions"};
  }
  Region region;
  region.locals_ = geometry.local_ranks.size();
  region.data_stride_ = round_up(geometry.data_bytes, kPage);
  region.base_ = memory->data();
  region.staging_ = region.base_ + (region.locals_ + 1) * kPage;
  region.data_ = region.staging_ + region.locals_ * kStages * kChunkBytes;
  region.memory_ = std::move(memory);
  return region;
}

bool Region::holds(std::size_t local, const void* at, std::size_t bytes) const {
  const auto from = reinterpret_cast<std::uintptr_t>(data(local));
  const auto wanted = reinterpret_cast<std::uintptr_t>(at);
  return wanted >= from && wanted - from <= data_stride_ && bytes <= data_stride_ - (wanted - from);
}

Result<void> Region::populate(std::byte* at, std::size_t bytes) const {
  if (bytes == 0) return {};
  const std::size_t from = static_cast<std::size_t>(at - base_) / kPage * kPage;
  const std::size_t to = round_up(static_cast<std::size_t>(at - base_) + bytes, kPage);
  if (::madvise(base_ + from, to - from, MADV_POPULATE_WRITE) == 0) return {};
  // Kernels before 5.14 do not know the advice: there the first step pays for the faults.
  if (errno == EINVAL) return {};
  return io_error("cannot populate " + std::to_string(bytes) + " bytes of shared memory", errno,
                  "free memory");
}

Result<void> Region::populate_staging() const {
  return populate(staging_, locals_ * kStages * kChunkBytes);
}

void publish(Progress& progress, std::uint32_t rounds) {
  // Sequentially consistent against the sleeper's store and load, so that one of the two sees the other.
  progress.rounds.store(rounds, std::memory_order_seq_cst);
  if (progress.sleepers.load(std::memory_order_seq_cst) == 0) return;
  progress.sleepers.store(0, std::memory_order_relaxed);
  futex_wake(progress.rounds, std::numeric_limits<int>::max());
}

void sleep_on(Progress& progress, std::uint32_t seen, Duration slice) {
  progress.sleepers.store(1, std::memory_order_seq_cst);
  if (progress.rounds.load(std::memory_order_seq_cst) != seen) return;
  futex_wait(progress.rounds, seen, slice);
}

}  // namespace troupe::collectives
