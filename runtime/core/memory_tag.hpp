/// Says at the end of a region of shared memory whose bytes are in it, so that another object's can come
/// after them.
#pragma once

#include <cstdint>

#include "runtime/core/fd.hpp"

namespace troupe {

/// All zero, as in new memory: nobody's, or they are not all there yet.
struct MemoryTag {
  std::uint64_t object = 0;
  std::uint64_t owner = 0;
  bool operator==(const MemoryTag&) const = default;
};
inline constexpr std::size_t kTagBytes = 16;
static_assert(sizeof(MemoryTag) == kTagBytes);

/// An open file of one's own: locks belong to one, and descriptors that are sent share it. Errors: kIo.
Result<UniqueFd> reopen(const UniqueFd& fd, int flags);
/// Errors: kIo.
Result<MemoryTag> read_tag(const UniqueFd& fd);
Result<void> write_tag(const UniqueFd& fd, const MemoryTag& tag);

/// Readers hold a shared lock (flock) together with their mapping. Whether none does.
bool is_unread(const UniqueFd& fd);
/// Nobody's from now on: whoever comes late for what was there finds another tag. False, and nothing has
/// changed: somebody reads it, or may write to it still.
bool take_memory(const UniqueFd& fd);

}  // namespace troupe
