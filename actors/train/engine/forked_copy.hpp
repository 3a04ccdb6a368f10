/// A copy of a state that costs no copying: a forked child has the memory as it was at that moment, and the
/// kernel copies the pages that the parent changes afterwards.
#pragma once

#include <sys/types.h>

#include <vector>

#include "actors/train/engine/engine.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::train {

/// The child runs none of the program's code but a loop of read and write, and ends with this object or with
/// the thread that made it. read() is for one thread at a time.
class ForkedCopy final : public StateCopy {
 public:
  /// Throws IoError where no process can be had.
  explicit ForkedCopy(const checkpoint::SafetensorsLayout& layout);
  ~ForkedCopy() override;
  ForkedCopy(const ForkedCopy&) = delete;
  ForkedCopy& operator=(const ForkedCopy&) = delete;

  std::uint64_t size() const override { return size_; }
  /// Throws IoError when the child is gone.
  void read(std::uint64_t offset, std::span<std::byte> into) override;

 private:
  struct Run {
    std::uint64_t begin = 0;  ///< offset
    std::span<const std::byte> bytes;
  };
  [[noreturn]] static void serve(int fd, pid_t parent, std::span<const Run> runs);

  std::uint64_t size_ = 0;
  UniqueFd requests_;
  pid_t child_ = -1;
};

}  // namespace troupe::train
