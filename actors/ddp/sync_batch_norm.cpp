#include "actors/ddp/sync_batch_norm.hpp"

#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

using Group = std::shared_ptr<collectives::ProcessGroup>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// All dimensions but that of the channels.
std::vector<std::int64_t> summed(const torch::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

/// [channels] as it lies beside [samples, channels, ...].
torch::Tensor beside(const torch::Tensor& channels, const torch::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return channels.to(input.device(), input.scalar_type()).view(shape);
}

/// Halves are computed in float, as LibTorch's own kernels do.
torch::Tensor widened(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kDouble ? tensor : tensor.to(torch::kFloat);
}

/// The parts of a step are the ranks of a group.
class RanksInStep final : public InStep {
 public:
  explicit RanksInStep(Group group) : group_(std::move(group)) {}
  std::int64_t parts() const override { return group_->size(); }
  torch::Tensor gather(const torch::Tensor& mine) override {
    const auto count = static_cast<std::size_t>(mine.numel());
    torch::Tensor all = torch::empty({group_->size(), mine.numel()}, torch::kDouble);
    group_->host_group()
        .all_gather(
            std::span<const double>(mine.data_ptr<double>(), count),
            std::span<double>(all.data_ptr<double>(), count * static_cast<std::size_t>(group_->size())))
        ->wait();
    return all;
  }

 private:
  Group group_;
};

/// What every part says: [parts, row.numel()] in their order, on the host in double.
torch::Tensor gathered(const torch::Tensor& row, InStep& step) {
  return step.gather(row.to(torch::kCPU, torch::kDouble).contiguous());
}

/// Of all parts together, a channel.
struct Statistics {
  double count = 0;
  torch::Tensor mean;     ///< double, on the host
  torch::Tensor squares;  ///< the sum of (x - mean)^2
};

/// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", over
/// the parts in their order.
Statistics statistics_of(const torch::Tensor& x, InStep& step) {
  const std::int64_t channels = x.size(1);
  const auto count = static_cast<double>(x.numel() / std::max<std::int64_t>(channels, 1));
  torch::Tensor row = torch::zeros({1 + 2 * channels}, torch::kDouble);
  row[0] = count;
  if (count > 0) {
    const auto [variance, mean] = torch::var_mean(x, summed(x), /*unbiased=*/false);
    row.slice(0, 1, 1 + channels).copy_(mean);
    row.slice(0, 1 + channels).copy_(variance).mul_(count);
  }
  const torch::Tensor all = gathered(row, step);
  const torch::Tensor counts = all.select(1, 0);
  const torch::Tensor means = all.slice(1, 1, 1 + channels);
  const torch::Tensor squares = all.slice(1, 1 + channels);
  Statistics total{0, torch::zeros({channels}, torch::kDouble), torch::zeros({channels}, torch::kDouble)};
  for (std::int64_t part = 0; part < step.parts(); ++part) {
    const auto of_part = counts[part].item<double>();
    if (of_part == 0) continue;
    const double sum = total.count + of_part;
    const torch::Tensor apart = means[part] - total.mean;
    total.mean += apart * (of_part / sum);
    total.squares += squares[part] + apart * apart * (total.count * of_part / sum);
    total.count = sum;
  }
  return total;
}

/// A context keeps tensors and values of the interpreter's: the step goes as one of these.
struct HeldStep : torch::CustomClassHolder {
  explicit HeldStep(std::shared_ptr<InStep> held) : step(std::move(held)) {}
  std::shared_ptr<InStep> step;
};

struct Normalize final : torch::autograd::Function<Normalize> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& input,
                               const torch::Tensor& weight, const torch::Tensor& bias, const Statistics& all,
                               double eps, const std::shared_ptr<InStep>& step) {
    const torch::Tensor x = widened(input);
    const torch::Tensor inverse = (all.squares / all.count + eps).rsqrt();
    const torch::Tensor y =
        x.sub(beside(all.mean, x)).mul_(beside(inverse, x)).mul_(beside(weight, x)).add_(beside(bias, x));
    context->save_for_backward({input, weight, all.mean, inverse});
    context->saved_data["count"] = all.count;
    context->saved_data["step"] = c10::IValue::make_capsule(c10::make_intrusive<HeldStep>(step));
    return y.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (torch::GradMode::is_enabled()) {
      throw BadConfig("SyncBatchNorm has no second derivative", "backward() was called with create_graph",
                      "leave create_graph out, or use plain BatchNorm");
    }
    const auto saved = context->get_saved_variables();
    const auto& [input, weight, mean, inverse] = std::tie(saved[0], saved[1], saved[2], saved[3]);
    const double count = context->saved_data["count"].toDouble();
    const torch::Tensor x = widened(input);
    const torch::Tensor dy = widened(gradients[0]);
    const torch::Tensor apart = x.sub(beside(mean, x));
    const std::int64_t channels = x.size(1);
    const torch::Tensor mine =
        torch::cat({dy.sum(summed(x)), dy.mul(apart).sum(summed(x))}).to(torch::kCPU, torch::kDouble);
    const auto held = context->saved_data["step"].toCapsule();
    const torch::Tensor all = gathered(mine, *static_cast<HeldStep&>(*held).step);
    torch::Tensor sums = all[0].clone();
    for (std::int64_t part = 1; part < all.size(0); ++part) sums += all[part];
    const torch::Tensor of_mean = sums.slice(0, 0, channels) / count;
    const torch::Tensor of_deviation = sums.slice(0, channels) / count * inverse * inverse;
    const torch::Tensor scale = inverse * weight.to(torch::kCPU, torch::kDouble);
    const torch::Tensor dx = dy.sub(beside(of_mean, x))
                                 .sub_(apart.mul(beside(of_deviation, x)))
                                 .mul_(beside(scale, x))
                                 .to(input.scalar_type());
    variable_list result(6);  // as many as forward() has arguments
    result[0] = dx;
    result[1] = (mine.slice(0, channels) * inverse).to(weight.options());
    result[2] = mine.slice(0, 0, channels).to(weight.options());
    return result;
  }
};

void update(const SyncBatchNormState& state, const Statistics& all) {
  const auto take = [&](torch::Tensor running, const torch::Tensor& now) {
    if (running.defined()) running.mul_(1 - state.momentum).add_(now.to(running.options()), state.momentum);
  };
  take(state.running_mean, all.mean);
  take(state.running_var, all.squares / (all.count - 1));
}

// Which BatchNorm modules were converted. A module's forward is not virtual, and a net calls it by its own
// member, so no other module can take its place: LibTorch's operator asks here whose tensors it was given.

/// An optional tensor as this LibTorch spells it: the operator's second argument.
template <class>
struct SecondOf;
template <class Result, class First, class Second, class... Others>
struct SecondOf<Result (*)(First, Second, Others...)> {
  using type = std::remove_cvref_t<Second>;
};
using OptionalTensor = SecondOf<decltype(&at::native::batch_norm)>::type;

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct Converted {
  std::weak_ptr<torch::nn::Module> module;
  bool in_step = false;  ///< over the parts of the job's step, whichever it is
  std::weak_ptr<collectives::ProcessGroup> group;
  /// Keeps the address, under which it is found, from being another tensor's.
  Weak tensor;
};

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Converted> converted;
  std::atomic<bool> any{false};  ///< most programs convert none
};
Registry& registry() {
  static auto* const one = new Registry;  // backwards of other threads may outlive static destructors
  return *one;
}

/// A converted module, and over what it normalises.
struct Found {
  std::shared_ptr<torch::nn::Module> module;  ///< null: it was not converted
  bool in_step = false;
  Group group;
};
Found find(const torch::Tensor& tensor) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto at = all.converted.find(tensor.unsafeGetTensorImpl());
  if (at == all.converted.end()) return {};
  return {at->second.module.lock(), at->second.in_step, at->second.group.lock()};
}

/// The parts over which a module normalises; null where it is alone.
std::shared_ptr<InStep> parts_of(const Found& found) {
  if (found.in_step) return InStep::current();
  if (found.group == nullptr) {
    throw BadConfig("a converted BatchNorm has no process group any more", "the group has been destroyed",
                    "keep the group as long as the net trains, or convert the net for another one");
  }
  return std::make_shared<RanksInStep>(found.group);
}

torch::Tensor normalize(const torch::Tensor& input, const SyncBatchNormState& state,
                        const std::shared_ptr<InStep>& step);

/// The tensor by which a BatchNorm is told; undefined: it has none.
const torch::Tensor& key_of(const torch::Tensor& weight, const torch::Tensor& running_mean) {
  return running_mean.defined() ? running_mean : weight;
}

/// Calls `visit(name, module, key)` for each BatchNorm of the tree.
template <class Visit>
void each_batch_norm(const std::shared_ptr<torch::nn::Module>& tree, const Visit& visit) {
  for (const auto& item : tree->named_modules()) {
    const auto& module = item.value();
    const auto take = [&](const auto* norm) {
      if (norm != nullptr) visit(item.key(), module, key_of(norm->weight, norm->running_mean));
    };
    take(module->as<torch::nn::BatchNorm1dImpl>());
    take(module->as<torch::nn::BatchNorm2dImpl>());
    take(module->as<torch::nn::BatchNorm3dImpl>());
  }
}

/// aten::batch_norm of every module, converted or not.
torch::Tensor batch_norm(const torch::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                         const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                         double momentum, double eps, bool cudnn_enabled) {
  if (training && registry().any.load(std::memory_order_acquire)) {
    const auto given = [](const OptionalTensor& tensor) { return tensor ? *tensor : torch::Tensor(); };
    const torch::Tensor key = key_of(given(weight), given(running_mean));
    const Found found = key.defined() ? find(key) : Found{};
    if (found.module != nullptr && found.module->is_training()) {
      if (const auto step = parts_of(found); step != nullptr && step->parts() > 1) {
        return normalize(input,
                         {given(weight), given(bias), given(running_mean), given(running_var), momentum, eps},
                         step);
      }
    }
  }
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                cudnn_enabled);
}

torch::Tensor normalize(const torch::Tensor& input, const SyncBatchNormState& state,
                        const std::shared_ptr<InStep>& step) {
  if (input.dim() < 2) {
    throw BadConfig("cannot normalise over the ranks",
                    "expected at least 2D input (got " + std::to_string(input.dim()) + "D input)",
                    "give [samples, channels, ...]");
  }
  Statistics all;
  {
    const torch::NoGradGuard no_grad;
    all = statistics_of(widened(input), *step);
    if (all.count < 2) {
      std::ostringstream size;
      size << input.sizes();
      throw BadConfig(
          "Expected more than 1 value per channel when training, got input size " + size.str(),
          "all ranks have " + std::to_string(static_cast<std::int64_t>(all.count)) + " a channel together",
          "give more samples, or use eval()");
    }
    update(state, all);
  }
  const auto given = [&](const torch::Tensor& one, double otherwise) {
    if (one.defined()) return one;
    const auto dtype = input.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    return torch::full({input.size(1)}, otherwise, input.options().dtype(dtype).requires_grad(false));
  };
  return Normalize::apply(input, given(state.weight, 1), given(state.bias, 0), all, state.eps, step);
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl("batch_norm", &batch_norm);
}
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) {
  library.impl("batch_norm", &batch_norm);
}

}  // namespace

torch::Tensor sync_batch_norm(const torch::Tensor& input, const SyncBatchNormState& state,
                              const std::shared_ptr<collectives::ProcessGroup>& group) {
  return normalize(input, state, std::make_shared<RanksInStep>(group));
}

void detail::convert_sync_batchnorm(const std::shared_ptr<torch::nn::Module>& module,
                                    const std::shared_ptr<collectives::ProcessGroup>& group, bool in_step) {
  if (module == nullptr || (group == nullptr && !in_step))
    throw BadConfig("cannot convert to SyncBatchNorm", "the module or the group is null", "make both first");
  std::unordered_map<const c10::TensorImpl*, Converted> found;
  each_batch_norm(module, [&](const std::string& name, const auto& norm, const torch::Tensor& key) {
    if (!key.defined()) {
      throw BadConfig("cannot convert '" + name + "' to SyncBatchNorm",
                      "it has neither weight nor running statistics by which it could be told",
                      "call sync_batch_norm() in the forward in its place, or give it one of them");
    }
    found.emplace(key.unsafeGetTensorImpl(), Converted{norm, in_step, group, Weak(key.getIntrusivePtr())});
  });
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  std::erase_if(all.converted, [](const auto& one) { return one.second.module.expired(); });
  for (auto& [key, converted] : found) all.converted.insert_or_assign(key, std::move(converted));
  all.any.store(!all.converted.empty(), std::memory_order_release);
}

SyncedOver synced_over(const std::shared_ptr<torch::nn::Module>& module) {
  SyncedOver over = SyncedOver::kNothing;
  each_batch_norm(module, [&](const std::string&, const auto&, const torch::Tensor& key) {
    const Found found = key.defined() ? find(key) : Found{};
    if (found.module == nullptr || over == SyncedOver::kGroup) return;
    over = found.in_step ? SyncedOver::kLeaves : SyncedOver::kGroup;
  });
  return over;
}

}  // namespace troupe::train
