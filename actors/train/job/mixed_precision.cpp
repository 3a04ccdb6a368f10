#include "actors/train/job/mixed_precision.hpp"

#include <torch/torch.h>

namespace troupe::train {

MixedPrecision::MixedPrecision(const Precision& precision, Setup& setup)
    : precision_(precision), setup_(setup) {
  (void)autocast();  // throws for a dtype that the device does not have
  if (!precision_.scaler || !precision_.scaler->enabled) {
    precision_.scaler.reset();
    return;
  }
  check(*precision_.scaler);
  scale_.scale = static_cast<float>(precision_.scaler->init_scale);
  setup_.state.add("loss_scale/scale", scale_.scale, ChangedIn::kApply);
  setup_.state.add("loss_scale/growth_tracker", scale_.growth_tracker, ChangedIn::kApply);
}

torch::Tensor MixedPrecision::scaled(const torch::Tensor& loss) const {
  if (!loss.defined()) return loss;
  torch::Tensor value = loss.to(torch::kFloat32);
  if (precision_.scaler && value.requires_grad()) {
    if (value.is_same(loss)) value = loss.view_as(loss);  // a hook on the job's own tensor would stay there
    value.register_hook([scale = static_cast<double>(scale_.scale)](const torch::Tensor& gradient) {
      return gradient * scale;
    });
  }
  return value;
}

void MixedPrecision::before(Apply& apply) {
  if (!precision_.scaler) return;
  const torch::NoGradGuard no_grad;
  const double inverse = scale_.inverse();
  for (const NamedTensor& parameter : setup_.parameters()) {
    torch::Tensor gradient = parameter.tensor.grad();
    if (gradient.defined()) gradient.mul_(inverse);
  }
  left_out_ = apply.skip_if_not_finite();
}

void MixedPrecision::after() {
  if (precision_.scaler) scale_.update(*precision_.scaler, left_out_);
}

}  // namespace troupe::train
