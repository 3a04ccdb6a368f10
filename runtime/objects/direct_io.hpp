/// What an object's owner and its reader say over a direct connection (docs/tasks-and-objects.md).
///
///   reader -> owner   the handshake of runtime/core/connect, as rank 1 of two; purpose "object"
///   reader -> owner   u64 number, u64 offset, u64 bytes
///   owner -> reader   u64 bytes: as many as were asked for, or 0 where it gives none; then these bytes
///
/// Numbers are little-endian. Then both close. Blocking, each wait with a deadline.
#pragma once

#include <span>

#include "runtime/core/connect/handshake.hpp"
#include "runtime/core/fd.hpp"
#include "runtime/objects/direct_plan.hpp"

namespace troupe::objects {

struct PartAsked {
  std::uint64_t number = 0;
  Part part;
};

/// Both ends of the handshake. `fd`: a connected socket that does not block. Errors: kRefused, kUnavailable,
/// kTimeout.
Result<void> prove_reader(int fd, KeyView key, TransferDeadline& deadline);
Result<void> prove_owner(int fd, KeyView key, TransferDeadline& deadline);

Result<void> ask_for(int fd, const PartAsked& wanted, TransferDeadline& deadline);
Result<PartAsked> read_asked(int fd, TransferDeadline& deadline);
/// Empty: none is given.
Result<void> give(int fd, std::span<const std::byte> bytes, TransferDeadline& deadline);
/// Into `memory`, from the part's offset on: by the kernel, without a copy in this process. Errors:
/// kObjectLost where the owner gives none, kRefused for another length, kUnavailable, kTimeout, kIo.
Result<void> take(int fd, const Part& wanted, int memory, TransferDeadline& deadline);

}  // namespace troupe::objects
