#include "actors/train/engine/optimizer_shards.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "actors/ddp/optimizer_state.hpp"
#include "actors/ddp/torch_compat.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

using collectives::Buffer;
using collectives::DType;

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kBundle_bytes = std::size_t{16} << 20;
constexpr std::size_t kDirect_bytes = std::size_t{256} << 10;  ///< a copy costs more than a message then

Buffer bytes_at(const void* data, std::size_t count) {
  Buffer buffer;
  buffer.data = const_cast<void*>(data);
  buffer.count = count;
  buffer.dtype = DType::kUInt8;
  return buffer;
}

std::size_t padded(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t total(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

}  // namespace

std::vector<std::vector<int>> deal_shards(const std::vector<std::vector<std::int64_t>>& elements,
                                          int shards) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(shards));
  std::vector<std::vector<int>> dealt;
  for (const auto& group : elements) {
    std::vector<std::size_t> order(group.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return group[a] > group[b]; });
    std::vector<int> of_group(group.size());
    for (const std::size_t parameter : order) {
      const auto least = std::min_element(sizes.begin(), sizes.end());
      *least += group[parameter];
      of_group[parameter] = static_cast<int>(least - sizes.begin());
    }
    dealt.push_back(std::move(of_group));
  }
  return dealt;
}

OptimizerShards::OptimizerShards(TrainingModel& model, TrainState& state, int shards,
                                 std::function<void(bool)> told)
    : model_(model),
      state_(state),
      told_(std::move(told)),
      parameters_(model.parameters()),
      shards_(parameters_.size(), -1) {
  std::unordered_map<const torch::TensorImpl*, std::size_t> index;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    index.emplace(parameters_[i].tensor.unsafeGetTensorImpl(), i);
  for (const TrainedBy& trained : model.optimizers()) {
    if (!steps_elementwise(*trained.optimizer)) {
      throw BadConfig(
          "the optimizer" + (trained.name.empty() ? "" : " '" + trained.name + "'") + " cannot be sharded",
          "it is none of SGD, Adam, AdamW, RMSprop and Adagrad, and may look across parameters",
          "use one of them, or leave .shard out");
    }
    std::vector<std::vector<std::int64_t>> elements;
    std::vector<std::vector<std::size_t>> members;
    std::vector<std::size_t>& all = trained_.emplace_back();
    for (const auto& group : trained.optimizer->param_groups()) {
      elements.emplace_back();
      members.emplace_back();
      for (const torch::Tensor& parameter : group.params()) {
        const std::size_t i = index.at(parameter.unsafeGetTensorImpl());
        if (std::find(all.begin(), all.end(), i) != all.end()) continue;  // a tied one, in another place
        all.push_back(i);
        members.back().push_back(i);
        elements.back().push_back(parameter.numel());
      }
    }
    const auto dealt = deal_shards(elements, shards);
    for (std::size_t g = 0; g < dealt.size(); ++g) {
      for (std::size_t p = 0; p < dealt[g].size(); ++p) shards_[members[g][p]] = dealt[g][p];
    }
  }
}

void OptimizerShards::attach(std::shared_ptr<collectives::ProcessGroup> group) {
  group_ = std::move(group);
  gathered_ = false;
  ranks_.assign(parameters_.size(), -1);
  const auto& leaves = group_->facts().leaves;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t rank = 0; rank < leaves.size(); ++rank) {
      if (leaves[rank].begin <= shards_[i] && shards_[i] < leaves[rank].end)
        ranks_[i] = static_cast<int>(rank);
    }
  }
  bundles_.clear();
  direct_.clear();
  memory_ = torch::Tensor();
  for (std::size_t optimizer = 0; optimizer < trained_.size(); ++optimizer) bundle(optimizer);
}

/// Its layout is alike on every trainer, where the group's operations are.
bool OptimizerShards::goes_directly(std::size_t parameter) const {
  const torch::Tensor& one = parameters_[parameter].tensor;
  return one.is_cpu() && one.nbytes() >= kDirect_bytes && one.is_non_overlapping_and_dense();
}

/// So that the memory they go through stays small: of the largest parameter, or kBundle_bytes.
void OptimizerShards::bundle(std::size_t optimizer) {
  std::vector<Bundle>& bundles = bundles_.emplace_back();
  std::vector<std::size_t>& direct = direct_.emplace_back();
  std::size_t size = kBundle_bytes;
  for (const std::size_t i : trained_[optimizer]) {
    if (goes_directly(i)) {
      direct.push_back(i);
      continue;
    }
    const std::size_t bytes = padded(parameters_[i].tensor.nbytes());
    if (size + bytes > kBundle_bytes) {
      bundles.emplace_back().counts.resize(static_cast<std::size_t>(group_->size()));
      size = 0;
    }
    bundles.back().members.push_back(i);
    bundles.back().counts[static_cast<std::size_t>(ranks_[i])] += bytes;
    size += bytes;
  }
  std::size_t largest = 0;
  for (Bundle& one : bundles) {
    std::stable_sort(one.members.begin(), one.members.end(),
                     [&](std::size_t a, std::size_t b) { return ranks_[a] < ranks_[b]; });
    std::size_t at = 0;
    for (const std::size_t i : one.members) {
      one.offsets.push_back(at);
      at += padded(parameters_[i].tensor.nbytes());
    }
    largest = std::max(largest, at);
  }
  const auto wanted = static_cast<std::int64_t>(group_->size() == 1 ? 0 : largest);
  if (!memory_.defined() || memory_.numel() < wanted) memory_ = torch::zeros({wanted}, torch::kUInt8);
}

std::size_t OptimizerShards::number_of(const torch::optim::Optimizer& optimizer, TrainingModel& model) const {
  const auto& all = model.optimizers();
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const TrainedBy& one) { return one.optimizer == &optimizer; });
  TROUPE_ASSERT(at != all.end(), "an optimizer that steps is the model's");
  return static_cast<std::size_t>(at - all.begin());
}

/// What no optimizer has is nobody's to step.
bool OptimizerShards::is_mine(std::size_t parameter) const {
  return ranks_[parameter] == group_->rank();
}

/// An optimizer leaves out what has no gradient.
void OptimizerShards::step_mine(torch::optim::Optimizer& optimizer,
                                const std::vector<NamedTensor>& parameters) const {
  std::vector<std::pair<torch::Tensor, torch::Tensor>> others;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor parameter = parameters[i].tensor;
    if (is_mine(i) || !parameter.grad().defined()) continue;
    others.emplace_back(parameter, std::exchange(parameter.mutable_grad(), torch::Tensor()));
  }
  optimizer.step();
  for (auto& [parameter, gradient] : others) parameter.mutable_grad() = std::move(gradient);
}

void OptimizerShards::step(torch::optim::Optimizer& optimizer) {
  step_mine(optimizer, parameters_);
  gather(optimizer);
}

void OptimizerShards::gather(const torch::optim::Optimizer& optimizer) {
  if (group_->size() == 1) return;
  const torch::NoGradGuard no_grad;
  const std::size_t number = number_of(optimizer, model_);
  std::vector<std::shared_ptr<collectives::Work>> works;
  for (const std::size_t i : direct_[number]) {
    const torch::Tensor& one = parameters_[i].tensor;
    works.push_back(group_->broadcast(bytes_at(one.data_ptr(), one.nbytes()), ranks_[i]));
  }
  for (const Bundle& one : bundles_[number]) gather(one);
  told_(true);
  for (const auto& work : works) work->wait();
  told_(false);
}

torch::Tensor OptimizerShards::place_of(const Bundle& bundle, std::size_t member) {
  const torch::Tensor& like = parameters_[bundle.members[member]].tensor;
  return torch::from_blob(memory_.data_ptr<std::uint8_t>() + bundle.offsets[member], like.sizes(),
                          torch::TensorOptions().dtype(like.scalar_type()));
}

void OptimizerShards::gather(const Bundle& bundle) {
  const auto mine = static_cast<std::size_t>(group_->rank());
  for (std::size_t m = 0; m < bundle.members.size(); ++m) {
    if (is_mine(bundle.members[m])) place_of(bundle, m).copy_(parameters_[bundle.members[m]].tensor);
  }
  auto* memory = memory_.data_ptr<std::uint8_t>();
  const std::span counts(bundle.counts);
  told_(true);
  group_
      ->all_gather(bytes_at(memory + total(counts.first(mine)), counts[mine]),
                   bytes_at(memory, total(counts)), bundle.counts)
      ->wait();
  told_(false);
  for (std::size_t m = 0; m < bundle.members.size(); ++m) {
    torch::Tensor parameter = parameters_[bundle.members[m]].tensor;
    if (!is_mine(bundle.members[m])) parameter.copy_(place_of(bundle, m));
  }
}

void OptimizerShards::step_copy(torch::optim::Optimizer& optimizer, TrainingModel& copy) {
  step_mine(optimizer, copy.parameters());
  gather_copy(optimizer, copy);
}

void OptimizerShards::gather_copy(const torch::optim::Optimizer& optimizer, TrainingModel& copy) {
  const std::vector<NamedTensor> parameters = copy.parameters();
  const torch::NoGradGuard no_grad;
  for (const std::size_t i : trained_[number_of(optimizer, copy)]) {
    torch::Tensor parameter = parameters[i].tensor;
    if (!is_mine(i)) parameter.copy_(parameters_[i].tensor);
  }
}

void OptimizerShards::shed(TrainingModel& of) {
  const std::vector<NamedTensor> parameters = of.parameters();
  for (const TrainedBy& trained : of.optimizers()) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!is_mine(i)) set_param_state(*trained.optimizer, parameters[i].tensor, nullptr);
    }
  }
}

void OptimizerShards::shed_gathered() {
  if (std::exchange(gathered_, false)) shed();
}

std::vector<std::byte> OptimizerShards::state_of_mine() const {
  const StateView view = state_.optimizer_fields([this](std::size_t i) { return is_mine(i); });
  return checkpoint::write_safetensors(checkpoint::lay_out_safetensors(view.parts).value());
}

void OptimizerShards::take_state(std::span<const std::byte> bytes) {
  const auto layout = checkpoint::read_safetensors("a shard of the optimizer's state", bytes).value();
  state_.add_optimizer_fields(layout.tensors).value();
}

void OptimizerShards::gather_state(int root) {
  if (group_->size() == 1) return;
  gathered_ = true;
  const std::vector<std::byte> mine = state_of_mine();
  const auto size = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group_->size()));
  told_(true);
  group_->all_gather(std::span(&size, 1), std::span(sizes))->wait();
  for (int rank = 0; rank < group_->size(); ++rank) {
    const bool from_me = rank == group_->rank();
    if (root >= 0 && (rank == root || (!from_me && group_->rank() != root))) continue;
    std::vector<std::byte> theirs(from_me ? 0 : static_cast<std::size_t>(sizes[rank]));
    const Buffer buffer =
        from_me ? bytes_at(mine.data(), mine.size()) : bytes_at(theirs.data(), theirs.size());
    if (root < 0) {
      group_->broadcast(buffer, rank)->wait();
    } else if (from_me) {
      group_->send(buffer, root)->wait();
    } else {
      group_->recv(buffer, rank)->wait();
    }
    if (!from_me) take_state(theirs);
  }
  told_(false);
}

}  // namespace troupe::train
