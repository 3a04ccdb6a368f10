/// Which of a node's GPUs an actor gets. Pure: the same use gives the same answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/wire/cluster.hpp"

namespace troupe::cluster {

/// What is held of each of a node's GPUs, in 1/10000.
using GpuUse = std::vector<std::int64_t>;

/// No node has more GPUs, and no actor asks for more.
inline constexpr std::int64_t kMaxGpus = 1024;

/// Whether it is a part of one GPU, or whole ones.
bool is_count_of_gpus(std::int64_t gpu_e4);

/// Which GPUs a demand gets, by their place in `used`; none: it does not fit. A demand for whole GPUs gets
/// the first that nobody holds; a part lies on one GPU: the fullest that has room, so that whole ones stay
/// free. REQUIRES: is_count_of_gpus(gpu_e4) and gpu_e4 > 0.
std::optional<std::vector<std::uint32_t>> deal_gpus(const GpuUse& used, std::int64_t gpu_e4);
/// What such an actor holds of each GPU that it got.
inline std::int64_t held_of_each(std::int64_t gpu_e4) {
  return gpu_e4 < kGpu ? gpu_e4 : kGpu;
}
/// How many GPUs it gets a part of, or whole.
inline std::int64_t count_of_gpus(std::int64_t gpu_e4) {
  return (gpu_e4 + kGpu - 1) / kGpu;
}

/// What is free of all of them together, in 1/10000.
std::int64_t free_gpu(const GpuUse& used);
/// "1 GPU", "0.25 GPUs": as a person writes them.
std::string format_gpus(std::int64_t gpu_e4);

}  // namespace troupe::cluster
