/// Finds what the job's code changes where it must change nothing: in loss() and in evaluate(), which compute
/// other samples on each trainer, and run again when a step or a piece does.
#pragma once

#include <cstdint>
#include <vector>

#include "actors/train/job/model.hpp"

namespace troupe::train {

/// Tensors are found by their version counters, in no time.
class LossCheck {
 public:
  /// `model` outlives this.
  explicit LossCheck(TrainingModel& model);

  struct Before {
    std::uint64_t parameters = 0;
    std::uint64_t declared = 0;
    std::uint64_t batch = 0;
    std::vector<torch::Tensor> bytes{};
  };
  /// `bytes`: what state() declared as bytes is saved and compared, too; how long its `save` takes nobody
  /// knows.
  Before before(const data::Batch& batch, bool bytes) const;
  /// Behind the job's code. Throws BadConfig for a parameter, a tensor or bytes of state(), or a tensor of
  /// the batch.
  void check(const Before& before, const data::Batch& batch) const;

 private:
  TrainingModel& model_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> declared_;  ///< but buffers, which may change
};

}  // namespace troupe::train
