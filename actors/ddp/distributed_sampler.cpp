#include "actors/ddp/distributed_sampler.hpp"

#include <torch/serialize/archive.h>

#include <algorithm>
#include <string>

#include "actors/data/sampler.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {

DistributedSampler::DistributedSampler(std::size_t size, int ranks, int rank,
                                       const DistributedSamplerOptions& options)
    : size_(size), ranks_(ranks), rank_(rank), options_(options) {
  const auto refuse = [](std::string why, const char* todo) {
    throw BadConfig("cannot make a DistributedSampler", std::move(why), todo);
  };
  if (size < 1) refuse("the dataset is empty", "check its folder");
  if (size > static_cast<std::size_t>(data::kMaxDatasetSize))
    refuse("the dataset has " + std::to_string(size) + " samples, and the order is defined up to " +
               std::to_string(data::kMaxDatasetSize),
           "split it");
  if (ranks < 1 || rank < 0 || rank >= ranks)
    refuse("there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks),
           "ranks count from 0 to their number less 1");
}

std::size_t DistributedSampler::size() const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  return options_.drop_last ? size_ / ranks : (size_ + ranks - 1) / ranks;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  data::SamplerOptions all;
  all.dataset_size = static_cast<std::int64_t>(size_);
  all.logical_ranks = ranks_;
  all.seed = options_.seed;
  all.sampling.shuffle = options_.shuffle;
  all.sampling.drop_last = options_.drop_last;
  return data::distributed_indices(all, *epoch_, rank_);
}

void DistributedSampler::reset(OptionalSize new_size) {
  if (new_size) size_ = *new_size;
  order_ = indices();
  at_ = 0;
}

DistributedSampler::OptionalBatch DistributedSampler::next(std::size_t batch_size) {
  if (at_ == 0 && order_.empty()) order_ = indices();
  if (at_ == order_.size()) return {};
  const std::size_t end = std::min(order_.size(), at_ + batch_size);
  std::vector<std::size_t> batch;
  for (; at_ < end; ++at_) batch.push_back(static_cast<std::size_t>(order_[at_]));
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", torch::tensor(static_cast<std::int64_t>(*epoch_)), /*is_buffer=*/true);
  archive.write("position", torch::tensor(static_cast<std::int64_t>(at_)), /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  torch::Tensor epoch = torch::empty(1, torch::kInt64);
  torch::Tensor position = torch::empty(1, torch::kInt64);
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("position", position, /*is_buffer=*/true);
  *epoch_ = static_cast<std::uint64_t>(epoch.item<std::int64_t>());
  order_ = indices();
  at_ = std::min(order_.size(), static_cast<std::size_t>(position.item<std::int64_t>()));
}

}  // namespace troupe::train
