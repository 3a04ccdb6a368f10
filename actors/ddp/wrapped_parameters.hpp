/// What every wrapper of a module looks at first, and which parameters are wrapped in this process: two
/// wrappers of one would both reduce its gradient.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/ddp/named_tensor.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// Throws BadConfig without a module or a group, and for a group of logical ranks.
void check_wrappable(const std::shared_ptr<torch::nn::Module>& module,
                     const std::shared_ptr<collectives::ProcessGroup>& group);

/// Throws BadConfig for what of the module is elsewhere than the group's buffers on this rank.
void check_devices(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers,
                   const collectives::ProcessGroup& group);

/// By their names in the state dict; a tensor that is there twice by its first name.
std::vector<NamedTensor> once_each(const torch::OrderedDict<std::string, torch::Tensor>& named);

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
