/// What DataParallel does, whatever the type of its module.
#pragma once

#include <torch/nn/module.h>
#include <torch/serialize/input-archive.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/ddp/scatter_gather.hpp"

namespace troupe::train {

/// PyTorch's options and defaults where the comment says nothing else. At most one of device_ids, devices and
/// replicas is given; none: all CUDA devices.
struct DataParallelOptions {
  std::vector<int> device_ids{};                 ///< CUDA devices, in any order and from any number
  std::vector<torch::Device> devices{};          ///< of one kind; one may be there several times
  int replicas = 0;                              ///< that many on the CPU, a thread each
  std::optional<torch::Device> output_device{};  ///< default: the first device
  std::int64_t dim = 0;                          ///< of inputs and outputs, along which samples lie
  /// Samples a device, for batches of their sum. Default: equal chunks, of which the last may be smaller.
  std::vector<std::int64_t> chunk_sizes{};
};

/// Throws BadConfig for null.
void check_module(const torch::nn::Module* module);

/// The devices of `options` on a machine with so many CUDA devices; cpu:0 is cpu. Throws BadConfig for one
/// that does not exist, or is neither a CUDA device nor the CPU, by its name, for none, and for options that
/// make no sense.
std::vector<torch::Device> devices_of(const DataParallelOptions& options, int cuda_devices);
int cuda_devices();

/// Throws BadConfig, with the name, for a parameter or buffer that is not on `device`.
void check_on(const torch::nn::Module& module, torch::Device device);

/// A clone on `device` whose parameters stand for the module's: the same values, on the module's own device
/// in the same memory, and gradients go to the module's `.grad`. Buffers are copies, and so are parameters
/// that were made in inference mode. Draws no random numbers. Throws BadConfig for a module that cannot be
/// cloned.
std::shared_ptr<torch::nn::Module> replica_of(const torch::nn::Module& module, torch::Device device);
/// Throws BadConfig: replica_of gave another type than the module's.
[[noreturn]] void refuse_replica(const torch::nn::Module& module, const std::string& why);

/// body(i) for each of `chunks` at once, on a thread with devices[i] as its device and the caller's grad
/// mode, inference mode and autocast. Returns when all are through. Throws TaskFailed for the first that
/// threw, with its device and samples; what it threw is nested in it.
void on_each_device(const std::vector<torch::Device>& devices, const std::vector<Chunk>& chunks,
                    const std::function<void(std::size_t)>& body);

/// Of the module's own names, or each with `module.` in front.
void load_module(torch::nn::Module& module, torch::serialize::InputArchive& archive);

}  // namespace troupe::train
