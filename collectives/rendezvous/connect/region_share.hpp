/// How the ranks of one machine come by the same memory: one makes it and hands the descriptor to the others
/// over an abstract Unix socket, which leaves nothing behind.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/rendezvous/connect/wait_options.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives {

/// The side that has the memory.
class RegionOffer {
 public:
  /// Errors: kIo.
  static Result<RegionOffer> open();
  /// Where it is offered and the secret that opens it: to be told to the receivers through the store.
  const std::string& token() const { return token_; }
  /// Hands `memory` to each of `receivers` once. Only processes of this user that show the secret get it;
  /// others do not get in the way. Errors: kTimeout with the ranks that did not come, kAborted, kIo.
  Result<void> hand_out(const SharedMemory& memory, std::vector<int> receivers, const WaitOptions& options);

 private:
  UniqueFd listener_;
  std::string token_;
};

/// The other side. Errors: kUnavailable, kRefused where another user or no memfd is at the other end,
/// kTimeout, kAborted.
Result<SharedMemory> take_region(const std::string& token, int rank, const WaitOptions& options);

/// What a receiver says: its rank, u32, and the secret of the token.
std::vector<std::byte> region_greeting(int rank, std::string_view secret);
/// The one of `receivers` who says this; -1: none of them, or without the secret. Pure.
int rank_of_greeting(std::span<const std::byte> greeting, std::string_view secret,
                     const std::vector<int>& receivers);

}  // namespace troupe::collectives
