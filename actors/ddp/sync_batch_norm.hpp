/// BatchNorm over the samples of all ranks of a process group: torch.nn.SyncBatchNorm.
///
///   auto net = troupe::train::convert_sync_batchnorm(ConvNet(), group);
///   troupe::train::DistributedDataParallel ddp(net, group);
///
/// or over the logical ranks of a job, in its struct:
///
///   ConvNet model() const { return troupe::train::convert_sync_batchnorm(ConvNet()); }
///
/// In training each forward gathers every rank's (count, mean, sum of squared differences), each backward
/// (sum dy, sum dy * (x - mean)), and each rank combines them in rank order: the same bits on every rank.
/// Counts may differ, and be 0. Every rank runs the same of these forwards and backwards, in the same order.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <utility>

#include "actors/ddp/in_step.hpp"
#include "collectives/process_group.hpp"

namespace troupe::train {

/// What a BatchNorm module has, for sync_batch_norm(). An undefined tensor: it has none.
struct SyncBatchNormState {
  torch::Tensor weight{};
  torch::Tensor bias{};
  torch::Tensor running_mean{};  ///< updated in place
  torch::Tensor running_var{};
  double momentum = 0.1;  ///< of the new values in the running statistics
  double eps = 1e-5;
};

/// [samples, channels, ...] normalised by the mean and variance of each channel over all ranks. Collective,
/// and so is its backward, which gives this rank's gradients: weight and bias have their sum over the ranks
/// in common, as those of other layers do. Throws BadConfig with PyTorch's words where the ranks have fewer
/// than two values a channel together, on every rank. It has no second derivative.
torch::Tensor sync_batch_norm(const torch::Tensor& input, const SyncBatchNormState& state,
                              const std::shared_ptr<collectives::ProcessGroup>& group);

namespace detail {
void convert_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module,
                            const std::shared_ptr<collectives::ProcessGroup>& group, bool in_step);
template <class Net>
Net convert_sync_batchnorm(Net net, const std::shared_ptr<collectives::ProcessGroup>& group, bool in_step) {
  if constexpr (requires { net.ptr(); }) {
    convert_sync_batchnorm(net.ptr(), group, in_step);
  } else {
    convert_sync_batchnorm(std::shared_ptr<torch::nn::Module>(net), group, in_step);
  }
  return net;
}
}  // namespace detail

/// From now on every BatchNorm1d, 2d and 3d below the module (or it itself) normalises over the ranks of
/// `group` in training mode. Modules stay as they are: their names, parameters, buffers and mode, and a net's
/// own members, since what such a module calls is what changes. In evaluation mode it is plain BatchNorm; a
/// clone of the module is one, too. A group of one rank changes nothing.
///
/// `group` must live as long as the net trains. A BatchNorm whose tensors are replaced later (not: loaded,
/// moved or converted) is to be converted again. LibTorch itself refuses a rank with one value a channel,
/// [1, C], before this is asked: sync_batch_norm() takes it. Throws BadConfig for one that has neither weight
/// nor running statistics, by which it could be told.
template <class Net>
Net convert_sync_batchnorm(Net net, const std::shared_ptr<collectives::ProcessGroup>& group) {
  return detail::convert_sync_batchnorm(std::move(net), group, false);
}

/// The same over the logical ranks of the job whose model() or setup() converts it. Outside of a job's steps
/// it is plain BatchNorm. docs/training.md says what it asks of a trainer.
template <class Net>
Net convert_sync_batchnorm(Net net) {
  return detail::convert_sync_batchnorm(std::move(net), nullptr, true);
}

/// What the converted BatchNorms below a module normalise over: kGroup if any does so over a group.
enum class SyncedOver { kNothing, kLeaves, kGroup };
SyncedOver synced_over(const std::shared_ptr<torch::nn::Module>& module);
/// Whether a BatchNorm below the module was converted.
inline bool has_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module) {
  return synced_over(module) != SyncedOver::kNothing;
}

}  // namespace troupe::train
