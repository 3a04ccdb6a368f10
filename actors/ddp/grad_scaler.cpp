#include "actors/ddp/grad_scaler.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

/// The gradients of an optimizer's parameters.
std::vector<torch::Tensor> gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> found;
  std::set<const void*> seen;  // a parameter of two modules may be listed twice
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      const bool first = parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second;
      if (first) found.push_back(parameter.grad());
    }
  }
  return found;
}

/// As a float, in which it is kept.
bool is_scale(double scale) {
  const auto kept = static_cast<float>(scale);
  return kept > 0 && std::isfinite(kept);
}

}  // namespace

void check(const GradScalerOptions& options) {
  const auto refuse = [](const char* why, const char* todo) {
    throw BadConfig("cannot make a GradScaler", why, todo);
  };
  if (!is_scale(options.init_scale)) refuse("init_scale is not a positive float", "give 65536");
  if (!(options.growth_factor > 1)) refuse("growth_factor is not above 1", "give 2");
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1))
    refuse("backoff_factor is not between 0 and 1", "give 0.5");
  if (!is_scale(options.max_scale) || options.max_scale < options.init_scale)
    refuse("max_scale is no float from init_scale up", "give 16777216");
  if (options.growth_interval < 1) refuse("growth_interval is below 1", "give 2000");
}

void LossScale::update(const GradScalerOptions& options, bool left_out) {
  if (left_out) {
    scale *= static_cast<float>(options.backoff_factor);
    growth_tracker = 0;
  } else if (++growth_tracker == options.growth_interval) {
    const float larger = scale * static_cast<float>(options.growth_factor);
    // What update() or load() set above it stays.
    if (std::isfinite(larger))
      scale = std::max(scale, std::min(larger, static_cast<float>(options.max_scale)));
    growth_tracker = 0;
  }
}

GradScaler::GradScaler(const GradScalerOptions& options, std::shared_ptr<collectives::ProcessGroup> group)
    : options_(options), group_(std::move(group)) {
  check(options);
  scale_.scale = static_cast<float>(options.init_scale);
}

torch::Tensor GradScaler::scale(const torch::Tensor& loss) {
  if (!options_.enabled) return loss;
  scaled_ = true;
  return loss * static_cast<double>(scale_.scale);
}

void GradScaler::check_scaled(const char* call) const {
  if (scaled_) return;
  throw BadConfig(std::string("cannot call ") + call + " of the GradScaler",
                  "scale() was not called before it", "run backward from scaler.scale(loss)");
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  check_scaled("unscale_()");
  OfOptimizer& of = optimizers_[&optimizer];
  if (of.stage != Stage::kReady) {
    throw BadConfig("cannot call unscale_() of the GradScaler",
                    of.stage == Stage::kUnscaled ? "it was called for this optimizer since the last update()"
                                                 : "step() was called for this optimizer before it",
                    "call it once an iteration, between backward() and step()");
  }
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> gradients = gradients_of(optimizer);
  const double inverse = scale_.inverse();
  std::vector<torch::Tensor> finite;
  for (const torch::Tensor& gradient : gradients) {
    if (gradient.layout() != torch::kStrided) {
      throw BadConfig("cannot unscale gradients", "one is sparse", "make the embedding with sparse(false)");
    }
    if (gradient.scalar_type() == torch::kFloat16) {
      throw BadConfig("cannot unscale gradients", "they are float16",
                      "keep the parameters in float32 and use Autocast around the forward");
    }
  }
  for (const torch::Tensor& gradient : gradients) {
    finite.push_back(torch::isfinite(gradient).all());
    gradient.mul_(inverse);
  }
  // Whether something is inf or NaN, and 1 + the highest rank without a gradient.
  std::array<std::int32_t, 2> found{0, 0};
  if (!finite.empty() && !torch::stack(finite).all().item<bool>()) found[0] = 1;
  if (finite.empty()) found[1] = 1 + (group_ ? group_->rank() : 0);
  if (group_) group_->host_group().all_reduce(found, collectives::ReduceOp::kMax)->wait();
  of = {Stage::kUnscaled, found[0] != 0, found[1] - 1};
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  check_scaled("step()");
  OfOptimizer& of = optimizers_[&optimizer];
  if (of.stage == Stage::kStepped) {
    throw BadConfig("cannot call step() of the GradScaler",
                    "it was called for this optimizer since the last update()",
                    "call update() once an iteration, after the steps");
  }
  if (of.stage == Stage::kReady) unscale_(optimizer);
  if (const int rank = of.without_gradient; rank >= 0) {
    optimizers_.erase(&optimizer);  // as if it had not been called
    throw BadConfig(
        "cannot call step() of the GradScaler",
        "no parameter of this optimizer has a gradient" +
            (group_ ? " on rank " + std::to_string(rank) : std::string()),
        "call zero_grad(), then backward() of a scaled loss that depends on them, and step() again");
  }
  of.stage = Stage::kStepped;
  if (!of.found_inf) optimizer.step();
  return !of.found_inf;
}

void GradScaler::update(std::optional<double> scale) {
  if (!options_.enabled) return;
  check_scaled("update()");
  if (scale) {
    if (!is_scale(*scale)) {
      throw BadConfig("cannot set the scale to " + std::to_string(*scale), "it is not a positive float",
                      "give a power of 2");
    }
    scale_.scale = static_cast<float>(*scale);
    optimizers_.clear();
    return;
  }
  if (optimizers_.empty()) {
    throw BadConfig("cannot call update() of the GradScaler", "no gradient was unscaled since the last one",
                    "call it after unscale_() or step()");
  }
  bool found = false;
  for (const auto& [optimizer, of] : optimizers_) found = found || of.found_inf;
  scale_.update(options_, found);
  optimizers_.clear();
}

void GradScaler::load(const LossScale& state) {
  if (!(state.scale > 0) || !std::isfinite(state.scale) || state.growth_tracker < 0) {
    throw BadConfig("cannot load the state of a GradScaler", "it has no positive scale",
                    "give what state() returned");
  }
  scale_ = state;
}

}  // namespace troupe::train
