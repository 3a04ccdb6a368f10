#include "runtime/link/ring/doorbell.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

namespace troupe {

Result<Doorbell> Doorbell::create() {
  auto memory = SharedMemory::create("troupe-doorbell", sizeof(Words), true);
  if (!memory) return memory.error();
  auto bell = on(*memory);
  if (!bell) return bell;
  bell->fd_ = UniqueFd(::fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0));
  if (!bell->fd_) return io_error("cannot make a doorbell", errno, "raise ulimit -n");
  return bell;
}

Result<Doorbell> Doorbell::map(UniqueFd fd) {
  auto memory = SharedMemory::map(std::move(fd));
  if (!memory) return memory.error();
  if (memory->size() < sizeof(Words)) {
    return ErrorInfo{ErrorCode::kRefused, "refused a doorbell", "its memory is too small",
                     "both sides must run the same build"};
  }
  return on(*memory);
}

Result<Doorbell> Doorbell::on(const SharedMemory& memory) {
  void* const at = ::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0);
  if (at == MAP_FAILED) return io_error("cannot map a doorbell", errno, "free memory");
  Doorbell bell;
  bell.words_.reset(static_cast<Words*>(at));
  return bell;
}

void Doorbell::Unmap::operator()(Words* words) const {
  ::munmap(words, sizeof(Words));
}

}  // namespace troupe
