/// Which GPUs a node has, asked of CUDA's driver where it is installed. Nothing of CUDA is linked or built
/// with.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.hpp"
#include "runtime/wire/messages.hpp"

namespace troupe {

/// A whole number: every node of this process believes that it has so many GPUs, named 0, 1, ..., and asks no
/// driver. For tests of what deals GPUs, on machines without any.
inline constexpr const char* kPretendedGpusVariable = "TROUPE_PRETEND_GPUS";
/// What CUDA lets a process see, and what a worker is given.
inline constexpr const char* kVisibleDevicesVariable = "CUDA_VISIBLE_DEVICES";

/// The GPUs that this process may use, each as CUDA_VISIBLE_DEVICES names it ("GPU-5f0c...", for an instance
/// of a divided GPU "MIG-..."), in CUDA's order and as far as this process's own CUDA_VISIBLE_DEVICES lets it
/// see them. None where there is no driver. The first call loads the driver (some 0.1 to 2 s on a machine
/// with GPUs) and makes no context. Of a divided GPU CUDA shows one instance a process. Errors: kUnavailable:
/// there is a driver, and it does not work.
Result<std::vector<std::string>> find_gpus(const char* driver = "libcuda.so.1");

/// What a node offers of the GPUs `found` on its machine: every node of an embedded cluster a part of its
/// own, and `config.gpus` of that at most. Errors: kBadConfig: it was told to have more than there are.
Result<std::vector<std::string>> offered_gpus(const wire::NodeConfig& config,
                                              const std::vector<std::string>& found);

/// The GPUs of the node that this process is. Errors: as above, and kBadConfig for a variable that is no
/// number. A driver that does not work is an error only for a node that was told to have GPUs; else it has
/// none, and says so in its log.
Result<std::vector<std::string>> gpus_of_node(const wire::NodeConfig& config);

}  // namespace troupe
