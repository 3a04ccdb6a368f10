/// What differs between the LibTorch releases that we build with (1.13 and 2.x), or is out of reach in both.
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/version.h>

#include <memory>
#include <utility>

// c10::Allocator: allocate() is const in 1.13, and copy_data() is pure in 2.x and not there in 1.13.
#if TORCH_VERSION_MAJOR >= 2
#define TROUPE_ALLOCATE_CONST
#define TROUPE_COPY_DATA_OVERRIDE override
#else
#define TROUPE_ALLOCATE_CONST const
#define TROUPE_COPY_DATA_OVERRIDE
#endif

namespace troupe::train {

/// Owns a node of the autograd graph: a shared_ptr in 1.13, an intrusive_ptr in 2.13.
using GradNode = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));

/// The optimizer's state of one parameter, or null before its first step. (Keyed by a string in 1.13 and by a
/// pointer in 2.x.)
torch::optim::OptimizerParamState* find_param_state(torch::optim::Optimizer& optimizer,
                                                    const torch::Tensor& param);

/// Replaces the state of one parameter; null removes it.
void set_param_state(torch::optim::Optimizer& optimizer, const torch::Tensor& param,
                     std::unique_ptr<torch::optim::OptimizerParamState> state);

/// How often the scheduler has stepped: all that it keeps beside the learning rates. LibTorch has no
/// accessor.
unsigned& scheduler_steps(torch::optim::LRScheduler& scheduler);

/// Autocast of a device (the CPU or CUDA), in this thread: what it is, and another. (A function a device in
/// 1.13, one for all in 2.x.)
struct AutocastState {
  bool enabled = false;
  torch::ScalarType dtype = torch::kBFloat16;
};
AutocastState autocast_of(torch::DeviceType device);
void set_autocast(torch::DeviceType device, const AutocastState& to);

}  // namespace troupe::train
