/// Mixed precision of a job, said by its struct:
///
///     troupe::train::Precision precision() const { return {.autocast = true}; }
#pragma once

#include <torch/types.h>

#include <optional>

#include "actors/ddp/autocast.hpp"
#include "actors/ddp/grad_scaler.hpp"
#include "actors/train/job/apply.hpp"
#include "actors/train/job/setup.hpp"

namespace troupe::train {

struct Precision {
  /// criterion() or loss(), with the net's forward, and evaluate() run under Autocast to `dtype`. The loss is
  /// float32.
  bool autocast = false;
  /// Backwards run from the loss times a scale, gradients are divided by it before apply(), and a step with
  /// inf or NaN is left out by all trainers alike. The scale is a part of the state.
  std::optional<GradScalerOptions> scaler{};
  /// bfloat16, or on a GPU float16, whose small range wants a scaler.
  torch::ScalarType dtype = torch::kBFloat16;
};

/// What JobModel does about it. Not thread-safe.
class MixedPrecision {
 public:
  /// Adds the scale to the state: lives as long as that. Throws BadConfig for options that make no sense on
  /// the job's device.
  MixedPrecision(const Precision& precision, Setup& setup);
  MixedPrecision(const MixedPrecision&) = delete;
  MixedPrecision& operator=(const MixedPrecision&) = delete;

  /// Around the job's forward.
  Autocast autocast() const {
    return Autocast(setup_.device.type(),
                    precision_.autocast ? std::optional(precision_.dtype) : std::nullopt,
                    precision_.autocast);
  }
  /// The same value in float32, whose backward is scaled.
  torch::Tensor scaled(const torch::Tensor& loss) const;
  /// Around the job's apply().
  void before(Apply& apply);
  void after();

 private:
  Precision precision_;
  Setup& setup_;
  LossScale scale_;
  bool left_out_ = false;
};

}  // namespace troupe::train
