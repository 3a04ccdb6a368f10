/// A copy of a state that costs no copying: a forked child has the memory as it was at that moment, and the
/// kernel copies the pages that the parent changes afterwards. What is free then goes back to the kernel
/// first.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::train {

/// The child runs none of the program's code but a loop of read and write, and ends with this object or with
/// the thread that made it. read() and memory() are for one thread at a time.
class ForkedCopy final : public StateCopy {
 public:
  /// Throws IoError where no process can be had.
  explicit ForkedCopy(const std::vector<StatePart>& parts);
  ~ForkedCopy() override;
  ForkedCopy(const ForkedCopy&) = delete;
  ForkedCopy& operator=(const ForkedCopy&) = delete;

  std::uint64_t size() const override { return size_; }
  /// The child is told whom its memory is for: Yama lets nobody else read it but its parents. None when the
  /// child is gone.
  std::optional<StateMemory> memory(std::int32_t reader) override;
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
  StateMemory memory_;  ///< the child's
};

/// Reads what is there, from another process of this host. False: the kernel refuses it, or the process is
/// gone. What came must be looked at: another process may have its number by now. `came` gets each piece
/// while the processor's cache has it; what it throws ends it.
bool read_memory(const StateMemory& from, std::span<std::byte> into,
                 const std::function<void(std::span<const std::byte>)>& came);

}  // namespace troupe::train
