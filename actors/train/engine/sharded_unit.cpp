#include "actors/train/engine/sharded_unit.hpp"

#include <algorithm>
#include <utility>

namespace troupe::train {
namespace {

constexpr std::int64_t kUnitAlignElements = 16;

std::int64_t unit_aligned(std::int64_t elements) {
  return (elements + kUnitAlignElements - 1) / kUnitAlignElements * kUnitAlignElements;
}

std::vector<std::int64_t> row_major(torch::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * sizes[i - 1];
  return strides;
}

}  // namespace

ShardedUnit::ShardedUnit(std::string name, std::vector<NamedTensor> members, int shards)
    : name_(std::move(name)), members_(std::move(members)), shards_(shards) {
  std::int64_t end = 0;
  for (const NamedTensor& member : members_) {
    const torch::Tensor& one = member.tensor;
    const bool dense = one.is_non_overlapping_and_dense();
    geometry_.push_back(
        {end, one.numel(), one.sizes().vec(), dense ? one.strides().vec() : row_major(one.sizes())});
    end += unit_aligned(one.numel());
  }
  shard_elements_ = unit_aligned((end + shards - 1) / shards);
}

const std::string& ShardedUnit::member_at(std::int64_t offset) const {
  const auto after = std::upper_bound(geometry_.begin() + 1, geometry_.end(), offset,
                                      [](std::int64_t at, const Geometry& one) { return at < one.offset; });
  return members_[static_cast<std::size_t>(after - geometry_.begin()) - 1].name;
}

ShardedUnit::Piece ShardedUnit::piece(std::size_t member, collectives::LeafInterval leaves) const {
  const Geometry& of = geometry_[member];
  const auto within = [&](std::int64_t leaf) {
    return std::clamp<std::int64_t>(leaf * shard_elements_ - of.offset, 0, of.elements);
  };
  return {within(leaves.begin), within(leaves.end) - within(leaves.begin)};
}

void ShardedUnit::cut(collectives::LeafInterval leaves) {
  const torch::NoGradGuard no_grad;
  leaves_ = leaves;
  gradient_ = torch::Tensor();
  const auto count = static_cast<std::int64_t>(elements(leaves));
  if (flat_.defined()) {
    shard_ = torch::zeros({count}, flat_.options());
    return;
  }
  flat_ = zeros();
  whole_ = true;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    views_.push_back(part(flat_, i));
    views_.back().copy_(members_[i].tensor);
  }
  shard_ = flat_.narrow(0, leaves.begin * shard_elements_, count).clone();
  show_whole();
  free();
}

void ShardedUnit::mend() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    members_[i].tensor.set_data(
        torch::empty_strided(geometry_[i].sizes, geometry_[i].strides, flat_.options()));
  }
  flat_ = shard_ = gradient_ = torch::Tensor();
  views_.clear();
  whole_ = false;
}

void ShardedUnit::show_whole() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    members_[i].tensor.set_data(views_[i]);
    members_[i].tensor.mutable_grad() = torch::Tensor();
  }
}

void ShardedUnit::show_pieces() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const torch::Tensor mine = kept(shard_, i);
    if (gradient_.defined() && mine.numel() > 0) members_[i].tensor.mutable_grad() = kept(gradient_, i);
    members_[i].tensor.set_data(mine);
  }
}

torch::Tensor ShardedUnit::memory() const {
  return torch::empty({flat_.numel()}, flat_.options());
}

void ShardedUnit::take(const torch::Tensor& memory) {
  if (whole_) return;
  c10::StorageImpl* from = memory.storage().unsafeGetStorageImpl();
  c10::StorageImpl* storage = flat_.storage().unsafeGetStorageImpl();
  storage->set_nbytes(from->nbytes());
  storage->set_data_ptr_noswap(from->set_data_ptr(c10::DataPtr(nullptr, flat_.device())));
  from->set_nbytes(0);
  whole_ = true;
}

void ShardedUnit::free() {
  if (!whole_) return;
  c10::StorageImpl* storage = flat_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, flat_.device()));
  storage->set_nbytes(0);
  whole_ = false;
}

torch::Tensor ShardedUnit::kept(const torch::Tensor& of, std::size_t member) const {
  const Piece mine = piece(member, leaves_);
  const std::int64_t begin = geometry_[member].offset + mine.begin - leaves_.begin * shard_elements_;
  return of.narrow(0, mine.size == 0 ? 0 : begin, mine.size);
}

torch::Tensor ShardedUnit::part(const torch::Tensor& flat, std::size_t member) const {
  const Geometry& like = geometry_[member];
  return flat.as_strided(like.sizes, like.strides, like.offset);
}

torch::Tensor ShardedUnit::shaped(const torch::Tensor& elements, std::size_t member) const {
  return elements.as_strided(geometry_[member].sizes, geometry_[member].strides);
}

torch::Tensor ShardedUnit::zeros() const {
  return torch::zeros(
      {shard_elements_ * shards_},
      torch::TensorOptions(members_.front().tensor.scalar_type()).device(members_.front().tensor.device()));
}

}  // namespace troupe::train
