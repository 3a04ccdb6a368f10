/// Which forward a reduction belongs to, told along with the first bucket: ranks that are a step apart would
/// add gradients of different steps without a word.
///
/// Behind the bucket lies an element a rank, of the bucket's dtype. A rank writes a code of its forward's
/// number into its own and zeros into the others, so that the sum has everybody's. Gradients are not touched,
/// and no message is added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

/// The number of a forward of a group, from 1; 0: a rank without input (join), which is in none.
using ForwardNumber = std::uint64_t;

class StepHeader {
 public:
  StepHeader() = default;
  /// At `at`, of elements of a bucket's dtype. REQUIRES: float64, float32, float16 or bfloat16.
  StepHeader(std::byte* at, collectives::DType dtype, int rank, int ranks)
      : at_(at), dtype_(dtype), rank_(rank), ranks_(ranks) {}

  /// Elements of a header, in whole lines of 64 bytes. None for one rank.
  static std::size_t elements(collectives::DType dtype, int ranks);

  void write(ForwardNumber number) const;
  /// Of the sums, divided by `divisor`: every rank's number, as far as it can be known from its code: the one
  /// next to `mine`.
  std::vector<ForwardNumber> read(ForwardNumber mine, int divisor) const;

 private:
  std::byte* at_ = nullptr;
  collectives::DType dtype_ = collectives::DType::kFloat32;
  int rank_ = 0;
  int ranks_ = 1;
};

/// "rank 0 and 1 more in forward 2, rank 1 in forward 3", or nothing if all that are in one are in the
/// same.
std::string steps_apart(std::span<const ForwardNumber> by_rank);

/// Aborts the group with what steps_apart said, and returns what to throw.
CollectiveAborted out_of_step(collectives::ProcessGroup& group, const std::string& apart);

}  // namespace troupe::train
