/// All that an optimizer keeps, by itself: to send it, or to keep a copy.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <string>
#include <vector>

#include "actors/ddp/agreement.hpp"
#include "actors/ddp/optimizer_state.hpp"

namespace troupe::train {

struct OptimizerSnapshot {
  std::vector<std::vector<OptimizerField>> fields;  ///< by parameter, in the order of groups
  std::vector<OptimizerField> options;              ///< but the learning rates
  torch::Tensor rates;                              ///< float64, one a group

  /// All tensors, in a fixed order: to copy, move or write them, in place.
  std::vector<torch::Tensor*> tensors();
};

/// What a snapshot is of: the optimizer's kind, its groups and parameters. Throws BadConfig for an optimizer
/// that is none of SGD, Adam, AdamW, RMSprop and Adagrad.
std::vector<Fact> facts_of(torch::optim::Optimizer& optimizer);

/// Its tensors alias the optimizer's.
OptimizerSnapshot snapshot_of(torch::optim::Optimizer& optimizer);
/// Keeps the fields' tensors. REQUIRES: of an optimizer with the same facts.
void install(torch::optim::Optimizer& optimizer, const OptimizerSnapshot& snapshot);

/// Names, dtypes and shapes of the fields.
std::string text_of(const OptimizerSnapshot& snapshot);
/// A snapshot of `like`'s options whose fields are empty tensors, as `text` says, on the CPU. Errors:
/// BadInput for a text that is cut off, or has a field that does not fit its parameter.
OptimizerSnapshot snapshot_for(torch::optim::Optimizer& like, const std::string& text);

}  // namespace troupe::train
