/// Horovod's broadcast_parameters, broadcast_optimizer_state and broadcast_object: what one rank has, on
/// every rank of a process group. All are collective, and throw as the group's operations do.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::train {

/// The values of `root`'s tensors in everybody's. Throws BadConfig where names, dtypes or shapes differ,
/// naming the first and two ranks.
void broadcast_parameters(const torch::OrderedDict<std::string, torch::Tensor>& named,
                          collectives::ProcessGroup& group, int root = 0);
/// Parameters and buffers.
void broadcast_parameters(const torch::nn::Module& module, collectives::ProcessGroup& group, int root = 0);

/// The state that `root`'s optimizer has, its learning rates and other options, in everybody's: SGD, Adam,
/// AdamW, RMSprop, Adagrad. State that the others have and `root` does not is dropped. Throws BadConfig for
/// another optimizer, and where kinds, groups or parameters differ.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, collectives::ProcessGroup& group,
                               int root = 0);

/// `root`'s bytes, of up to 64 MiB.
std::string broadcast_object(std::string bytes, collectives::ProcessGroup& group, int root = 0);
/// `root`'s value: a number, or a struct without pointers.
template <class T>
requires std::is_trivially_copyable_v<T> T broadcast_object(T value, collectives::ProcessGroup& group,
                                                            int root = 0) {
  const std::span bytes(reinterpret_cast<std::uint8_t*>(&value), sizeof value);
  group.host_group().broadcast(bytes, root)->wait();
  return value;
}

}  // namespace troupe::train
