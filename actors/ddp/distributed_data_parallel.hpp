/// PyTorch's DistributedDataParallel for a module of LibTorch's, over any process group:
///
///   auto group = troupe::collectives::init_process_group("native", "env://");
///   troupe::train::DistributedDataParallel ddp(net, group, {.find_unused_parameters = true});
///   auto loss = criterion(ddp->forward(x), y);
///   loss.backward();      // gradients are averaged over the ranks when it returns
///   optimizer.step();
///
/// With "nccl" each rank's module is on its GPU, net->to(troupe::train::device_of(*group)), and the host
/// waits for the reduction at the end of backward(): an optimizer never applies what an abort left behind.
/// docs/ddp.md compares it with PyTorch's, name by name.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/ddp/ddp_core.hpp"
#include "actors/ddp/tensors_in.hpp"

namespace troupe::train {

/// While it lives, forwards and their backwards accumulate on this rank alone.
class NoSync {
 public:
  explicit NoSync(std::shared_ptr<DdpCore> core)
      : core_(std::move(core)), before_(core_->require_sync(false)) {}
  ~NoSync() { core_->require_sync(before_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::shared_ptr<DdpCore> core_;
  bool before_;
};

/// `Net`: a module holder (TORCH_MODULE), or a std::shared_ptr of a module. Several may be wrapped over one
/// group; every rank runs their forwards and backwards in the same order. Not thread-safe.
template <class Net>
class DistributedDataParallel {
 public:
  /// Collective: checks that the module is alike on all ranks and takes rank 0's parameters and buffers.
  /// Throws BadConfig, which names the parameter, where something cannot be reduced or differs, is elsewhere
  /// than device_of(group), or is wrapped by another that still lives.
  DistributedDataParallel(Net net, std::shared_ptr<collectives::ProcessGroup> group,
                          const DdpOptions& options = {})
      : net_(std::move(net)), core_(std::make_shared<DdpCore>(module_of(net_), std::move(group), options)) {}

  /// The module's forward. When the backward of what it returns is through, every `.grad` is the mean over
  /// the ranks. The backward throws BadConfig for parameters without a gradient (named), CollectiveAborted or
  /// Timeout. What a backward throws aborts the group, once a gradient was in; what is thrown before that, as
  /// by the forward, may be caught if every rank leaves the step out. If one alone does, or runs a forward
  /// alone, the next backward or forward of all throws CollectiveAborted, which names ranks and forwards.
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    core_->before_forward();
    auto output = net_->forward(std::forward<Arguments>(arguments)...);
    core_->after_forward();
    for_each_tensor(output, [this](const torch::Tensor& tensor) { core_->watch(tensor); });
    return output;
  }
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }
  /// ddp->forward(x), ddp->train(): as a module holder is used.
  DistributedDataParallel* operator->() { return this; }

  /// Backward of a loss that is a sum over `weight` tokens, samples or the like: every `.grad` becomes the
  /// sum over the ranks, divided by the sum of all their weights, as if one rank had all of them. Weights of
  /// backwards in no_sync count with the first one after it; all of them are weighted, on every rank. A rank
  /// without tokens has weight 0, and a loss that still depends on the parameters. Adds a message of 8 bytes.
  /// Throws as a backward does, and BadConfig for a weight that is negative or not finite, weights that are 0
  /// on all ranks, and beside a comm hook.
  void backward(const torch::Tensor& loss_sum, double weight) { core_->backward(loss_sum, weight); }

  /// Gradients are accumulated on this rank until it ends; the first backward after that reduces their sum.
  /// Keep it around forward and backward, on every rank, for as many forwards: else that backward throws
  /// CollectiveAborted on all.
  [[nodiscard]] NoSync no_sync() { return NoSync(core_); }

  /// Runs `body`, which may train on more batches on some ranks than on others: one that is through goes
  /// along with the others' forwards and backwards until all are. Then everybody has the parameters and
  /// buffers of a rank that ran longest. What `body` throws aborts the group.
  template <class Body>
  void join(Body&& body, const JoinOptions& options = {}) {
    core_->join(std::forward<Body>(body), options);
  }

  /// Replaces reduction and averaging. Once, on every rank, before the first forward; throws BadConfig for
  /// anything else, an empty hook, and a hook with state that another module has.
  void register_comm_hook(CommHook hook) { core_->register_comm_hook(std::move(hook)); }

  Net& module() { return net_; }
  std::vector<torch::Tensor> parameters() const { return net_->parameters(); }
  void train(bool on = true) { net_->train(on); }
  void eval() { net_->eval(); }
  collectives::ProcessGroup& group() const { return core_->group(); }
  /// Names of the parameters of each bucket, in the order of reduction.
  std::vector<std::vector<std::string>> buckets() const { return core_->buckets(); }

 private:
  static std::shared_ptr<torch::nn::Module> module_of(const Net& net) {
    if constexpr (requires { net.ptr(); }) {
      return net.is_empty() ? nullptr : net.ptr();
    } else {
      return net;
    }
  }

  Net net_;
  std::shared_ptr<DdpCore> core_;
};

}  // namespace troupe::train
