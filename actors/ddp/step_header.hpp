/// Which forward a reduction belongs to, told along with the first bucket: ranks that are a step apart would
/// add gradients of different steps without a word.
///
/// Behind the bucket lie four elements a rank, of the bucket's dtype. A rank writes the digits of its counts
/// into its own and zeros into the others, so that the sum has everybody's. Gradients are not touched, and no
/// message is added.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

/// How many forwards that want gradients a rank has begun, of all modules of a group. The last one's number
/// is `begun`; 0: a rank without input (join), which is in none.
struct ForwardCount {
  std::uint64_t begun = 0;
  std::uint64_t in_no_sync = 0;  ///< of those
  auto operator<=>(const ForwardCount&) const = default;
};

class StepHeader {
 public:
  StepHeader() = default;
  /// At `at`, of elements of a bucket's dtype. REQUIRES: float64, float32, float16 or bfloat16.
  StepHeader(std::byte* at, collectives::DType dtype, int rank, int ranks)
      : at_(at), dtype_(dtype), rank_(rank), ranks_(ranks) {}

  /// Elements of a header, in whole lines of 64 bytes. None for one rank.
  static std::size_t elements(collectives::DType dtype, int ranks);

  void write(const ForwardCount& count) const;
  /// Of the sums, divided by `divisor`: every rank's counts. They travel modulo 14,400, so each is the one
  /// next to `mine` that is alike.
  std::vector<ForwardCount> read(const ForwardCount& mine, int divisor) const;

 private:
  std::byte* at_ = nullptr;
  collectives::DType dtype_ = collectives::DType::kFloat32;
  int rank_ = 0;
  int ranks_ = 1;
};

/// "rank 0 and 1 more in forward 2, rank 1 in forward 3", or nothing if all that are in one have the same
/// counts. With how many were in no_sync, if that differs.
std::string steps_apart(std::span<const ForwardCount> by_rank);

/// Aborts the group with `apart`, as steps_apart says it, and returns what to throw.
CollectiveAborted out_of_step(collectives::ProcessGroup& group, const std::string& apart, std::string todo);
/// Throws that with what to do, where ranks that reduce are apart. Every rank comes to the same answer.
void check_in_step(collectives::ProcessGroup& group, std::span<const ForwardCount> by_rank);

}  // namespace troupe::train
