/// What a rank called, at which place in the order: for error messages, and for the check that all ranks
/// called the same.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "collectives/types.hpp"

namespace troupe::collectives::nccl {

enum class CallKind : std::uint8_t {
  kAllReduceTree,
  kAllReduce,
  kReduce,
  kBroadcast,
  kGather,
  kScatter,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kMessages,  ///< sends and receives that are issued together: not compared with other ranks'
};

struct Call {
  CallKind kind = CallKind::kBarrier;
  DType dtype = DType::kFloat32;
  Reduction how{};
  std::int32_t root = 0;       ///< or the allocation of a tree buffer
  std::uint64_t count = 0;     ///< elements of one rank's part; messages of kMessages
  std::uint64_t sequence = 0;  ///< from 1, in the order of the group's calls
};

/// "all_reduce(sum, exact, 100 x f32) #3".
std::string to_string(const Call& call);

/// A call as it travels: equal words, equal calls.
using CallWords = std::array<std::uint64_t, 4>;
CallWords encode(const Call& call);
/// As to_string, of words that another rank wrote.
std::string words_to_string(const CallWords& words);

}  // namespace troupe::collectives::nccl
