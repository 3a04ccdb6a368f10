/// PyTorch's DataParallel for a module of LibTorch's: one process, and a replica of the module on each
/// device.
///
///   troupe::train::DataParallel dp(net, {.device_ids = {2, 3}});  // or {.replicas = 2}, on the CPU
///   auto loss = criterion(dp->forward(x), y);
///   loss.backward();  // gradients are in net's parameters
///   optimizer.step();
///
/// docs/data-parallel.md compares it with PyTorch's, name by name.
#pragma once

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/ddp/data_parallel_core.hpp"
#include "actors/ddp/scatter_gather.hpp"

namespace troupe::train {

/// `Net`: a module holder (TORCH_MODULE), or a std::shared_ptr of a module. With several devices the module
/// is cloned: it derives from torch::nn::Cloneable. Not thread-safe.
template <class Net>
class DataParallel {
 public:
  /// Throws BadConfig for devices that do not exist, a null module, and one that cannot be cloned.
  explicit DataParallel(Net net, const DataParallelOptions& options = {})
      : net_(std::move(net)),
        options_(options),
        devices_(devices_of(options, cuda_devices())),
        output_device_(options.output_device.value_or(devices_.front())) {
    check_module(impl().get());
    if (devices_.size() > 1) replica_on(devices_[1]);
  }

  /// Every tensor in the arguments is cut up along dim, the module's forward runs on each device with its
  /// chunk, and what the replicas return is put together along dim on output_device; scalars become a vector
  /// of one a device. Tensors without dimensions, and arguments that are no container of tensors, go to all
  /// as they are. With one device the module is called as it is, with whole tensors.
  ///
  /// What forward returns: tensors, numbers, enums and strings, alone or in vectors, arrays, pairs, tuples,
  /// maps and optionals; what is no tensor comes from the first replica. Anything else does not compile.
  ///
  /// The first device runs the module itself, so changes of its buffers stay; those of the other replicas are
  /// lost. Throws BadInput for batches that do not fit together, BadConfig for a module that is not on the
  /// first device, and TaskFailed for what a forward threw, with the replica, its device and its samples, and
  /// what it threw nested (with one device: that itself).
  template <class... Arguments>
  auto forward(const Arguments&... arguments) {
    using Output = std::decay_t<decltype(impl()->forward(std::declval<Arguments&>()...))>;
    static_assert(
        can_gather<Output>(),
        "DataParallel: the module's forward returns a type whose tensors would be lost. Return tensors, "
        "numbers, enums and strings, alone or in vectors, arrays, pairs, tuples, maps and optionals: "
        "in place of a struct of your own a std::tuple of its fields");
    check_on(*impl(), devices_.front());
    if (devices_.size() == 1) return run_whole<Output>(arguments...);
    const std::vector<Chunk> chunks = chunks_for(arguments...);
    std::vector<decltype(impl())> replicas{impl()};
    std::vector<std::tuple<Arguments...>> inputs;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (i > 0) replicas.push_back(replica_on(devices_[i]));
      inputs.emplace_back(scatter(arguments, options_.dim, chunks[i], devices_[i])...);
    }
    std::vector<std::optional<Output>> outputs(chunks.size());
    on_each_device(devices_, chunks, [&](std::size_t i) {
      std::apply([&](auto&... parts) { outputs[i].emplace(replicas[i]->forward(parts...)); }, inputs[i]);
    });
    std::vector<const Output*> parts;
    for (const auto& output : outputs) parts.push_back(&*output);
    return gather(parts, options_.dim, output_device_);
  }
  template <class... Arguments>
  auto operator()(const Arguments&... arguments) {
    return forward(arguments...);
  }
  /// dp->forward(x), dp->train(): as a module holder is used.
  DataParallel* operator->() { return this; }

  Net& module() { return net_; }
  std::vector<torch::Tensor> parameters() const { return impl()->parameters(); }
  void train(bool on = true) { impl()->train(on); }
  void eval() { impl()->eval(); }
  const std::vector<torch::Device>& devices() const { return devices_; }

  /// torch::save(dp, file): the module's own names, as torch::save(net, file).
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                     const DataParallel& dp) {
    dp.impl()->save(archive);
    return archive;
  }
  /// torch::load(dp, file): of the module's own names, or each with `module.` in front. Throws as
  /// torch::load(net, file).
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                    DataParallel& dp) {
    load_module(*dp.impl(), archive);
    return archive;
  }

 private:
  auto impl() const {
    if constexpr (requires { net_.ptr(); }) {
      return net_.is_empty() ? std::decay_t<decltype(net_.ptr())>() : net_.ptr();
    } else {
      return net_;
    }
  }

  auto replica_on(torch::Device device) const {
    using Impl = typename decltype(impl())::element_type;
    auto replica = std::dynamic_pointer_cast<Impl>(replica_of(*impl(), device));
    if (!replica) refuse_replica(*impl(), "its clone is of another type");
    return replica;
  }

  /// On the one device.
  template <class Output, class... Arguments>
  Output run_whole(const Arguments&... arguments) const {
    std::tuple<Arguments...> inputs{on_device(arguments, devices_.front())...};
    return on_device(std::apply([&](auto&... whole) -> Output { return impl()->forward(whole...); }, inputs),
                     output_device_);
  }

  template <class... Arguments>
  std::vector<Chunk> chunks_for(const Arguments&... arguments) const {
    std::optional<std::int64_t> samples;
    const auto look = [&](const torch::Tensor& tensor) {
      if (tensor.defined() && tensor.dim() > 0) samples = samples_of(tensor, options_.dim, samples);
    };
    (for_each_tensor(arguments, look), ...);
    if (!samples) return {Chunk{}};  // nothing to cut up: the first device runs it
    return chunks_of(*samples, devices_.size(), options_.chunk_sizes);
  }

  Net net_;
  DataParallelOptions options_;
  std::vector<torch::Device> devices_;
  torch::Device output_device_;
};

}  // namespace troupe::train
