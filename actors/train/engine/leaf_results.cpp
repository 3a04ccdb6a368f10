#include "actors/train/engine/leaf_results.hpp"

namespace troupe::train {

void LeafResults::add(const torch::Tensor& loss, Leaf& at) {
  One one;
  one.result.weight = at.weight();
  one.result.figures = std::move(at.figures());
  if (device_.is_cpu()) {
    one.result.loss = loss.item<double>();
    leaves_.push_back(std::move(one));
    return;
  }
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> values{loss.detach().reshape({}).to(torch::kFloat64)};
  for (const auto& [place, sum] : at.sums_on_device()) {
    one.places.push_back(place);
    values.push_back(sum.detach().reshape({}).to(torch::kFloat64));
  }
  const auto count = static_cast<std::int64_t>(values.size());
  one.values = torch::empty({count}, torch::TensorOptions(torch::kFloat64).pinned_memory(device_.is_cuda()));
  one.values.copy_(torch::stack(values), /*non_blocking=*/true);
  one.copied = streams_.here();
  leaves_.push_back(std::move(one));
}

std::vector<LeafResult> LeafResults::all(const std::function<void()>& look) const {
  std::vector<LeafResult> results;
  for (const One& one : leaves_) {
    LeafResult result = one.result;
    if (one.values.defined()) {
      DeviceStreams::wait(one.copied, look);
      const auto* values = one.values.data_ptr<double>();
      result.loss = values[0];
      for (std::size_t i = 0; i < one.places.size(); ++i) result.figures[one.places[i]].sum = values[i + 1];
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace troupe::train
