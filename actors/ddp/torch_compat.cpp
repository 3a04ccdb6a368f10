#include "actors/ddp/torch_compat.hpp"

#include <ATen/autocast_mode.h>
#include <torch/version.h>

namespace troupe::train {
namespace {

auto state_key(const torch::Tensor& param) {
#if TORCH_VERSION_MAJOR >= 2
  return static_cast<void*>(param.unsafeGetTensorImpl());
#else
  return c10::guts::to_string(param.unsafeGetTensorImpl());
#endif
}

/// Names a protected member of its base, which C++ allows through the derived class.
struct SchedulerAccess : torch::optim::LRScheduler {
  static constexpr unsigned LRScheduler::*kSteps = &SchedulerAccess::step_count_;
};

}  // namespace

torch::optim::OptimizerParamState* find_param_state(torch::optim::Optimizer& optimizer,
                                                    const torch::Tensor& param) {
  auto& states = optimizer.state();
  const auto found = states.find(state_key(param));
  return found == states.end() ? nullptr : found->second.get();
}

void set_param_state(torch::optim::Optimizer& optimizer, const torch::Tensor& param,
                     std::unique_ptr<torch::optim::OptimizerParamState> state) {
  if (state) {
    optimizer.state()[state_key(param)] = std::move(state);
  } else {
    optimizer.state().erase(state_key(param));
  }
}

unsigned& scheduler_steps(torch::optim::LRScheduler& scheduler) {
  return scheduler.*SchedulerAccess::kSteps;
}

#if TORCH_VERSION_MAJOR >= 2
AutocastState autocast_of(torch::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}
void set_autocast(torch::DeviceType device, const AutocastState& to) {
  at::autocast::set_autocast_enabled(device, to.enabled);
  at::autocast::set_autocast_dtype(device, to.dtype);
}
#else
AutocastState autocast_of(torch::DeviceType device) {
  if (device == torch::kCUDA) return {at::autocast::is_enabled(), at::autocast::get_autocast_gpu_dtype()};
  return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
}
void set_autocast(torch::DeviceType device, const AutocastState& to) {
  if (device == torch::kCUDA) {
    at::autocast::set_enabled(to.enabled);
    at::autocast::set_autocast_gpu_dtype(to.dtype);
    return;
  }
  at::autocast::set_cpu_enabled(to.enabled);
  at::autocast::set_autocast_cpu_dtype(to.dtype);
}
#endif

}  // namespace troupe::train
