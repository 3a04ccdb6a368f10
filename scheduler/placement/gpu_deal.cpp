#include "scheduler/placement/gpu_deal.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cluster {

bool is_count_of_gpus(std::int64_t gpu_e4) {
  if (gpu_e4 < 0 || gpu_e4 > kMaxGpus * kGpu) return false;
  return gpu_e4 < kGpu || gpu_e4 % kGpu == 0;
}

std::optional<std::vector<std::uint32_t>> deal_gpus(const GpuUse& used, std::int64_t gpu_e4) {
  TROUPE_ASSERT(gpu_e4 > 0 && is_count_of_gpus(gpu_e4), "a demand was checked at the door");
  std::vector<std::uint32_t> dealt;
  if (gpu_e4 < kGpu) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i] + gpu_e4 <= kGpu && (!best || used[i] > used[*best])) best = i;
    }
    if (!best) return std::nullopt;
    dealt.push_back(static_cast<std::uint32_t>(*best));
    return dealt;
  }
  const auto wanted = static_cast<std::size_t>(gpu_e4 / kGpu);
  for (std::size_t i = 0; i < used.size() && dealt.size() < wanted; ++i) {
    if (used[i] == 0) dealt.push_back(static_cast<std::uint32_t>(i));
  }
  if (dealt.size() < wanted) return std::nullopt;
  return dealt;
}

std::int64_t free_gpu(const GpuUse& used) {
  std::int64_t free = 0;
  for (const std::int64_t held : used) free += std::max<std::int64_t>(0, kGpu - held);
  return free;
}

std::string format_gpus(std::int64_t gpu_e4) {
  return format_cpus(gpu_e4) + (gpu_e4 == kGpu ? " GPU" : " GPUs");
}

}  // namespace troupe::cluster
