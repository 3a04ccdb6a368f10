#include "actors/ddp/reduced_parameter.hpp"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstring>
#include <utility>

#include "runtime/core/error.hpp"

namespace troupe::train {

using collectives::DType;

namespace {

DType reducible_dtype(const NamedTensor& parameter, torch::Device device) {
  const torch::Device its = parameter.tensor.device();
  if (its.type() != device.type() ||
      (its.has_index() && device.has_index() && its.index() != device.index())) {
    const std::string where = device.is_cpu() ? "the CPU" : device.str();
    throw BadConfig("parameter " + parameter.name + " cannot be reduced",
                    "it is on " + its.str() + ", not on " + where,
                    (its.is_meta() ? "make the module on " : "keep the whole model on ") + where);
  }
  switch (parameter.tensor.scalar_type()) {
    case torch::kFloat64:
      return DType::kFloat64;
    case torch::kFloat32:
      return DType::kFloat32;
    case torch::kFloat16:
      return DType::kFloat16;
    case torch::kBFloat16:
      return DType::kBFloat16;
    default:
      throw BadConfig("parameter " + parameter.name + " cannot be reduced", "its type is not a real float",
                      "use float64, float32, float16 or bfloat16, or set requires_grad to false");
  }
}

}  // namespace

std::vector<ReducedParameter> reduced_parameters(const std::vector<NamedTensor>& named,
                                                 torch::Device device) {
  std::vector<ReducedParameter> found;
  for (const NamedTensor& parameter : named) {
    if (!parameter.tensor.requires_grad()) continue;
    found.push_back({parameter.name, parameter.tensor, reducible_dtype(parameter, device), 0, 0});
  }
  return found;
}

std::vector<BucketItem> bucket_items(const std::vector<ReducedParameter>& parameters) {
  std::vector<BucketItem> items;
  items.reserve(parameters.size());
  for (const ReducedParameter& parameter : parameters) {
    items.push_back({static_cast<std::size_t>(parameter.tensor.numel()), parameter.dtype});
  }
  return items;
}

std::vector<std::vector<std::string>> names_of(const std::vector<Bucket>& buckets,
                                               const std::vector<ReducedParameter>& parameters) {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets) {
    names.emplace_back();
    for (const Bucket::Member& member : bucket.members) names.back().push_back(parameters[member.item].name);
  }
  return names;
}

void place_in(const std::vector<Bucket>& buckets, std::vector<ReducedParameter>& parameters) {
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (std::size_t m = 0; m < buckets[b].members.size(); ++m) {
      ReducedParameter& parameter = parameters[buckets[b].members[m].item];
      parameter.bucket = b;
      parameter.member = m;
    }
  }
}

struct GradientHooks::Hook final : torch::autograd::FunctionPostHook {
  Hook(const Ready& to_call, std::size_t position) : ready(to_call), index(position) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ready(index);
    return outputs;
  }
  const Ready& ready;
  std::size_t index;
};

GradientHooks::GradientHooks(const std::vector<ReducedParameter>& parameters, Ready ready)
    : ready_(std::move(ready)) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    GradNode accumulator = torch::autograd::impl::grad_accumulator(parameters[i].tensor);
    const std::uintptr_t hook = accumulator->add_post_hook(std::make_unique<Hook>(ready_, i));
    installed_.push_back({std::move(accumulator), hook});
  }
}

GradientHooks::~GradientHooks() {
  for (const Installed& one : installed_) one.accumulator->del_post_hook(one.hook);
}

std::optional<std::size_t> GradientHooks::lost(const std::vector<ReducedParameter>& parameters) const {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto now = torch::autograd::impl::try_get_grad_accumulator(parameters[i].tensor);
    if (now != installed_[i].accumulator) return i;
  }
  return std::nullopt;
}

torch::Tensor view_like(const torch::Tensor& like, void* data, std::shared_ptr<void> owner) {
  const auto options = torch::TensorOptions().dtype(like.scalar_type()).device(like.device());
  auto release = [owner = std::move(owner)](void*) {};
  if (like.is_non_overlapping_and_dense()) {
    return torch::from_blob(data, like.sizes(), like.strides(), std::move(release), options);
  }
  return torch::from_blob(data, like.sizes(), std::move(release), options);
}

bool same_layout(const torch::Tensor& a, const torch::Tensor& b) {
  return a.strides() == b.strides() && a.scalar_type() == b.scalar_type();
}

void put(const torch::Tensor& into, const torch::Tensor& gradient) {
  if (into.is_cpu() && gradient.is_cpu() && same_layout(gradient, into)) {
    if (into.numel() != 0) std::memcpy(into.data_ptr(), gradient.data_ptr(), into.nbytes());
  } else {
    into.copy_(gradient);
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace troupe::train
