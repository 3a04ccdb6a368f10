#include "actors/train/job/apply.hpp"

#include <torch/nn/utils/clip_grad.h>

#include <utility>

namespace troupe::train {

Apply::Apply(Setup& setup, std::int64_t global_step, int in_epoch, StepOptimizer how)
    : step_number(global_step), epoch(in_epoch), setup_(setup), how_(std::move(how)) {}

std::vector<torch::Tensor> Apply::gradients() const {
  std::vector<torch::Tensor> found;
  for (const NamedTensor& parameter : setup_.parameters()) {
    if (parameter.tensor.grad().defined()) found.push_back(parameter.tensor.grad());
  }
  return found;
}

double Apply::clip_grad_norm(double max_norm, double norm_type) {
  std::vector<torch::Tensor> parameters;
  for (const NamedTensor& parameter : setup_.parameters()) parameters.push_back(parameter.tensor);
  const double norm = torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
  count("gradient_norm", norm);
  return norm;
}

double Apply::grad_norm(double norm_type) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> norms;  // added as clip_grad_norm_ adds them
  for (const torch::Tensor& gradient : gradients()) norms.push_back(gradient.norm(norm_type));
  const double norm = norms.empty() ? 0 : torch::stack(norms).norm(norm_type).item<double>();
  count("gradient_norm", norm);
  return norm;
}

void Apply::clip_grad_value(double limit) {
  for (torch::Tensor& gradient : gradients()) gradient.clamp_(-limit, limit);
}

bool Apply::gradients_are_finite() const {
  for (const torch::Tensor& gradient : gradients()) {
    if (!gradient.isfinite().all().item<bool>()) return false;
  }
  return true;
}

bool Apply::skip_if_not_finite() {
  skipped_ = skipped_ || !gradients_are_finite();
  return skipped_;
}

void Apply::step() {
  if (skipped_) return;
  for (const TrainedBy& trained : setup_.optimizers()) how_(*trained.optimizer);
}

void Apply::step(const std::string& name) {
  torch::optim::Optimizer& one = find(name);
  if (!skipped_) how_(one);
}

std::optional<double> learning_rate_of(const torch::optim::Optimizer& optimizer) {
  if (optimizer.param_groups().empty() || !optimizer.param_groups().front().has_options()) return {};
  try {
    return optimizer.param_groups().front().options().get_lr();
  } catch (const c10::Error&) {  // a class of the job's own that does not say it
    return {};
  }
}

torch::optim::Optimizer& Apply::optimizer(const std::string& name) {
  return **given_out_.insert(&find(name)).first;
}

torch::optim::Optimizer& Apply::find(const std::string& name) const {
  std::string names;
  for (const TrainedBy& trained : setup_.optimizers()) {
    if (trained.name == name) return *trained.optimizer;
    names += " '" + trained.name + "'";
  }
  throw BadConfig("the job has no optimizer '" + name + "'", "it has" + (names.empty() ? " none" : names),
                  "name one that setup() made");
}

}  // namespace troupe::train
