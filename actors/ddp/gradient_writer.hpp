/// Gets the gradients of a backward into their slots of a bucket: autograd has written them there already
/// (gradient_placement.hpp), or they are copied, now or once the slot is free.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "actors/ddp/gradient_placement.hpp"
#include "actors/ddp/reduced_parameter.hpp"

namespace troupe::train {

/// Used by one thread, in which the backward runs.
class GradientWriter {
 public:
  /// `place`: whether autograd is to write gradients into their slots, which it can on the CPU.
  GradientWriter(const std::vector<ReducedParameter>& parameters, bool place);

  /// Where gradients of the backward that begins are wanted: one slot a parameter, without memory for one
  /// that may not be placed. They stay until the next begin().
  void begin(const std::vector<GradientPlacement::Slot>& slots);
  /// The backward is over, or given up.
  void end();
  /// Drops what is deferred.
  void forget() { deferred_.clear(); }

  /// Puts the gradient into `into`. False: that has to wait for take_deferred(), since another tensor of the
  /// backward lives there.
  bool write(std::size_t parameter, torch::Tensor gradient, const torch::Tensor& into);
  /// After the backward: `into(index)` is the slot, `done(index)` is called when it is filled. Throws
  /// BadConfig for a slot in which a tensor still lives.
  void take_deferred(const std::function<const torch::Tensor&(std::size_t)>& into,
                     const std::function<void(std::size_t)>& done);

 private:
  struct Deferred {
    std::size_t index = 0;
    torch::Tensor gradient;
  };
  const std::vector<ReducedParameter>& parameters_;
  bool place_;
  GradientPlacement placement_;
  std::vector<Deferred> deferred_;  ///< gradients whose slot another tensor of the backward lives in
};

}  // namespace troupe::train
