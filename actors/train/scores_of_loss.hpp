/// What a loss was computed from, so that an evaluation that counts what is right needs no second forward.
#pragma once

#include <ATen/record_function.h>
#include <torch/types.h>

#include <optional>

namespace troupe::train {

/// While one lives, it looks on which cross entropy or negative log likelihood this thread computes against
/// `target`. One a thread at a time.
class ScoresOfLoss {
 public:
  explicit ScoresOfLoss(torch::Tensor target);
  ~ScoresOfLoss();
  ScoresOfLoss(const ScoresOfLoss&) = delete;
  ScoresOfLoss& operator=(const ScoresOfLoss&) = delete;

  /// The scores that went into it, if there was one and no more.
  std::optional<torch::Tensor> scores() const { return seen_ == 1 ? std::optional(scores_) : std::nullopt; }

 private:
  void begins(const at::RecordFunction& function);
  void ends(const at::RecordFunction& function);
  static ScoresOfLoss*& of_this_thread();

  const torch::Tensor target_;
  torch::Tensor scores_;
  int seen_ = 0;
  const at::RecordFunction* inside_ = nullptr;  ///< one loss is computed by another
  at::CallbackHandle handle_;
};

}  // namespace troupe::train
