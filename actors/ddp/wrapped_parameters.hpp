/// Which parameters are wrapped in this process: two wrappers of one would both reduce its gradient.
#pragma once

#include <vector>

#include "actors/ddp/named_tensor.hpp"

namespace troupe::train {

/// Holds the parameters for as long as it lives. Thread-safe.
class WrappedParameters {
 public:
  /// Those that require a gradient. Throws BadConfig, with the name, for one that another wrapper holds.
  explicit WrappedParameters(const std::vector<NamedTensor>& parameters);
  ~WrappedParameters();
  WrappedParameters(const WrappedParameters&) = delete;
  WrappedParameters& operator=(const WrappedParameters&) = delete;

 private:
  std::vector<torch::Tensor> held_;
};

}  // namespace troupe::train
