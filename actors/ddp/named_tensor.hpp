/// A parameter or buffer with its name.
#pragma once

#include <torch/types.h>

#include <string>

namespace troupe::train {

struct NamedTensor {
  std::string name;  ///< as in the module's state dict: "layer1.0.weight"
  torch::Tensor tensor;
};

}  // namespace troupe::train
