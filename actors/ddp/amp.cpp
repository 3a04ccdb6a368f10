#include "actors/ddp/amp.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <string>

#include "actors/ddp/agreement.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

constexpr int kMasterWeights = 2;  // O2

int number_of(std::string_view level) {
  const bool named = level.size() == 2 && level[0] == 'O' && level[1] >= '0' && level[1] <= '3';
  if (named) return level[1] - '0';
  const bool zero = level.size() == 2 && level[0] == '0' && level[1] >= '0' && level[1] <= '3';
  throw BadConfig("there is no level \"" + std::string(level) + "\" of mixed precision",
                  zero ? "it begins with a zero" : "the levels are O0, O1, O2 and O3",
                  zero ? "write the letter O: \"O" + std::string(level.substr(1)) + "\"" : "use one of them");
}

GradScalerOptions scaled_at(int level, GradScalerOptions options) {
  options.enabled = level == 1 || level == kMasterWeights;
  return options;
}

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr || module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr;
}

}  // namespace

Amp::Amp(torch::nn::Module* module, torch::optim::Optimizer& optimizer, std::string_view level,
         const AmpOptions& options, std::shared_ptr<collectives::ProcessGroup> group, Converts)
    : optimizer_(optimizer),
      level_(number_of(level)),
      scaling_(scaled_at(level_, options.scaler)),
      group_(std::move(group)),
      scaler_(scaling_, group_) {
  const auto refuse = [&](const std::string& why, const char* todo) {
    throw BadConfig("cannot train at level " + std::string(level), why, todo);
  };
  if (module == nullptr) refuse("the module is null", "make one");
  torch::nn::Module& net = *module;
  const auto parameters = net.named_parameters();
  if (parameters.is_empty()) refuse("the module has no parameters", "register them in its constructor");
  device_ = parameters.begin()->value().device();
  for (const auto& parameter : parameters) {
    if (parameter->device() != device_)
      refuse("parameter " + parameter.key() + " is on another device than " + parameters.begin()->key(),
             "move the module to one device before");
    if (parameter->is_floating_point() && parameter->scalar_type() != torch::kFloat32)
      refuse("parameter " + parameter.key() + " is " + torch::toString(parameter->scalar_type()),
             "give the module in float32: the level converts it");
  }
  if (!optimizer.state().empty())
    refuse("the optimizer has stepped before", "make it after the optimizer and before the first step");
  {
    const Autocast checked(device_.type(), options.dtype, false);  // throws for a dtype that cannot be
    dtype_ = options.dtype.value_or(device_.is_cuda() ? torch::kFloat16 : torch::kBFloat16);
  }
  if (group_) broadcast_tensors(*group_, this->parameters(), 0);
  if (level_ >= kMasterWeights) convert(net);
  copy_back();
}

void Amp::convert(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  const auto smaller = [&](torch::Tensor& tensor) {
    if (!tensor.is_floating_point()) return;
    torch::Tensor weight;  // one, however often the parameter is listed
    for (auto& group : optimizer_.param_groups()) {
      for (torch::Tensor& stepped : group.params()) {
        if (level_ != kMasterWeights || !stepped.is_same(tensor)) continue;
        if (!weight.defined()) weight = tensor.detach().clone().requires_grad_(tensor.requires_grad());
        stepped = weight;
      }
    }
    if (weight.defined()) masters_.push_back({tensor, weight});
    tensor.mutable_grad() = torch::Tensor();  // of another dtype
    tensor.set_data(tensor.detach().to(dtype_));
  };
  const auto of_module = [&](torch::nn::Module& module) {
    if (level_ == kMasterWeights && is_batch_norm(module)) return;
    for (torch::Tensor& parameter : module.parameters(/*recurse=*/false)) smaller(parameter);
    for (torch::Tensor& buffer : module.buffers(/*recurse=*/false)) smaller(buffer);
  };
  net.apply(of_module);
}

torch::Tensor Amp::as_input(const torch::Tensor& tensor) const {
  const bool casts = level_ >= kMasterWeights && tensor.defined() && tensor.is_floating_point();
  return casts ? tensor.to(dtype_) : tensor;
}

torch::Tensor Amp::as_output(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(torch::kFloat32) : tensor;
}

std::vector<torch::Tensor> Amp::parameters() const {
  std::vector<torch::Tensor> all;
  for (auto& group : optimizer_.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

/// The master weights' are the module's, in float32.
void Amp::take_gradients() {
  const torch::NoGradGuard no_grad;
  for (Master& master : masters_) {
    const torch::Tensor& gradient = master.parameter.grad();
    master.weight.mutable_grad() = gradient.defined() ? gradient.to(torch::kFloat32) : torch::Tensor();
  }
}

void Amp::unscale() {
  if (unscaled_) {
    throw BadConfig("cannot call unscale() of Amp", "it was called since the last step()",
                    "call it once an iteration, between backward() and step()");
  }
  take_changes();
  take_gradients();
  scaler_.unscale_(optimizer_);
  unscaled_ = true;
}

bool Amp::step() {
  if (!unscaled_) unscale();
  unscaled_ = false;
  const bool stepped = scaler_.step(optimizer_);
  scaler_.update();
  if (stepped) copy_back();
  optimizer_.zero_grad();
  for (Master& master : masters_) master.parameter.mutable_grad() = torch::Tensor();
  return stepped;
}

void Amp::copy_back() {
  const torch::NoGradGuard no_grad;
  for (Master& master : masters_) {
    master.parameter.copy_(master.weight);
    master.version = master.parameter._version();
  }
}

/// Parameters that were broadcast, averaged, loaded or set by hand since copy_back(), on some rank: all ranks
/// have them alike then, and are to have their master weights alike.
void Amp::take_changes() {
  if (masters_.empty()) return;
  const torch::NoGradGuard no_grad;
  std::vector<std::uint8_t> changed;
  for (const Master& master : masters_) {
    const bool same = master.parameter._version() == master.version ||
                      torch::equal(master.parameter, master.weight.to(master.parameter.scalar_type()));
    changed.push_back(same ? 0 : 1);
  }
  if (group_) group_->host_group().all_reduce(changed, collectives::ReduceOp::kMax)->wait();
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    if (changed[i] != 0) masters_[i].weight.copy_(masters_[i].parameter);
  }
}

void Amp::use(std::shared_ptr<collectives::ProcessGroup> group) {
  LossScale scale = scaler_.state();
  if (group) {
    broadcast_tensors(*group, parameters(), 0);
    std::array<double, 2> its{scale.scale, static_cast<double>(scale.growth_tracker)};
    group->host_group().broadcast(its, 0)->wait();
    scale = {static_cast<float>(its[0]), static_cast<int>(its[1])};
  }
  group_ = std::move(group);
  scaler_ = GradScaler(scaling_, group_);
  scaler_.load(scale);
  unscaled_ = false;
  copy_back();
}

void Amp::save(torch::serialize::OutputArchive& archive) const {
  archive.write("level", c10::IValue(std::int64_t{level_}));
  archive.write("scale", c10::IValue(static_cast<double>(scaler_.state().scale)));
  archive.write("growth_tracker", c10::IValue(std::int64_t{scaler_.state().growth_tracker}));
  const auto all = parameters();
  archive.write("parameters", c10::IValue(static_cast<std::int64_t>(all.size())));
  for (std::size_t i = 0; i < all.size(); ++i) archive.write(std::to_string(i), all[i].detach());
}

void Amp::load(torch::serialize::InputArchive& archive) {
  const auto refuse = [](const std::string& why) {
    throw_error({ErrorCode::kBadInput, "cannot load the state of Amp", why,
                 "give what save() wrote for this module and level"});
  };
  const auto value_of = [&](const char* name) {
    c10::IValue value;
    if (!archive.try_read(name, value)) refuse(std::string("it has no ") + name);
    return value;
  };
  const c10::IValue level = value_of("level"), scale = value_of("scale"), count = value_of("parameters");
  const c10::IValue growth_tracker = value_of("growth_tracker");
  if (!level.isInt() || !scale.isDouble() || !growth_tracker.isInt() || !count.isInt())
    refuse("a number in it is none");
  if (level.toInt() != level_)
    refuse("it was saved at O" + std::to_string(level.toInt()) + ", and this is O" + std::to_string(level_));
  const auto all = parameters();
  if (count.toInt() != static_cast<std::int64_t>(all.size()))
    refuse("it has " + std::to_string(count.toInt()) + " parameters and not " + std::to_string(all.size()));
  std::vector<torch::Tensor> loaded(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool read = archive.try_read(std::to_string(i), loaded[i]);
    if (!read || loaded[i].sizes() != all[i].sizes() || loaded[i].scalar_type() != all[i].scalar_type())
      refuse("parameter " + std::to_string(i) + " has another shape or dtype");
  }
  scaler_.load({static_cast<float>(scale.toDouble()), static_cast<int>(growth_tracker.toInt())});
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < all.size(); ++i) torch::Tensor(all[i]).copy_(loaded[i]);
  copy_back();
}

}  // namespace troupe::train
