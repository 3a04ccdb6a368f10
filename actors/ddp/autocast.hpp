/// Mixed precision of forwards: while it lives, operations of this thread that gain by it run in a smaller
/// dtype, and those that would lose by it in float32 (PyTorch's lists). Parameters and gradients stay what
/// they are.
///
///   torch::Tensor output;
///   {
///     const troupe::train::Autocast autocast(torch::kCUDA);  // float16; on the CPU bfloat16
///     output = ddp->forward(x);
///   }
///   criterion(output.to(torch::kFloat32), y).backward();
///
/// Guards may be nested; `enabled = false` switches it off for a region. Not around a backward.
#pragma once

#include <torch/types.h>

#include <optional>

#include "actors/ddp/torch_compat.hpp"

namespace troupe::train {

class Autocast {
 public:
  /// `device`: the CPU or CUDA, where the forward computes. `dtype`: bfloat16, or on CUDA float16, too; none:
  /// float16 on CUDA and bfloat16 on the CPU, as in PyTorch. Throws BadConfig for other ones.
  explicit Autocast(torch::DeviceType device = torch::kCPU, std::optional<torch::ScalarType> dtype = {},
                    bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  Autocast(torch::DeviceType device, const AutocastState& state);

  const torch::DeviceType device_;
  const AutocastState before_;
};

}  // namespace troupe::train
