/// Apex's levels of mixed precision: one letter and digit says what is computed in a smaller dtype, for a
/// module and its optimizer.
///
///   O0  all in float32, scale 1
///   O1  Autocast around the forward, parameters in float32, a dynamic scale
///   O2  the module in the smaller dtype but for BatchNorm, whose parameters stay float32; the optimizer has
///       float32 copies of the others to step (master weights); a dynamic scale
///   O3  the whole module in the smaller dtype, scale 1
///
///   troupe::train::Amp amp(net, optimizer, "O2", {}, group);
///   troupe::train::DistributedDataParallel ddp(net, group);  // afterwards: it takes the module as it is
///   auto loss = criterion(amp.forward(ddp, x), y);
///   amp.scale(loss).backward();
///   amp.unscale();  // optional, before clipping amp.parameters()
///   amp.step();
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/ddp/autocast.hpp"
#include "actors/ddp/grad_scaler.hpp"
#include "actors/ddp/tensors_in.hpp"

namespace troupe::train {

struct AmpOptions {
  /// The smaller dtype: bfloat16, or on CUDA float16, too. None: float16 on CUDA and bfloat16 on the CPU.
  std::optional<torch::ScalarType> dtype;
  /// The dynamic scale of O1 and O2. Apex's: it begins at 2^16 and does not grow beyond 2^24.
  GradScalerOptions scaler{.max_scale = 16'777'216};
};

/// Of one module, one optimizer and one loss. Keeps references to both: they have to outlive it. Not
/// thread-safe.
class Amp {
 public:
  /// `net`: a module holder, or a std::shared_ptr of a module, whose parameters are on one device.
  /// `optimizer` has stepped none of them yet. `group`: whose ranks take rank 0's parameters, and agree on
  /// the steps to leave out; every one makes the same calls, so not within ddp.join(). Throws BadConfig for a
  /// level that there is not, and what `net` and `optimizer` must not be.
  template <class Net>
  Amp(Net& net, torch::optim::Optimizer& optimizer, std::string_view level, const AmpOptions& options = {},
      std::shared_ptr<collectives::ProcessGroup> group = nullptr)
      : Amp(net ? &*net : nullptr, optimizer, level, options, std::move(group), Converts{}) {}
  Amp(const Amp&) = delete;
  Amp& operator=(const Amp&) = delete;

  /// net->forward(arguments...) as the level says: at O1 under Autocast, at O2 and O3 with floating-point
  /// tensors of the arguments in the smaller dtype. Tensors that it returns, alone or in vectors, tuples,
  /// maps and the like, are float32, for the loss; those of a struct stay what they are.
  template <class Net, class... Arguments>
  auto forward(Net& net, Arguments... arguments) const {
    (for_each_tensor(arguments, [this](torch::Tensor& tensor) { tensor = as_input(tensor); }), ...);
    auto output = [&] {
      std::optional<Autocast> autocast;
      if (level_ == 1) autocast.emplace(device_.type(), dtype_);
      return net->forward(std::move(arguments)...);
    }();
    for_each_tensor(output, [](torch::Tensor& tensor) { tensor = as_output(tensor); });
    return output;
  }

  /// For the backward. Throws as GradScaler::scale().
  torch::Tensor scale(const torch::Tensor& loss) { return scaler_.scale(loss); }
  /// Takes the module's gradients to parameters(), without the scale. Once before a step(), if at all.
  void unscale();
  /// In place of the optimizer's: unscale(), unless it was called, and the optimizer's step, unless, at O1
  /// and O2, a gradient of some rank is inf or NaN; then the scale's update, and the gradients of
  /// parameters() are cleared: zero_grad() is not needed. Returns whether it stepped. At O2 the module then
  /// has the master weights' values; a parameter that somebody else changed since, on any rank, is its master
  /// weight first. Throws as GradScaler::step().
  bool step();
  /// Goes on in another group, as after rebuild(). Collective: everybody takes rank 0's parameters() and
  /// scale. Before DistributedDataParallel wraps the module again.
  void use(std::shared_ptr<collectives::ProcessGroup> group);

  /// What the optimizer steps, with the gradients that unscale() left: at O2 the master weights.
  std::vector<torch::Tensor> parameters() const;
  double get_scale() const { return scaler_.get_scale(); }

  /// For a checkpoint, beside the module's buffers and the optimizer's state: parameters() and the scale.
  /// `load` also sets the module's parameters; it throws BadInput for what was saved at another level or of
  /// another module.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  struct Converts {};
  Amp(torch::nn::Module* module, torch::optim::Optimizer& optimizer, std::string_view level,
      const AmpOptions& options, std::shared_ptr<collectives::ProcessGroup> group, Converts);
  /// A parameter of the module, and what the optimizer steps in its place.
  struct Master {
    torch::Tensor parameter;
    torch::Tensor weight;
    std::int64_t version = 0;  ///< of the parameter, as this left it
  };
  void convert(torch::nn::Module& net);
  void take_gradients();
  void take_changes();
  void copy_back();
  torch::Tensor as_input(const torch::Tensor& tensor) const;
  static torch::Tensor as_output(const torch::Tensor& tensor);

  torch::optim::Optimizer& optimizer_;
  const int level_;
  torch::Device device_{torch::kCPU};
  torch::ScalarType dtype_ = torch::kFloat32;
  const GradScalerOptions scaling_;
  std::shared_ptr<collectives::ProcessGroup> group_;
  GradScaler scaler_;
  std::vector<Master> masters_;  ///< O2's
  bool unscaled_ = false;
};

}  // namespace troupe::train
