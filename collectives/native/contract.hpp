/// What a rank promises to do at a sequence number. Ranks compare contracts before they touch each other's
/// data, so that different calls are an error that names both, and not a wrong number.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>

#include "collectives/op_kind.hpp"
#include "collectives/types.hpp"
#include "runtime/core/result.hpp"

namespace troupe::collectives {

struct Contract {
  OpKind kind = OpKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  bool exact = true;
  std::int32_t index = 0;   ///< the tree's allocation, the root, or the other rank of a send or recv
  std::uint64_t count = 0;  ///< elements; of one rank's part where a buffer has a part for every rank
  double factor = 1;        ///< of premul_sum; 1 otherwise

  /// The factor's bits count, so that a NaN is equal to itself.
  bool operator==(const Contract& other) const {
    return kind == other.kind && op == other.op && dtype == other.dtype && exact == other.exact &&
           index == other.index && count == other.count &&
           std::bit_cast<std::uint64_t>(factor) == std::bit_cast<std::uint64_t>(other.factor);
  }
};

/// "all_reduce_tree(sum, 100 x f32, buffer 0)".
std::string to_string(const Contract& contract);

/// A contract as three words; what the wire and the shared region carry.
inline constexpr std::size_t kContractWords = 3;
using ContractWords = std::array<std::uint64_t, kContractWords>;
ContractWords encode(const Contract& contract);
/// The contract in words that somebody else wrote. Errors: kBadInput for a kind, op or dtype that does not
/// exist.
Result<Contract> decode_contract(const ContractWords& words);

/// A contract in shared memory, with where the operation's input lies in the rank's data: offset + 1, or 0
/// for a buffer outside the region. Whole once the rank has arrived in the operation's first round.
struct PublishedContract {
  std::array<std::atomic<std::uint64_t>, kContractWords> words;
  std::atomic<std::uint64_t> place;
};
static_assert(sizeof(PublishedContract) == 32);

}  // namespace troupe::collectives
