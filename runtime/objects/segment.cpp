#include "runtime/objects/segment.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "runtime/core/clock.hpp"

namespace troupe::objects {
namespace {

constexpr Duration kLocked = std::chrono::seconds(10);

Result<std::uint64_t> size_of(const UniqueFd& fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("cannot see an object's memory", errno);
  return static_cast<std::uint64_t>(info.st_size);
}

ErrorInfo other_bytes(const char* why) {
  return {ErrorCode::kUnavailable, "an object is not there any more", why, "ask its owner again"};
}

}  // namespace

Source source_of(wire::ByteView bytes) {
  return [bytes](std::uint64_t offset) -> Result<wire::ByteView> { return bytes.subspan(offset); };
}

Result<SegmentPtr> Segment::write(std::uint64_t region, const UniqueFd& fd, std::uint64_t object,
                                  std::uint64_t bytes, const Source& from) {
  for (std::uint64_t done = 0; done < bytes;) {
    auto part = from(done);
    if (!part) return part.error();
    if (auto wrote = write_at(fd, done, *part); !wrote) return wrote.error();
    done += part->size();
  }
  if (auto tagged = write_tag(fd, {object, 0}); !tagged) return tagged.error();
  auto size = size_of(fd);
  if (!size) return size.error();
  // A writable mapping of before the seal stays one.
  void* at = ::mmap(nullptr, *size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED)
    return io_error("cannot map an object of " + std::to_string(bytes) + " bytes", errno, "free memory");
  SegmentPtr segment(new Segment(region, static_cast<std::byte*>(at), *size));
  if (auto sealed = seal(fd); !sealed) return sealed.error();
  return segment;
}

Segment::~Segment() {
  ::munmap(at_, bytes_);
}

Result<bool> Segment::write_again(const UniqueFd& fd, std::uint64_t object, std::uint64_t bytes,
                                  const Source& from) {
  TROUPE_ASSERT(bytes <= capacity(), "an object fits its segment");
  auto own = reopen(fd, O_RDONLY);
  if (!own) return own.error();
  if (::flock(own->get(), LOCK_EX | LOCK_NB) != 0) return false;
  const MemoryTag none;
  std::memcpy(at_ + capacity(), &none, sizeof none);  // whatever fails below leaves no object here
  for (std::uint64_t done = 0; done < bytes;) {
    auto part = from(done);
    if (!part) return part.error();
    std::memcpy(at_ + done, part->data(), part->size());
    done += part->size();
  }
  const MemoryTag tag{object, 0};
  std::memcpy(at_ + capacity(), &tag, sizeof tag);
  return true;
}

namespace {

MemoryTag tag_of(const ObjectName& name) {
  return {name.number, name.owner.process.value};
}

Result<std::shared_ptr<const ObjectBytes>> read_memory(const UniqueFd& fd, const MemoryTag& tag,
                                                       std::uint64_t bytes) {
  auto own = reopen(fd, O_RDONLY);
  if (!own) return own.error();
  if (::flock(own->get(), LOCK_SH | LOCK_NB) != 0) return other_bytes("its memory is being written");
  const auto there = read_tag(*own);
  if (!there) return there.error();
  if (*there != tag) return other_bytes("another object lies in its memory");
  return ObjectBytes::map(*own, bytes);  // the mapping keeps the lock
}

}  // namespace

Result<std::shared_ptr<const ObjectBytes>> read_segment(const UniqueFd& fd, std::uint64_t object,
                                                        std::uint64_t bytes) {
  if (!is_sealed(fd)) return other_bytes("its memory is empty");
  return read_memory(fd, {object, 0}, bytes);
}

bool is_copy_of(const UniqueFd& fd, const ObjectName& name) {
  const auto tag = read_tag(fd);
  return tag && *tag == tag_of(name);
}

Result<std::shared_ptr<const ObjectBytes>> finish_copy(const UniqueFd& fd, const ObjectName& name,
                                                       std::uint64_t bytes) {
  auto own = reopen(fd, O_RDONLY);
  if (!own) return own.error();
  // First: memory that has a name and that nobody reads may go to another copy. Who looks whether somebody
  // reads it has the lock for a moment.
  const MonotonicClock clock;
  for (const Instant until = clock.now() + kLocked; ::flock(own->get(), LOCK_SH | LOCK_NB) != 0;) {
    if (errno != EINTR && errno != EWOULDBLOCK) return io_error("cannot lock an object's memory", errno);
    if (clock.now() > until)
      return ErrorInfo{ErrorCode::kTimeout, "cannot lock an object's memory",
                       "another process holds its lock for more than " +
                           std::to_string(kLocked / std::chrono::seconds(1)) + " s",
                       "look for a process of this job that is stopped (troupe node show)"};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (auto named = write_tag(fd, tag_of(name)); !named) return named.error();
  return ObjectBytes::map(*own, bytes);
}

Result<std::shared_ptr<const ObjectBytes>> read_copy(const UniqueFd& fd, const ObjectName& name,
                                                     std::uint64_t bytes) {
  return read_memory(fd, tag_of(name), bytes);
}

}  // namespace troupe::objects
