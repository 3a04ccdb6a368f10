/// Weights from a file or a finished job into a module.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "actors/train/driver/train_driver.hpp"
#include "actors/train/job/setup.hpp"

namespace troupe::train {

/// Copies the tensors of a safetensors file's bytes into `tensors`, found by `prefix` and name; a "module."
/// before it, as DataParallel of PyTorch writes it, is passed over. Tensors that nobody asks for are left.
/// Throws BadConfig naming what is missing or has another shape or type, and changes nothing then. `name`: of
/// the file, for messages.
void copy_weights(const std::string& name, std::span<const std::byte> file, const std::string& prefix,
                  const std::vector<NamedTensor>& tensors);

/// The same from a safetensors file, or from the checkpoint of a manifest (.json), whose hash is checked
/// then. Throws IoError, too.
void copy_weights_from(const std::string& path, const std::string& prefix,
                       const std::vector<NamedTensor>& tensors);

/// Parameters and buffers of a module holder or shared_ptr.
template <class Net>
std::vector<NamedTensor> named_tensors(const Net& net) {
  std::vector<NamedTensor> named;
  for (const auto& item : net->named_parameters()) named.push_back({item.key(), item.value()});
  for (const auto& item : net->named_buffers()) {
    if (item.value().defined()) named.push_back({item.key(), item.value()});
  }
  return named;
}

/// The weights in a safetensors file (a checkpoint's, or PyTorch's), or of the checkpoint with this manifest,
/// into a module.
///     auto net = troupe::train::load_weights(result.best_checkpoint, ConvNet());
template <class Net>
Net load_weights(const std::string& path, Net net, const std::string& module = {}) {
  copy_weights_from(path, module.empty() ? "" : module + ".", named_tensors(net));
  return net;
}

template <class Net>
struct LoadResult {
  static void into(const RunResult& result, Net& net, const std::string& module) {
    if (result.weights.empty())
      throw BadConfig("the run has no weights to load",
                      "it was run with return_weights = false, stopped before its first step, or its "
                      "trainers died at its end",
                      "leave that option out, or load_weights() a checkpoint's file");
    copy_weights("the result of the run", result.weights, module.empty() ? "" : module + ".",
                 named_tensors(net));
  }
};

}  // namespace troupe::train
