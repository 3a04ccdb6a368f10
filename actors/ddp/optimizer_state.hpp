/// The state that an optimizer keeps, as named fields: SGD, Adam, AdamW, RMSprop and Adagrad.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/core/result.hpp"

namespace troupe::train {

/// A field of one parameter's state: "momentum_buffer", or a counter as an int64 scalar: "step".
struct OptimizerField {
  std::string name;
  torch::Tensor tensor;
};

/// Whether it is one of the five itself, all of which compute a parameter from its own gradient and state
/// alone. A class that derives from one may do anything.
bool steps_elementwise(const torch::optim::Optimizer& optimizer);

/// The fields of `param`, in a fixed order; empty before the optimizer's first step, and for one that is
/// neither of the five nor derives from one. Tensors alias the optimizer's memory.
std::vector<OptimizerField> optimizer_fields(torch::optim::Optimizer& optimizer, const torch::Tensor& param);

/// A state of the optimizer's kind made of `fields`, whose tensors it keeps; null for no field. Errors:
/// kBadInput for a field that the optimizer does not have, or one that it needs and is missing.
Result<std::unique_ptr<torch::optim::OptimizerParamState>> make_optimizer_state(
    torch::optim::Optimizer& optimizer, const std::vector<OptimizerField>& fields);

/// Every option but the learning rates, which user code may change while it trains: a row a parameter group.
std::vector<OptimizerField> optimizer_options(torch::optim::Optimizer& optimizer);
/// REQUIRES: `options` has the names, types and shapes of optimizer_options().
void set_optimizer_options(torch::optim::Optimizer& optimizer, const std::vector<OptimizerField>& options);

/// Learning rate of each parameter group.
std::vector<double> learning_rates(torch::optim::Optimizer& optimizer);
/// REQUIRES: one rate a group.
void set_learning_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);

}  // namespace troupe::train
