#include "tests/simulation/spill_disk.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/core/thread.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {

bool SimSpillDisk::refuses() {
  if (!cluster_.faults_over && cluster_.world.chance(cluster_.scenario.spill_refused)) {
    ++cluster_.values.writes_refused;
    errno = ENOSPC;
    return true;
  }
  return false;
}

UniqueFd SimSpillDisk::open(const std::string& /*folder*/) {
  if (refuses()) return {};
  ++files_;
  return UniqueFd(::memfd_create("spilled", MFD_CLOEXEC));
}

ssize_t SimSpillDisk::write(int file, const void* bytes, std::size_t size, off_t offset) {
  World& world = cluster_.world;
  if (world.chance(0.5)) sleep_for(world.between(microseconds(50), milliseconds(80)));
  if (std::exchange(fills_up_, false)) {
    errno = ENOSPC;
    return -1;
  }
  if (refuses()) {
    fills_up_ = size > 1 && world.chance(0.5);
    if (!fills_up_) return -1;
    size = 1 + world.random.below(size - 1);
  } else {
    ++cluster_.values.written;
  }
  const ssize_t wrote = ::pwrite(file, bytes, size, offset);
  if (cluster_.scenario.floor.lose_spilled_byte && wrote > 0) {
    const std::uint64_t at = world.random.below(static_cast<std::uint64_t>(wrote));
    const std::byte other = static_cast<const std::byte*>(bytes)[at] ^ std::byte{1};
    (void)!::pwrite(file, &other, 1, offset + static_cast<off_t>(at));
  }
  return wrote;
}

void SimSpillDisk::remove(UniqueFd /*file*/) {
  if (!cluster_.scenario.floor.keep_spill_files) --files_;
}

}  // namespace troupe::sim
