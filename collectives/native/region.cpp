#include "collectives/native/region.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "collectives/native/cpu_quota.hpp"
#include "collectives/native/host_layout.hpp"
#include "runtime/core/random.hpp"

namespace troupe::collectives {
namespace {

constexpr std::uint64_t kLayoutVersion = 8;
constexpr std::size_t kGeometryStampAt = kAbortWordBytes;
constexpr std::size_t kCoresAt = kGeometryStampAt + kCacheLine;
using Cores = std::array<std::atomic<std::uint64_t>, 1024 / 64>;
constexpr std::size_t kMachineCoresAt = kCoresAt + sizeof(Cores);
constexpr std::size_t kQuotaAt = kMachineCoresAt + sizeof(std::atomic<std::uint32_t>);
static_assert(kQuotaAt + sizeof(std::atomic<std::uint32_t>) <= kPage);

std::atomic<std::uint32_t>& machine_cores_of(std::byte* base) {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(base + kMachineCoresAt);
}
std::atomic<std::uint32_t>& quota_of(std::byte* base) {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(base + kQuotaAt);
}

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::uint64_t geometry_stamp(const Geometry& geometry) {
  std::uint64_t hash = mix(kLayoutVersion, static_cast<std::uint64_t>(geometry.world_size));
  hash = mix(hash, geometry.data_bytes);
  hash = mix(mix(hash, kStageBytes), kStages);
  hash = mix(mix(hash, static_cast<std::uint64_t>(geometry.hosts)), geometry.most_members);
  for (int rank : geometry.local_ranks) hash = mix(hash, static_cast<std::uint64_t>(rank));
  return hash | 1;  // never 0, which is a region that nobody has attached
}

std::size_t ring_stride(std::size_t locals) {
  return sizeof(RingHead) + ring_bytes(locals);
}

std::size_t all_rings_bytes(std::size_t locals) {
  return round_up(locals * (locals - 1) * ring_stride(locals), kPage);
}

std::size_t gates_bytes(int hosts) {
  const auto cells = static_cast<std::size_t>(hosts) * most_lanes(hosts);
  return hosts == 1 ? 0 : round_up(cells * sizeof(GateCell), kPage);
}

std::size_t landings_bytes(const Geometry& geometry) {
  if (geometry.hosts == 1) return 0;
  return static_cast<std::size_t>(geometry.hosts) * kLandings *
         landing_bytes(geometry.hosts, geometry.most_members);
}

}  // namespace

std::size_t landing_bytes(int hosts, std::size_t most_members) {
  constexpr std::size_t kLeast = 16 << 10, kMost = 128 << 10, kAll = 32 << 20, kElement = 16;
  const std::size_t share = std::bit_floor(kAll / (static_cast<std::size_t>(hosts) * kLandings) | 1);
  // An element from each rank of one host for each of the other is the least that has to fit.
  return round_up(std::max(std::clamp(share, kLeast, kMost), most_members * most_members * kElement), kPage);
}

std::size_t ring_bytes(std::size_t locals) {
  constexpr std::size_t kLeast = 4 << 10, kMost = 128 << 10, kAll = 2 << 20;
  if (locals < 2) return kLeast;
  return std::clamp(std::bit_floor(kAll / (locals * (locals - 1)) | 1), kLeast, kMost);
}

std::size_t region_bytes(const Geometry& geometry) {
  const std::size_t locals = geometry.local_ranks.size();
  return kPage + locals * (kPage + kStages * kStageBytes + round_up(geometry.data_bytes, kPage)) +
         all_rings_bytes(locals) + gates_bytes(geometry.hosts) + landings_bytes(geometry);
}

Result<Region> Region::attach(std::shared_ptr<SharedMemory> memory, const Geometry& geometry,
                              Generation generation) {
  if (memory == nullptr || memory->data() == nullptr || memory->size() < region_bytes(geometry)) {
    return ErrorInfo{ErrorCode::kLimit, "cannot attach to the group's shared region",
                     "it has " + std::to_string(memory == nullptr ? 0 : memory->size()) + " bytes and " +
                         std::to_string(region_bytes(geometry)) + " are needed",
                     "give every rank the same data_bytes; who makes the region by itself sizes it with "
                     "native_region_bytes()"};
  }
  if (auto stamped = stamp_region(memory->data(), generation); !stamped) return stamped.error();
  auto& stamp = *reinterpret_cast<std::atomic<std::uint64_t>*>(memory->data() + kGeometryStampAt);
  std::uint64_t found = 0;
  const std::uint64_t wanted = geometry_stamp(geometry);
  if (!stamp.compare_exchange_strong(found, wanted, std::memory_order_acq_rel) && found != wanted) {
    return ErrorInfo{ErrorCode::kRefused, "refused the group's shared region",
                     "another rank attached with another world size, other local ranks or data bytes",
                     "give every rank the same data_bytes, and the same ranks"};
  }
  std::uint32_t unknown = 0;
  const auto cores = static_cast<std::uint32_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  machine_cores_of(memory->data()).compare_exchange_strong(unknown, cores);
  Region region;
  region.locals_ = geometry.local_ranks.size();
  region.data_stride_ = round_up(geometry.data_bytes, kPage);
  region.base_ = memory->data();
  region.staging_ = region.base_ + (region.locals_ + 1) * kPage;
  region.rings_ = region.staging_ + region.locals_ * kStages * kStageBytes;
  region.gates_ = region.rings_ + all_rings_bytes(region.locals_);
  region.lanes_ = most_lanes(geometry.hosts);
  region.landings_ = region.gates_ + gates_bytes(geometry.hosts);
  region.landing_bytes_ = collectives::landing_bytes(geometry.hosts, geometry.most_members);
  region.data_ = region.landings_ + landings_bytes(geometry);
  struct stat file {};
  if (::fstat(memory->fd(), &file) == 0) region.file_ = file.st_ino;
  region.memory_ = std::move(memory);
  return region;
}

std::uint32_t core_here() {
  return static_cast<std::uint32_t>(::sched_getcpu() + 1);
}

void Region::add_cores() const {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  auto& all = *reinterpret_cast<Cores*>(base_ + kCoresAt);
  for (std::size_t core = 0; core < 64 * all.size(); ++core) {
    if (CPU_ISSET(core, &allowed)) all[core / 64].fetch_or(std::uint64_t{1} << core % 64);
  }
  const auto mine = cpu_quota();
  std::uint32_t least = quota_of(base_).load();
  while (mine && (least == 0 || *mine < least) && !quota_of(base_).compare_exchange_weak(least, *mine)) {
  }
}

std::size_t Region::cores() const {
  std::size_t count = 0;
  for (const auto& word : *reinterpret_cast<const Cores*>(base_ + kCoresAt))
    count += static_cast<std::size_t>(std::popcount(word.load(std::memory_order_relaxed)));
  const std::uint32_t quota = quota_of(base_).load(std::memory_order_relaxed);
  return quota == 0 ? count : std::min<std::size_t>(count, quota);
}

std::uint32_t Region::machine_cores() const {
  return machine_cores_of(base_).load(std::memory_order_relaxed);
}

GateCell& Region::gate(int host, std::uint32_t lane) const {
  return reinterpret_cast<GateCell*>(gates_)[static_cast<std::size_t>(host) * lanes_ + lane];
}

RingHead& Region::ring_head(std::size_t from, std::size_t to) const {
  const std::size_t index = from * (locals_ - 1) + (to < from ? to : to - 1);
  return *reinterpret_cast<RingHead*>(rings_ + index * ring_stride(locals_));
}

Ring Region::ring(std::size_t from, std::size_t to) const {
  RingHead& head = ring_head(from, to);
  return {&head, reinterpret_cast<std::byte*>(&head + 1), ring_bytes(locals_)};
}

Result<void> Region::populate_rings(std::size_t a, std::size_t b) const {
  auto there = populate(reinterpret_cast<std::byte*>(&ring_head(a, b)), ring_stride(locals_));
  if (!there) return there;
  return populate(reinterpret_cast<std::byte*>(&ring_head(b, a)), ring_stride(locals_));
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
  return populate(staging_, locals_ * kStages * kStageBytes);
}

}  // namespace troupe::collectives
