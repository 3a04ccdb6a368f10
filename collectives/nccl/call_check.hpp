/// Whether all ranks called the same: their calls ride ahead of each collective, and are compared on the host
/// by whoever looks at the operation, while the device goes on.
#pragma once

#include <array>
#include <memory>

#include "collectives/check_op.hpp"
#include "collectives/nccl/core.hpp"
#include "collectives/nccl/memory.hpp"

namespace troupe::collectives::nccl {

class CallCheck {
 public:
  CallCheck(Caller caller, int size, std::shared_ptr<Communicator> communicator);

  /// Puts the all-gather of the calls on the stream, and the comparison on the operation.
  void ride(Core& core, std::shared_ptr<PendingOp> pending);

 private:
  static constexpr std::size_t kSlots = 64;  ///< collectives in flight before one has to end
  struct Slot {
    std::byte* mine;      ///< pinned: this rank's call
    std::byte* all;       ///< pinned: every rank's
    std::byte* gathered;  ///< the device's
  };
  Slot slot(std::size_t index);

  Caller caller_;
  int size_;
  std::shared_ptr<Communicator> communicator_;
  std::size_t slot_bytes_;
  PinnedMemory pinned_;
  Scratch device_;
  std::array<std::shared_ptr<PendingOp>, kSlots> riders_{};
  std::size_t next_ = 0;
};

}  // namespace troupe::collectives::nccl
