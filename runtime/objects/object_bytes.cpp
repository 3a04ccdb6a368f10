#include "runtime/objects/object_bytes.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

namespace troupe::objects {

ObjectBytes::ObjectBytes(void* at, std::size_t bytes)
    : mapped_(at), view_(static_cast<const std::byte*>(at), bytes) {}

ObjectBytes::~ObjectBytes() {
  if (mapped_ != nullptr) ::munmap(mapped_, view_.size());
}

Result<std::shared_ptr<const ObjectBytes>> ObjectBytes::map(const UniqueFd& fd, std::size_t bytes) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || info.st_size < 0 || static_cast<std::uint64_t>(info.st_size) < bytes) {
    return ErrorInfo{ErrorCode::kRefused, "cannot map an object", "its shared memory is shorter than it", ""};
  }
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED)
    return io_error("cannot map an object of " + std::to_string(bytes) + " bytes", errno, "free memory");
  return std::shared_ptr<const ObjectBytes>(new ObjectBytes(at, bytes));
}

Result<void> write_at(const UniqueFd& fd, std::uint64_t offset, wire::ByteView bytes) {
  while (!bytes.empty()) {
    const auto wrote = ::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return io_error("cannot write an object to shared memory", errno, "free memory");
    bytes = bytes.subspan(static_cast<std::size_t>(wrote));
    offset += static_cast<std::uint64_t>(wrote);
  }
  return {};
}

Result<void> seal(const UniqueFd& fd) {
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0)
    return io_error("cannot seal an object", errno, "objects need Linux 5.1 or later");
  return {};
}

bool is_sealed(const UniqueFd& fd) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
  return seals >= 0 && (seals & kAll) == kAll;
}

}  // namespace troupe::objects
