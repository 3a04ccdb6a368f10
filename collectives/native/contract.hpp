/// What a rank promises to do at a sequence number. Ranks compare contracts before they touch each other's
/// data, so that different calls are an error that names both, and not a wrong number.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "collectives/types.hpp"
#include "runtime/core/result.hpp"

namespace troupe::collectives {

enum class OpKind : std::uint8_t { kAllReduceTree, kAllReduce, kBroadcast, kBarrier };

struct Contract {
  OpKind kind = OpKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  std::int32_t index = 0;   ///< the tree's allocation, or the broadcast's root
  std::uint64_t count = 0;  ///< elements
  bool operator==(const Contract&) const = default;
};

/// "all_reduce_tree(sum, 100 x f32, buffer 0)".
std::string to_string(const Contract& contract);

/// A contract as two words; what the wire and the shared region carry.
using ContractWords = std::array<std::uint64_t, 2>;
ContractWords encode(const Contract& contract);
/// The contract in words that somebody else wrote. Errors: kBadInput for a kind, op or dtype that does not
/// exist.
Result<Contract> decode_contract(const ContractWords& words);

/// A contract in shared memory, with where the operation's buffer lies in the rank's data: offset + 1, or 0
/// for a buffer outside the region. Whole once the rank has arrived in the operation's first round.
struct PublishedContract {
  std::array<std::atomic<std::uint64_t>, 2> words;
  std::atomic<std::uint64_t> place;
  std::uint64_t unused;
};
static_assert(sizeof(PublishedContract) == 32);

}  // namespace troupe::collectives
