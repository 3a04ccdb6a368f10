/// PyTorch's FullyShardedDataParallel (ZeRO-3, and ZeRO-2) for a module of LibTorch's, over a process group:
///
///   auto group = troupe::collectives::init_process_group("native", "env://");
///   troupe::train::FullyShardedDataParallel fsdp(net, group, {.units = {"layers.0", "layers.1"}});
///   torch::optim::AdamW optimizer(fsdp.parameters(), 1e-3);  // after wrapping: over this rank's shards
///   auto loss = criterion(fsdp->forward(x), y);
///   loss.backward();      // each shard's gradient is its mean over the ranks when it returns
///   fsdp.clip_grad_norm_(1.0);
///   optimizer.step();
///
/// The module's code stays as it is. docs/sharding.md has the memory, the bytes and PyTorch's names.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/ddp/fsdp_core.hpp"
#include "actors/ddp/tensors_in.hpp"

namespace troupe::train {

/// `Net`: a module holder (TORCH_MODULE), or a std::shared_ptr of a module. Every rank runs the same forwards
/// and backwards, in the same order, and uses the same units in them. Not thread-safe.
template <class Net>
class FullyShardedDataParallel {
 public:
  /// Collective: checks that module and options are alike on all ranks, takes rank 0's parameters and buffers
  /// and leaves of each parameter that requires a gradient one shard on each rank. Others, and buffers, stay
  /// whole. Throws BadConfig, which names the parameter, for one that units share or that is wrapped already,
  /// units of several types, and a module that is not where the group's buffers are. Outside of forward and
  /// backward the module's parameters are not there: an operator that uses one, or its `.grad`, throws
  /// BadConfig, and so does one that changes one in place, anywhere. After the wrapper's end, too.
  FullyShardedDataParallel(Net net, std::shared_ptr<collectives::ProcessGroup> group,
                           const FsdpOptions& options = {})
      : net_(std::move(net)), core_(std::make_shared<FsdpCore>(module_of(net_), std::move(group), options)) {}

  /// The module's forward. Collective, under torch::NoGradGuard, too. The backward of what it returns is
  /// collective and leaves the mean over the ranks in every shard's `.grad`, added to what is there; a
  /// parameter without a gradient counts as zeros. Throws CollectiveAborted or Timeout; a backward that
  /// throws aborts the group, and so do ranks that use units in different orders, before a `.grad` is set.
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    core_->before_forward();
    try {
      auto output = net_->forward(std::forward<Arguments>(arguments)...);
      core_->after_forward();
      for_each_tensor(output, [this](const torch::Tensor& tensor) { core_->watch(tensor); });
      return output;
    } catch (...) {
      core_->after_forward(/*failed=*/true);
      throw;
    }
  }
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }
  /// fsdp->forward(x), fsdp->train(): as a module holder is used.
  FullyShardedDataParallel* operator->() { return this; }

  /// Ends a no_sync.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<FsdpCore> core)
        : core_(std::move(core)), before_(core_->require_sync(false)) {}
    ~NoSync() { core_->require_sync(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<FsdpCore> core_;
    bool before_;
  };
  /// Gradients of forwards in it are accumulated, whole, on this rank; the first backward after it reduces
  /// their sum. On every rank alike.
  [[nodiscard]] NoSync no_sync() { return NoSync(core_); }

  /// What an optimizer gets: this rank's shard of each unit, of one dimension. Learning rates and the like
  /// are a unit's.
  std::vector<torch::Tensor> parameters() const { return core_->parameters(); }
  /// Names of the units, in the order of parameters(); empty: the root.
  std::vector<std::string> units() const {
    std::vector<std::string> names;
    for (const FlatUnit& unit : core_->units()) names.push_back(unit.name());
    return names;
  }

  /// Collective: scales all gradients down where their norm over all ranks is above `max_norm`. `norm_type`
  /// may be infinity. Returns the norm, the same on every rank.
  double clip_grad_norm_(double max_norm, double norm_type = 2) {
    return core_->clip_grad_norm_(max_norm, norm_type);
  }

  /// Collective: parameters and buffers by the module's own names, whole, on `root`, in the host's memory;
  /// empty elsewhere. Buffers are `root`'s.
  StateDict full_state_dict(int root = 0) { return core_->full_state_dict(root); }
  /// Collective: everybody takes `root`'s state, which may come from any number of ranks, any units, or a
  /// bare module, with or without "module." before every name; it is looked at there alone. Throws BadConfig
  /// on every rank for one of another module.
  void load_full_state_dict(const StateDict& state, int root = 0) {
    core_->load_full_state_dict(state, root);
  }
  /// The same for what an optimizer over parameters() keeps: "fc.weight.exp_avg", "fc.weight.step". Its
  /// options are not in it. Throws BadConfig for an optimizer that was not made over parameters(), or is none
  /// of SGD, Adam, AdamW, RMSprop and Adagrad.
  StateDict full_optimizer_state_dict(torch::optim::Optimizer& optimizer, int root = 0) {
    return core_->full_optimizer_state_dict(optimizer, root);
  }
  void load_full_optimizer_state_dict(torch::optim::Optimizer& optimizer, const StateDict& state,
                                      int root = 0) {
    core_->load_full_optimizer_state_dict(optimizer, state, root);
  }
  /// Not collective: this rank's shards, and how the ranks share the module. What is loaded has to be of the
  /// same module, units, rank and number of ranks: BadConfig says both.
  StateDict local_state_dict() { return core_->local_state_dict(); }
  void load_local_state_dict(const StateDict& state) { core_->load_local_state_dict(state); }

  Net& module() { return net_; }
  void train(bool on = true) { net_->train(on); }
  void eval() { net_->eval(); }
  collectives::ProcessGroup& group() const { return core_->group(); }
  /// Bytes of parameters that are whole on this rank now, and the most so far.
  std::size_t whole_bytes() const { return core_->whole_bytes(); }
  std::size_t max_whole_bytes() const { return core_->max_whole_bytes(); }

 private:
  static std::shared_ptr<torch::nn::Module> module_of(const Net& net) {
    if constexpr (requires { net.ptr(); }) {
      return net.is_empty() ? nullptr : net.ptr();
    } else {
      return net;
    }
  }

  Net net_;
  std::shared_ptr<FsdpCore> core_;
};

}  // namespace troupe::train
