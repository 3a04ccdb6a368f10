#include "runtime/link/ring/doorbell.hpp"

namespace troupe {

Result<Doorbell> Doorbell::create() {
  auto memory = SharedMemory::create("troupe-doorbell", sizeof(Words), true);
  if (!memory) return memory.error();
  Doorbell bell;
  bell.memory_ = *std::move(memory);
  return bell;
}

Result<Doorbell> Doorbell::map(UniqueFd fd) {
  auto memory = SharedMemory::map(std::move(fd));
  if (!memory) return memory.error();
  if (memory->size() < sizeof(Words)) {
    return ErrorInfo{ErrorCode::kRefused, "refused a doorbell", "its memory is too small",
                     "both sides must run the same build"};
  }
  Doorbell bell;
  bell.memory_ = *std::move(memory);
  return bell;
}

}  // namespace troupe
