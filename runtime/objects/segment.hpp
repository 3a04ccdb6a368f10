/// Shared memory in which one object lies, and after it another one of the same owner.
#pragma once

#include <functional>
#include <memory>

#include "runtime/core/memory_tag.hpp"
#include "runtime/objects/object_bytes.hpp"
#include "runtime/objects/object_name.hpp"

namespace troupe::objects {

/// Where the bytes of an object come from: those from `offset` on, as many as are at hand and one at least.
using Source = std::function<Result<wire::ByteView>(std::uint64_t offset)>;
Source source_of(wire::ByteView bytes);

/// Of the process that owns the objects in it, the only one that can write it. Not thread-safe.
///
/// Readers, this process's own among them, hold a shared lock (flock) on the region together with their
/// mapping; the kernel drops both at once, however a process ends. So whoever gets the exclusive lock knows
/// that nobody reads: then alone the memory is written again. A reader that comes late finds another tag.
class Segment {
 public:
  /// Writes the object into a region that nobody has written to, and seals it.
  static Result<std::unique_ptr<Segment>> write(std::uint64_t region, const UniqueFd& fd,
                                                std::uint64_t object, std::uint64_t bytes,
                                                const Source& from);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  /// Writes another object over the last one. False: somebody reads that still. REQUIRES: `bytes` fit.
  Result<bool> write_again(const UniqueFd& fd, std::uint64_t object, std::uint64_t bytes, const Source& from);

  std::uint64_t region() const { return region_; }
  /// Of an object that fits.
  std::uint64_t capacity() const { return bytes_ - kTagBytes; }
  wire::ByteView view(std::uint64_t bytes) const { return {at_, bytes}; }

 private:
  Segment(std::uint64_t region, std::byte* at, std::uint64_t bytes)
      : region_(region), at_(at), bytes_(bytes) {}
  const std::uint64_t region_;  ///< number in its name
  std::byte* const at_;
  const std::uint64_t bytes_;
};
using SegmentPtr = std::unique_ptr<Segment>;

/// Maps the object. Errors: kUnavailable, when other bytes lie there, or none that are sealed; kIo.
Result<std::shared_ptr<const ObjectBytes>> read_segment(const UniqueFd& fd, std::uint64_t object,
                                                        std::uint64_t bytes);

// Copies of others' objects. Their memory is not sealed: when nobody reads one any more, the node lends it
// for the next.

/// Whether all of the copy is there.
bool is_copy_of(const UniqueFd& fd, const ObjectName& name);
/// All bytes have been written: names the memory, and maps it. REQUIRES: it had no name. Errors: kIo.
Result<std::shared_ptr<const ObjectBytes>> finish_copy(const UniqueFd& fd, const ObjectName& name,
                                                       std::uint64_t bytes);
/// Errors: as read_segment().
Result<std::shared_ptr<const ObjectBytes>> read_copy(const UniqueFd& fd, const ObjectName& name,
                                                     std::uint64_t bytes);

}  // namespace troupe::objects
