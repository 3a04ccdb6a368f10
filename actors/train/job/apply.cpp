#include "actors/train/job/apply.hpp"

#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::train {

Apply::Apply(Setup& setup, std::int64_t global_step, int in_epoch, StepOptimizer how, GradientsOfAll of_all)
    : step_number(global_step),
      epoch(in_epoch),
      setup_(setup),
      how_(std::move(how)),
      of_all_(std::move(of_all)) {}

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
  const double norm = of_all_.norms ? clip_parts(max_norm, norm_type)
                                    : torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
  count("gradient_norm", norm);
  return norm;
}

/// As torch does it, operation by operation, so that the bits are the same.
double Apply::clip_parts(double max_norm, double norm_type) const {
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> norms = of_all_.norms(norm_type);
  if (norms.empty()) return 0;
  torch::Tensor total = norms.front();
  if (norm_type == 0) {
    total = torch::full({}, static_cast<double>(norms.size()));
  } else if (norms.size() > 1) {
    total = std::isinf(norm_type) ? torch::max(torch::stack(norms)) : torch::stack(norms).norm(norm_type);
  }
  const torch::Tensor factor = torch::clamp_max(max_norm / (total + 1e-6), 1.0);
  for (torch::Tensor& gradient : gradients()) gradient.mul_(factor);
  return total.item<double>();
}

double Apply::grad_norm(double norm_type) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> norms;  // added as clip_grad_norm_ adds them
  if (of_all_.norms) {
    norms = of_all_.norms(norm_type);
  } else {
    for (const torch::Tensor& gradient : gradients()) norms.push_back(gradient.norm(norm_type));
  }
  const double norm = norms.empty() ? 0 : torch::stack(norms).norm(norm_type).item<double>();
  count("gradient_norm", norm);
  return norm;
}

void Apply::count_parameters() {
  const torch::NoGradGuard no_grad;
  std::vector<NamedTensor> trained = setup_.parameters();
  std::erase_if(trained, [](const NamedTensor& one) { return !one.tensor.requires_grad(); });
  if (trained.empty()) return;
  complete();
  std::vector<torch::Tensor> norms;
  if (of_all_.parameter_norms) {
    norms = of_all_.parameter_norms();
  } else {
    for (const NamedTensor& one : trained) norms.push_back(one.tensor.norm(2));
  }
  for (std::size_t i = 0; i < trained.size(); ++i)
    count("parameter_norm/" + trained[i].name, norms.at(i).item<double>());
  for (torch::Tensor& norm : norms) norm = norm.to(torch::kFloat64);
  count("parameter_norm", torch::stack(norms).norm(2).item<double>());
}

void Apply::clip_grad_value(double limit) {
  for (torch::Tensor& gradient : gradients()) gradient.clamp_(-limit, limit);
}

bool Apply::gradients_are_finite() const {
  const std::vector<torch::Tensor> mine = gradients();
  const bool finite = std::all_of(mine.begin(), mine.end(), [](const torch::Tensor& gradient) {
    return gradient.isfinite().all().item<bool>();
  });
  return of_all_.all ? of_all_.all(finite) : finite;
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

/// In their order, the same on every trainer.
void Apply::complete() const {
  if (!of_all_.complete) return;
  for (const TrainedBy& trained : setup_.optimizers()) {
    if (given_out_.contains(trained.optimizer)) of_all_.complete(*trained.optimizer);
  }
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
