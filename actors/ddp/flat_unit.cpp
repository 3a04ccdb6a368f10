#include "actors/ddp/flat_unit.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include "actors/ddp/agreement.hpp"
#include "actors/ddp/comm_hook.hpp"
#include "actors/ddp/kept_for_good.hpp"
#include "actors/ddp/reduced_parameter.hpp"
#include "runtime/core/assert.hpp"

namespace troupe::train {
namespace {

constexpr std::int64_t kAlign_elements = 16;

std::int64_t aligned(std::int64_t elements) {
  return (elements + kAlign_elements - 1) / kAlign_elements * kAlign_elements;
}

}  // namespace

FlatUnit::FlatUnit(std::string name, std::vector<NamedTensor> members,
                   std::shared_ptr<collectives::ProcessGroup> group, const DeviceStreams& streams)
    : name_(std::move(name)),
      members_(std::move(members)),
      group_(std::move(group)),
      streams_(streams),
      taken_(members_.size()) {
  const torch::NoGradGuard no_grad;
  std::int64_t end = 0;
  for (const NamedTensor& member : members_) {
    offsets_.push_back(end);
    end += aligned(member.tensor.numel());
  }
  const std::int64_t ranks = group_->size();
  shard_elements_ = aligned((end + ranks - 1) / ranks);
  flat_ = zeros(members_.front().tensor.scalar_type());
  whole_ = true;
  for (std::size_t i = 0; i < members_.size(); ++i) part(flat_, i).copy_(members_[i].tensor);
  broadcast_tensors(*group_, {flat_}, 0);
  shard_ = flat_.narrow(0, group_->rank() * shard_elements_, shard_elements_).clone().requires_grad_();
  for (std::size_t i = 0; i < members_.size(); ++i) members_[i].tensor.set_data(part(flat_, i));
  free();
}

const std::string& FlatUnit::member_at(std::int64_t offset) const {
  const auto after = std::upper_bound(offsets_.begin() + 1, offsets_.end(), offset);
  return members_[static_cast<std::size_t>(after - offsets_.begin()) - 1].name;
}

std::size_t FlatUnit::whole_bytes() const {
  return static_cast<std::size_t>(flat_.numel()) * flat_.element_size();
}

std::string FlatUnit::layout() const {
  std::ostringstream text;
  for (const NamedTensor& member : members_)
    text << member.name << ' ' << torch::toString(member.tensor.scalar_type()) << ' ' << member.tensor.sizes()
         << '\n';
  return text.str();
}

void FlatUnit::begin_gather() {
  if (whole_) return;
  c10::StorageImpl* storage = flat_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(whole_bytes()));
  storage->set_nbytes(whole_bytes());
  whole_ = true;
  streams_.on_default([this] { gathering_ = group_->all_gather(buffer_of(shard_), buffer_of(flat_)); });
}

void FlatUnit::gather() {
  begin_gather();
  wait(gathering_);
}

void FlatUnit::free() {
  if (!whole_) return;
  wait(gathering_);
  release_memory();
}

void FlatUnit::wait(std::shared_ptr<collectives::Work>& work) const {
  if (!work) return;
  streams_.on_default([&] { work->wait(); });
  work = nullptr;
}

c10::DataPtr FlatUnit::release_memory() {
  c10::StorageImpl* storage = flat_.storage().unsafeGetStorageImpl();
  c10::DataPtr memory = storage->set_data_ptr(c10::DataPtr(nullptr, flat_.device()));
  storage->set_nbytes(0);
  whole_ = false;
  return memory;
}

void FlatUnit::take(std::size_t member, const torch::Tensor& gradient) {
  if (!gradients_.defined()) gradients_ = torch::empty_like(flat_);
  torch::Tensor mine = part(gradients_, member);
  if (taken_[member]) {
    mine.add_(gradient);
  } else {
    put(mine, gradient);
  }
  taken_[member] = true;
  streams_.before_default();  // those of a unit may have been computed on several streams
}

void FlatUnit::fill_what_was_not_taken() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::int64_t begin = offsets_[i] + (taken_[i] ? members_[i].tensor.numel() : 0);
    const std::int64_t end = i + 1 < members_.size() ? offsets_[i + 1] : gradients_.numel();
    if (begin < end) gradients_.narrow(0, begin, end - begin).zero_();
  }
}

void FlatUnit::begin_reduce() {
  if (!gradients_.defined()) gradients_ = torch::empty_like(flat_);
  fill_what_was_not_taken();
  reduced_ = torch::empty({shard_elements_}, flat_.options());
  streams_.on_default([this] {
    reducing_ =
        group_->reduce_scatter(buffer_of(gradients_), buffer_of(reduced_), collectives::ReduceOp::kAvg);
  });
}

void FlatUnit::end_reduce() {
  TROUPE_ASSERT(reducing_ != nullptr, "a reduction was begun");
  wait(reducing_);
  gradients_ = torch::Tensor();
  taken_.assign(members_.size(), false);
}

void FlatUnit::set_gradient() {
  torch::Tensor& gradient = shard_.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(reduced_);
  } else {
    gradient = std::move(reduced_);
  }
  reduced_ = torch::Tensor();
}

void FlatUnit::abandon(bool is_quiet) {
  if (whole_) {
    c10::DataPtr memory = release_memory();
    if (gathering_ && !is_quiet) keep_value_for_good(std::make_pair(std::move(memory), shard_));
  }
  if (reducing_ && !is_quiet) keep_value_for_good(std::vector<torch::Tensor>{gradients_, reduced_});
  gathering_ = nullptr;
  reducing_ = nullptr;
  gradients_ = torch::Tensor();
  reduced_ = torch::Tensor();
  taken_.assign(members_.size(), false);
}

void FlatUnit::run(const std::vector<torch::Tensor>& on,
                   const std::function<std::shared_ptr<collectives::Work>()>& launch) const {
  try {
    streams_.on_default([&] { launch()->wait(); });
    if (&group_->host_group() == group_.get()) return;
    streams_.synchronize();  // a wait for a group of GPUs is the stream's, which does not throw
    group_->throw_if_aborted();
  } catch (...) {
    try {
      group_->await_quiet();
    } catch (const std::exception&) {  // what threw first is told
      keep_value_for_good(on);
    }
    throw;
  }
}

torch::Tensor FlatUnit::gathered(const torch::Tensor& mine, int root) const {
  const bool is_root = group_->rank() == root;
  torch::Tensor all = is_root ? zeros(mine.scalar_type()) : torch::Tensor();
  run({mine, all}, [&] {
    return group_->gather(buffer_of(mine), is_root ? buffer_of(all) : collectives::Buffer{}, root);
  });
  return all;
}

torch::Tensor FlatUnit::scattered(const torch::Tensor& flat, int root, torch::ScalarType dtype) const {
  torch::Tensor mine = torch::empty({shard_elements_}, torch::TensorOptions(dtype).device(flat_.device()));
  const bool is_root = group_->rank() == root;
  run({flat, mine}, [&] {
    return group_->scatter(is_root ? buffer_of(flat) : collectives::Buffer{}, buffer_of(mine), root);
  });
  return mine;
}

torch::Tensor FlatUnit::part(const torch::Tensor& flat, std::size_t member) const {
  const torch::Tensor& like = members_[member].tensor;
  if (like.is_non_overlapping_and_dense())
    return flat.as_strided(like.sizes(), like.strides(), offsets_[member]);
  return flat.narrow(0, offsets_[member], like.numel()).view(like.sizes());
}

torch::Tensor FlatUnit::zeros(torch::ScalarType dtype) const {
  return torch::zeros({shard_elements_ * group_->size()},
                      torch::TensorOptions(dtype).device(members_.front().tensor.device()));
}

}  // namespace troupe::train
