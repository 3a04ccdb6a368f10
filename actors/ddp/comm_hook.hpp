/// What reduces a bucket of gradients in place of the mean over the ranks.
///
///   ddp.register_comm_hook(troupe::train::bf16_compress());
///   ddp.register_comm_hook([](troupe::train::GradBucket bucket, troupe::collectives::ProcessGroup& group) {
///     auto work = group.all_reduce(troupe::train::buffer_of(bucket.buffer),
///     troupe::collectives::ReduceOp::kSum); return [=, size = group.size()] { work->wait();
///     bucket.buffer.div_(size); };
///   });
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/process_group.hpp"

namespace troupe::train {

/// Gradients that are reduced together.
struct GradBucket {
  std::size_t index = 0;                 ///< from 0, in the order of reduction
  bool is_last = false;                  ///< of this backward
  torch::Tensor buffer;                  ///< one dimension; between gradients there may be zeros
  std::vector<torch::Tensor> gradients;  ///< parts of it, shaped as their parameters
};

/// Called during the backward when the bucket is complete, in the order of buckets: launches operations. What
/// it returns is called after the backward, again in the order of buckets: it waits for them and leaves the
/// result, mean included, in bucket.buffer; it must not be empty. Both launch the same operations on every
/// rank. What they throw ends the backward and aborts the group. On a GPU both run with the device's default
/// stream as the current one: wait() of a Work makes that stream wait, and nothing has to wait on the host.
using CommHook = std::function<std::function<void()>(GradBucket bucket, collectives::ProcessGroup& group)>;

/// A hook that keeps state from step to step, which belongs to one wrapped module: register_comm_hook refuses
/// it by its name for a second one. `is_local`: whether the step that begins reduces over fewer ranks than
/// the group has, so that nothing else has to meet all of them either; the same on every rank. Null: never.
CommHook for_one_module(std::string name, CommHook hook, std::function<bool()> is_local = nullptr);
/// Notes that a module has the hook. Throws BadConfig for one of for_one_module's that had one before.
void take_hook(const CommHook& hook);
/// Its `is_local`; false for other hooks.
bool is_local(const CommHook& hook);

/// Where the tensors are that a group takes: move a module there before it is wrapped.
torch::Device device_of(const collectives::ProcessGroup& group);
/// A dense tensor as a group takes it; on a GPU, as the device's default stream leaves it. Throws BadConfig
/// for a dtype that no group has.
collectives::Buffer buffer_of(const torch::Tensor& tensor);
/// Broadcasts `root`'s. Throws as the group does, when no device is at the tensor any more.
void broadcast_tensor(collectives::ProcessGroup& group, const torch::Tensor& tensor, int root);

/// The mean over the ranks: what is done without a hook.
CommHook allreduce();
/// Cast, divided by the number of ranks, summed in that dtype, cast back (PyTorch's fp16_compress_hook).
CommHook fp16_compress();
CommHook bf16_compress();

/// PyTorch's PowerSGDState, with its defaults.
struct PowerSgdOptions {
  int matrix_approximation_rank = 1;
  int start_iteration = 1000;  ///< the steps before it are all-reduced; at least 2 with what follows
  double min_compression_rate = 2;
  bool use_error_feedback = true;
  bool warm_start = true;
  double orthogonalization_epsilon = 0;
  std::uint32_t random_seed = 0;
};
/// Low-rank compression (Vogels et al. 2019; PyTorch's powerSGD_hook, number for number): each gradient M
/// with enough to gain travels as P and Q with M = P Q^T. Its state belongs to one wrapped module
/// (for_one_module). Throws BadConfig for options that make no sense.
CommHook power_sgd(PowerSgdOptions options = {});

}  // namespace troupe::train
