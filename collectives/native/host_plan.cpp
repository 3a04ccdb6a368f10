#include "collectives/native/host_plan.hpp"

#include <algorithm>
#include <bit>

namespace troupe::collectives {

HostPlan::HostPlan(const HostLayout& layout, const LeafSums& sums, const Plan& plan, const Op& op,
                   Route route)
    : layout_(&layout),
      leaf_sums_(&sums),
      plan_(&plan),
      kind_(op.kind == OpKind::kAllToAllV ? OpKind::kBarrier : op.kind),
      route_(route),
      element_(element_size(op.dtype)),
      root_(has_root(op.kind) ? layout.host_of(op.peer) : -1),
      sums_(plan.sums()),
      apart_(sums_ && op.how.op == ReduceOp::kPremulSum),
      alike_(plan.copies_to_all() || (plan.one_shot() && op.kind == OpKind::kAllReduce)),
      to_root_(op.kind == OpKind::kReduce || op.kind == OpKind::kGather) {}

std::size_t HostPlan::parts_of(int origin) const {
  return apart_ ? leaf_sums_->apart[at(origin)] : leaf_sums_->of_host[at(origin)];
}

/// Of one partial sum, or of the part of `sender`.
std::size_t HostPlan::part_bytes(std::uint32_t round, int sender, int receiver) const {
  return plan_->reads(round, sender, receiver).size() * element_;
}

/// What a receiver reads of all ranks of `origin`.
std::size_t HostPlan::block_bytes(std::uint32_t round, int origin, int receiver) const {
  const std::vector<int>& senders = layout_->members(origin);
  if (sums_) return parts_of(origin) * part_bytes(round, senders.front(), receiver);
  std::size_t bytes = 0;
  for (const int sender : senders) bytes += part_bytes(round, sender, receiver);
  return bytes;
}

/// As soon as one part is found: ranks ask this of every host, in every round.
bool HostPlan::wants(std::uint32_t round, int origin, int to) const {
  if (kind_ == OpKind::kBarrier) return true;
  const std::vector<int>& senders = layout_->members(origin);
  const auto alike = sums_ ? senders.begin() + 1 : senders.end();  // of sums all senders have the same
  return std::any_of(layout_->members(to).begin(), layout_->members(to).end(), [&](int receiver) {
    return std::any_of(senders.begin(), alike,
                       [&](int sender) { return part_bytes(round, sender, receiver) != 0; });
  });
}

std::vector<int> HostPlan::receivers(std::uint32_t round, int origin, int to) const {
  std::vector<int> found;
  for (const int receiver : layout_->members(to)) {
    if (block_bytes(round, origin, receiver) == 0) continue;
    found.push_back(receiver);
    if (alike_) break;
  }
  return found;
}

std::size_t HostPlan::bytes(std::uint32_t round, int origin, int to) const {
  std::size_t bytes = 0;
  for (const int receiver : layout_->members(to)) {
    bytes += block_bytes(round, origin, receiver);
    if (alike_ && bytes != 0) break;
  }
  return bytes;
}

std::size_t HostPlan::offset(std::uint32_t round, int sender, int receiver, std::size_t part) const {
  const int origin = layout_->host_of(sender);
  std::size_t bytes = 0;
  for (const int other : layout_->ranks_with(receiver)) {
    if (other == receiver || alike_) break;
    bytes += block_bytes(round, origin, other);
  }
  if (sums_) return bytes + part * part_bytes(round, sender, receiver);
  for (const int other : layout_->members(origin)) {
    if (other == sender) break;
    bytes += part_bytes(round, other, receiver);
  }
  return bytes;
}

/// Whether `origin` has a blob for the hosts that take one, which read alike.
bool HostPlan::made(std::uint32_t round, int origin) const {
  return taker(origin) != origin && wants(round, origin, taker(origin));
}

std::vector<int> HostPlan::origins(std::uint32_t round, int from, int to) const {
  const int hosts = layout_->hosts();
  std::vector<int> found;
  switch (route_) {
    case Route::kDirect:
      if (wants(round, from, to)) found.push_back(from);
      break;
    case Route::kChain:
      if (to == (from + 1) % hosts && to != root_ && made(round, root_)) found.push_back(root_);
      break;
    case Route::kDisseminate: {
      // In step s a host passes what it has of itself and the 2^s - 1 behind it to the host 2^s before it.
      const int hop = (from - to + hosts) % hosts;
      if (!std::has_single_bit(static_cast<unsigned>(hop))) break;
      for (int i = 0; i < hop && i + hop < hosts; ++i) {
        const int origin = (from + i) % hosts;
        const int way = (origin - root_ + hosts) % hosts;  // of what the root alone reads
        const bool this_way = !to_root_ || (way % hop == i && (way & hop) != 0);
        if (this_way && made(round, origin)) found.push_back(origin);
      }
    }
  }
  return found;
}

int HostPlan::via(int origin, int at) const {
  const int hosts = layout_->hosts();
  const auto way = static_cast<unsigned>((origin - at + hosts) % hosts);
  switch (route_) {
    case Route::kChain:
      return (at - 1 + hosts) % hosts;
    case Route::kDisseminate:
      return (at + static_cast<int>(std::bit_floor(way))) % hosts;
    default:
      return origin;
  }
}

std::size_t HostPlan::result_bytes(std::uint32_t round, int from, int to) const {
  const int receiver = to_root_ && to == root_ ? -1 : layout_->members(to).front();
  std::size_t bytes = 0;
  for (const int owner : layout_->members(from)) {
    if (receiver >= 0) {
      bytes += plan_->results(round, owner, receiver).size();
      continue;
    }
    for (const int rank : layout_->members(to)) bytes += plan_->results(round, owner, rank).size();
  }
  return bytes * element_;
}

}  // namespace troupe::collectives
