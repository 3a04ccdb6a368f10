/// What ranks have to have alike before they train one module together, and how they get it.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "actors/ddp/named_tensor.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// One thing that has to be the same on every rank.
struct Fact {
  std::string name;   ///< "parameter fc.weight", "option static_graph"
  std::string value;  ///< "float32 [10, 512]"
};

/// Of a tensor: dtype, shape, strides where they are not row-major, whether it requires a gradient.
Fact fact_of(const char* kind, const NamedTensor& tensor);

/// Collective. Throws BadConfig on every rank, naming the first difference and two ranks, where the facts
/// differ; the group stays good.
void check_agreement(collectives::ProcessGroup& group, const std::vector<Fact>& facts);

/// Collective: `root`'s text on every rank, of up to 64 MiB.
std::string broadcast_text(collectives::ProcessGroup& group, std::string text, int root);

/// Collective: the values of `root`'s tensors in everybody's, which are of the same shapes. In pieces of 4
/// MiB.
void broadcast_tensors(collectives::ProcessGroup& group, const std::vector<torch::Tensor>& tensors, int root);

}  // namespace troupe::train
