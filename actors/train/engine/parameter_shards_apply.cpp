// The apply of a trainer that keeps pieces of parameters: what the job sees, and norms of what is whole.
#include <vector>

#include "actors/train/engine/parameter_shards.hpp"

namespace troupe::train {

using collectives::ReduceOp;

void ParameterShards::drop_gradients() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    sums_[u].arrays.clear();
    units_[u].gradient() = torch::Tensor();
    for (const NamedTensor& member : units_[u].members()) member.tensor.mutable_grad() = torch::Tensor();
  }
}

void ParameterShards::show_pieces() {
  quiet_ = true;
  for (ShardedUnit& unit : units_) unit.show_pieces();
  quiet_ = false;
}

void ParameterShards::show_whole() {
  quiet_ = true;
  for (ShardedUnit& unit : units_) {
    unit.show_whole();
    for (const NamedTensor& member : unit.members()) mark_watched(member.tensor);
  }
  quiet_ = false;
  drop_gradients();
}

GradientsOfAll ParameterShards::gradients_of_all() {
  return {.norms = [this](double norm_type) { return norms(norm_type); },
          .parameter_norms = [this] { return norms(2, true); },
          .all = [this](bool mine) { return all(mine); }};
}

/// What this rank has of the unit's gradients, as apply() has left them.
torch::Tensor ParameterShards::gradient_of(ShardedUnit& unit) {
  const auto& members = unit.members();
  const auto is_reduced = [&](std::size_t m) {
    const torch::Tensor reduced = unit.kept(unit.gradient(), m);
    const torch::Tensor& now = members[m].tensor.grad();
    return reduced.numel() == 0 || (now.defined() && now.data_ptr() == reduced.data_ptr());
  };
  std::size_t same = 0;
  while (same < members.size() && is_reduced(same)) ++same;
  if (same == members.size()) return unit.gradient();
  torch::Tensor all = torch::zeros_like(unit.gradient());
  for (std::size_t m = 0; m < members.size(); ++m) {
    if (const torch::Tensor& now = members[m].tensor.grad(); now.defined()) unit.kept(all, m).copy_(now);
  }
  return all;
}

/// As torch computes them, of what is whole: each unit's comes to one rank, in turn. A parameter without a
/// gradient has none of that.
std::vector<torch::Tensor> ParameterShards::norms(double norm_type, bool of_parameters) {
  const torch::NoGradGuard no_grad;
  const auto mine = [&](ShardedUnit& unit) { return of_parameters ? unit.shard() : gradient_of(unit); };
  const std::size_t count_of = parameters_.size();
  std::vector<double> values(2 * count_of);  // behind the norms: how many ranks have a gradient
  for (std::size_t i = 0; i < count_of; ++i)
    values[count_of + i] = of_parameters || parameters_[i].tensor.grad().defined() ? 1 : 0;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    ShardedUnit& unit = units_[u];
    const auto owner = u % static_cast<std::size_t>(group_->size());
    const bool is_mine = static_cast<std::size_t>(group_->rank()) == owner;
    const torch::Tensor part = mine(unit);
    const torch::Tensor flat = is_mine ? unit.zeros() : torch::empty({0}, part.options());
    // Each to the owner, and nothing to the others: a group of GPUs need not have messages.
    std::vector<std::size_t> counts(leaves().size(), 0), from_counts(leaves().size(), 0);
    counts[owner] = static_cast<std::size_t>(part.numel());
    for (std::size_t rank = 0; is_mine && rank < leaves().size(); ++rank)
      from_counts[rank] = unit.elements(leaves()[rank]);
    move(part, flat, [&](auto& group, const auto& from, const auto& into) {
      return group.all_to_all(from, counts, into, from_counts);
    });
    if (!is_mine) continue;
    for (std::size_t i = 0; i < count_of; ++i) {
      if (places_[i].unit == u) values[i] = unit.part(flat, places_[i].member).norm(norm_type).item<double>();
    }
  }
  finish();
  exchange(group_->all_reduce(std::span(values), ReduceOp::kSum));  // all norms but one are zero
  std::vector<torch::Tensor> found;
  for (std::size_t i = 0; i < count_of; ++i) {
    if (values[count_of + i] > 0)
      found.push_back(torch::scalar_tensor(values[i], units_[places_[i].unit].flat().options()));
  }
  return found;
}

bool ParameterShards::all(bool mine) {
  std::int64_t not_so = mine ? 0 : 1;
  exchange(group_->all_reduce(std::span(&not_so, 1), ReduceOp::kSum));
  return not_so == 0;
}

}  // namespace troupe::train
