/// A running average of the weights, which evaluations use in their place:
///
///     train::Ema ema() const { return {.decay = 0.999}; }
///
/// After each step: average = decay x average + (1 - decay) x weights; after the first the weights themselves
/// (PyTorch's AveragedModel with get_ema_multi_avg_fn). Buffers have none. The average is a part of the
/// TrainState and of checkpoints ("user/ema/<parameter>").
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "actors/train/job/setup.hpp"

namespace troupe::train {

struct Ema {
  double decay = 0.999;
};

/// Of a state's parts.
inline constexpr const char* kAveragedPrefix = "user/ema/";
inline constexpr const char* kAveragedSteps = "user/ema steps";  ///< an int64: how many are in the averages

/// Not thread-safe; stays where it was made.
class AveragedWeights {
 public:
  /// Registers what it keeps in the setup's state. Throws BadConfig for a decay that is none.
  AveragedWeights(Ema options, Setup& setup) : options_(options), parameters_(setup.parameters()) {
    if (!(options_.decay >= 0 && options_.decay < 1))
      throw BadConfig("an average of the weights decays by " + std::to_string(options_.decay),
                      "it is a part of the average that stays", "use at least 0 and less than 1");
    for (const NamedTensor& parameter : parameters_) {
      averages_.push_back(parameter.tensor.detach().clone());
      setup.state.add("ema/" + parameter.name, averages_.back());
    }
    setup.state.add("ema steps", steps_, ChangedIn::kApply);
  }
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;

  /// A step was applied.
  void update() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < averages_.size(); ++i) {
      if (steps_ == 0) {
        averages_[i].copy_(parameters_[i].tensor);
      } else {
        averages_[i].lerp_(parameters_[i].tensor, 1 - options_.decay);
      }
    }
    ++steps_;
  }

  /// The modules have the averages for weights while it lives, if there are any yet. `of` may be null.
  class InUse {
   public:
    explicit InUse(AveragedWeights* of) : of_(of != nullptr && of->steps_ > 0 ? of : nullptr) {
      if (of_ == nullptr) return;
      for (std::size_t i = 0; i < of_->averages_.size(); ++i) {
        torch::Tensor& parameter = of_->parameters_[i].tensor;
        weights_.push_back(parameter.detach());
        parameter.set_data(of_->averages_[i]);
      }
    }
    ~InUse() {
      for (std::size_t i = 0; i < weights_.size(); ++i) of_->parameters_[i].tensor.set_data(weights_[i]);
    }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

   private:
    AveragedWeights* of_;
    std::vector<torch::Tensor> weights_;
  };

 private:
  Ema options_;
  std::vector<NamedTensor> parameters_;
  std::vector<torch::Tensor> averages_;
  std::int64_t steps_ = 0;
};

}  // namespace troupe::train
