/// Weights from a file or a finished job into a module.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "actors/train/driver/run_result.hpp"
#include "actors/train/job/setup.hpp"

namespace troupe::train {

/// What a file and a module do not have in common.
struct LeftOut {
  std::vector<std::string> missing;  ///< tensors of the module that are not in the file
  std::vector<std::string> other;    ///< the same, of another shape or type: each with both
  std::vector<std::string> unused;   ///< tensors of the file that nobody asked for
  /// Taken, of another floating-point type than the module's, as load_state_dict takes them: "Half to Float".
  std::vector<std::string> converted{};
};
/// For people, in one line; empty where nothing is left out.
std::string to_string(const LeftOut& left_out);
/// "148 tensors of Double to Float"; empty: none.
std::string text_of_converted(const LeftOut& left_out);

/// Copies the tensors of a safetensors file's bytes into `tensors`, found by `prefix` and name; a "module."
/// before it, as DataParallel of PyTorch writes it, is passed over. Tensors that nobody asks for are left.
/// What has another floating-point type is converted to the module's. Throws BadConfig naming what is missing
/// or has another shape or type, and changes nothing then. `name`: of
/// the file, for messages.
LeftOut copy_weights(const std::string& name, std::span<const std::byte> file, const std::string& prefix,
                     const std::vector<NamedTensor>& tensors);
/// The same, but what does not fit stays as it is.
LeftOut copy_matching_weights(const std::string& name, std::span<const std::byte> file,
                              const std::string& prefix, const std::vector<NamedTensor>& tensors);

/// The bytes of a safetensors file, or of the checkpoint with this manifest (.json), whose hash is checked
/// then, or of a state dict that PyTorch's torch.save wrote (torch_save.hpp), as safetensors. Throws
/// BadConfig for what is no file, and IoError.
std::vector<std::byte> read_weights(const std::string& path);

/// The same bytes with the averages of a job with ema() in place of the weights: for copy_weights. Throws
/// BadConfig where there are none.
std::vector<std::byte> averaged_weights(const std::string& name, std::span<const std::byte> file);

/// Copies the tensors of such a file. Throws as both. Conversions are logged in a line.
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

/// The averages of a job with ema() in place of its weights.
template <class Net>
Net load_averaged_weights(const std::string& path, Net net, const std::string& module = {}) {
  copy_weights(path, averaged_weights(path, read_weights(path)), module.empty() ? "" : module + ".",
               named_tensors(net));
  return net;
}

/// The same of what fits: the rest stays as it is, and is returned.
///     const auto left_out = troupe::train::load_matching_weights("pretrained.safetensors", net);
template <class Net>
LeftOut load_matching_weights(const std::string& path, Net& net, const std::string& module = {}) {
  return copy_matching_weights(path, read_weights(path), module.empty() ? "" : module + ".",
                               named_tensors(net));
}

/// Writes tensors, of any device, to a safetensors file: for load_weights, `.from`, serve::run and Python's
/// package. The file is there whole or not at all. Throws BadConfig for a tensor that the format has no room
/// for (undefined, sparse, complex), BadInput for a name twice, and IoError.
void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors);
/// The same of a std::map, or what full_state_dict() returns.
template <class Map>
void save_tensors(const std::string& path, const Map& tensors) {
  std::vector<NamedTensor> named;
  for (const auto& one : tensors) {
    if constexpr (requires { one.first; }) {
      named.push_back({one.first, one.second});
    } else {
      named.push_back({one.key(), one.value()});
    }
  }
  save_tensors(path, named);
}
/// The same of a module's parameters and buffers, as load_weights reads them.
///     troupe::train::save_weights("digits.safetensors", net);
template <class Net>
void save_weights(const std::string& path, const Net& net) {
  save_tensors(path, named_tensors(net));
}

/// Throws BadConfig where the run has brought none.
void require_weights(const RunResult& result);

template <class Net>
struct LoadResult {
  static void into(const RunResult& result, Net& net, const std::string& module) {
    require_weights(result);
    copy(result.weights, net, module);
  }
  static void averages_into(const RunResult& result, Net& net, const std::string& module) {
    copy(averaged_weights("the result of the run", result.weights), net, module);
  }
  static void copy(std::span<const std::byte> weights, Net& net, const std::string& module) {
    copy_weights("the result of the run", weights, module.empty() ? "" : module + ".", named_tensors(net));
  }
};

}  // namespace troupe::train
