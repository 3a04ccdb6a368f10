#include "runtime/core/fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

namespace troupe {

void UniqueFd::reset() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<UniqueFd> UniqueFd::duplicate() const {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return io_error("cannot duplicate a file descriptor", errno, "raise ulimit -n");
  return UniqueFd(copy);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_);
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

namespace {

Result<std::byte*> map_pages(int fd, std::size_t bytes, int extra_flags) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | extra_flags, fd, 0);
  if (at == MAP_FAILED) {
    return io_error("cannot map " + std::to_string(bytes) + " bytes of shared memory", errno,
                    "free memory or ask for less");
  }
  return static_cast<std::byte*>(at);
}

}  // namespace

Result<SharedMemory> SharedMemory::create(const std::string& name, std::size_t bytes, bool prefault,
                                          bool sealable) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > static_cast<std::size_t>(std::numeric_limits<off_t>::max()) - page) {
    return ErrorInfo{ErrorCode::kLimit, "cannot create shared memory '" + name + "'",
                     std::to_string(bytes) + " bytes is not a size", "ask for at least one byte"};
  }
  SharedMemory memory;
  memory.size_ = (bytes + page - 1) / page * page;
  memory.fd_ = UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_) return io_error("cannot create shared memory '" + name + "'", errno, "raise ulimit -n");
  // posix_fallocate reserves the pages, so a full /dev/shm is an error here and not a SIGBUS at the first
  // write.
  const int reserved = prefault
                           ? ::posix_fallocate(memory.fd(), 0, static_cast<off_t>(memory.size_))
                           : (::ftruncate(memory.fd(), static_cast<off_t>(memory.size_)) == 0 ? 0 : errno);
  if (reserved != 0) {
    return io_error("cannot size shared memory '" + name + "' to " + std::to_string(memory.size_) + " bytes",
                    reserved, "free memory or ask for less");
  }
  const int last = sealable ? 0 : F_SEAL_SEAL;
  if (::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | last) != 0) {
    return io_error("cannot seal shared memory '" + name + "'", errno);
  }
  auto at = map_pages(memory.fd(), memory.size_, prefault ? MAP_POPULATE : 0);
  if (!at) return at.error();
  memory.data_ = *at;
  return memory;
}

Result<SharedMemory> SharedMemory::map(UniqueFd fd, bool prefault) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return io_error("cannot map received shared memory", errno, "the peer sent no memfd");
  if ((seals & F_SEAL_SHRINK) == 0) {
    return ErrorInfo{ErrorCode::kRefused, "refused received shared memory",
                     "it is not sealed against shrinking", "the peer runs another build of troupe"};
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return io_error("cannot stat received shared memory", errno);
  if (info.st_size <= 0) {
    return ErrorInfo{ErrorCode::kRefused, "refused received shared memory", "it is empty", ""};
  }
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.size_ = static_cast<std::size_t>(info.st_size);
  auto at = map_pages(memory.fd(), memory.size_, prefault ? MAP_POPULATE : 0);
  if (!at) return at.error();
  memory.data_ = *at;
  return memory;
}

Result<void> check_descriptor_limit() {
  constexpr rlim_t kFewest = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kFewest) return {};
  return ErrorInfo{ErrorCode::kLimit, "this process may open too few files and sockets",
                   std::to_string(limit.rlim_cur) + " are allowed, and it needs " + std::to_string(kFewest),
                   "raise ulimit -n"};
}

}  // namespace troupe
