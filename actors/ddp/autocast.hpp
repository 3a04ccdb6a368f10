/// Mixed precision of forwards: while it lives, operations of this thread that gain by it run in a smaller
/// dtype, and those that would lose by it in float32 (PyTorch's lists). Parameters and gradients stay what
/// they are.
///
///   torch::Tensor output;
///   {
///     const troupe::train::Autocast autocast;  // bfloat16 on the CPU
///     output = ddp->forward(x);
///   }
///   criterion(output.to(torch::kFloat32), y).backward();
///
/// Guards may be nested; `enabled = false` switches it off for a region. Not around a backward.
#pragma once

#include <torch/types.h>

#include "actors/ddp/torch_compat.hpp"

namespace troupe::train {

class Autocast {
 public:
  /// Throws BadConfig for a dtype that the CPU has no autocast to.
  explicit Autocast(torch::ScalarType dtype = torch::kBFloat16, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  CpuAutocast before_;
};

}  // namespace troupe::train
