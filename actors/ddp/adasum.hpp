/// Adasum (Maleki et al. 2020; Horovod's op=Adasum): the sum of vectors that point in different directions,
/// the mean of those that point in the same one. Two at a time, each tensor by itself:
///
///   a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2)
///
/// of ranks 0 and 1, 2 and 3, then of what came of these, and so on: so there are 2^n ranks.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::train {

/// A tensor in a flat one.
struct AdasumPart {
  std::int64_t offset = 0;  ///< elements
  std::int64_t count = 0;
};

/// Leaves Adasum of both in `lower`, part by part; what is between parts stays. Products are added in
/// float64, and on the CPU in one order, whatever the threads and the processor. A vector of zeros (a squared
/// norm below 1.5e-154, as in Horovod) is added as it is. REQUIRES: one dimension, of one dtype and size.
void adasum_pair(const torch::Tensor& lower, const torch::Tensor& higher,
                 const std::vector<AdasumPart>& parts);

/// Throws BadConfig for a number of ranks that is not 2^n.
void check_adasum_ranks(int ranks);

/// One in flight. Each rank sends its whole vector log2(ranks) times, to another rank each time,
/// with the tag 0, since NCCL has no other: messages of the program's own with that tag are complete by then.
class AdasumRound {
 public:
  /// Sends the first time. Leaves the result in `flat`, with the same bits on every rank.
  /// REQUIRES: 2^n ranks, more than one.
  AdasumRound(collectives::ProcessGroup& group, torch::Tensor flat, std::vector<AdasumPart> parts);
  /// The rest. `wait` is called with each message and the rank that it comes from. REQUIRES: called once.
  void finish(const std::function<void(collectives::Work&, int from)>& wait);

 private:
  void exchange();

  collectives::ProcessGroup& group_;
  torch::Tensor flat_, theirs_;
  std::vector<AdasumPart> parts_;
  int distance_ = 1;  ///< to the rank that it exchanges with
  std::shared_ptr<collectives::Work> work_;
};

}  // namespace troupe::train
