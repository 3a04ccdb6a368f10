#include "actors/ddp/bucket_memory.hpp"

#include <torch/torch.h>

#include <cstdint>

#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/group_memory.hpp"

namespace troupe::train {
namespace {

std::size_t bytes_of(const Bucket& bucket) {
  return bucket.count * collectives::element_size(bucket.dtype);
}

}  // namespace

BucketMemory::BucketMemory(const std::shared_ptr<collectives::ProcessGroup>& group,
                           const std::vector<Bucket>& buckets, std::size_t behind_first) {
  // The sum does not depend on how parameters are grouped: each takes whole lines.
  std::size_t bytes = 64 + behind_first;
  for (const Bucket& bucket : buckets) bytes += bytes_of(bucket);
  if (const auto memory = take_group_memory(group, bytes)) {
    base_ = static_cast<std::byte*>(memory->data());
    memory_ = memory;
  } else {
    auto own = std::make_shared<torch::Tensor>(torch::empty(
        {static_cast<std::int64_t>(bytes)}, torch::TensorOptions(torch::kUInt8).device(device_of(*group))));
    base_ = static_cast<std::byte*>(own->data_ptr());
    memory_ = own;
  }
}

BucketViews BucketMemory::lay_out(const std::vector<Bucket>& buckets,
                                  std::vector<ReducedParameter>& parameters, std::size_t behind_first) const {
  place_in(buckets, parameters);
  BucketViews laid;
  laid.views.assign(parameters.size(), {});
  std::byte* at = base_;
  for (const Bucket& bucket : buckets) {
    const torch::Tensor& like = parameters[bucket.members.front().item].tensor;
    laid.flat.push_back(torch::from_blob(
        at, {static_cast<std::int64_t>(bucket.count)}, [owner = memory_](void*) {},
        torch::TensorOptions(like.scalar_type()).device(like.device())));
    laid.flat.back().zero_();  // padding must be no denormal or NaN
    for (const Bucket::Member& member : bucket.members) {
      std::byte* data = at + member.offset * collectives::element_size(bucket.dtype);
      laid.views[member.item] = view_like(parameters[member.item].tensor, data, memory_);
    }
    at += bytes_of(bucket);
    if (laid.flat.size() > 1) continue;
    laid.behind_first = at;
    at += behind_first;
  }
  return laid;
}

}  // namespace troupe::train
