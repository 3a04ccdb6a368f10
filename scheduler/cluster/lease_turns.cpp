#include "scheduler/cluster/lease_turns.hpp"

#include <algorithm>

#include "scheduler/cluster/group_table.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t kMoreLooks =
    500;  ///< for a place where fewer are told than in the first that was found

NodeView changed(NodeView node, const Actor& actor, int sign) {
  const ActorDemand held = held_by(actor);
  node.cpu_used_e4 += sign * held.cpu_e4;
  for (const std::uint32_t gpu : actor.record.gpus) {
    if (gpu < node.gpus.size()) node.gpus[gpu] += sign * held_of_each(held.gpu_e4);
  }
  add_amounts(node.other_used, held.other.amounts, sign);
  return node;
}

/// Whether `node` lacks any of what the actor holds for that demand.
bool would_help(const NodeView& node, const ActorDemand& demand, const Actor& actor) {
  const ActorDemand held = held_by(actor);
  if (held.cpu_e4 > 0 && node.cpu_e4 - node.cpu_used_e4 < demand.cpu_e4) return true;
  if (held.gpu_e4 > 0 && demand.gpu_e4 > 0 && !deal_gpus(node.gpus, demand.gpu_e4)) return true;
  return std::any_of(
      demand.other.amounts.begin(), demand.other.amounts.end(), [&](const ResourceAmount& one) {
        return amount_of(held.other.amounts, one.name) > 0 &&
               amount_of(node.other.amounts, one.name) - amount_of(node.other_used, one.name) < one.amount;
      });
}

/// What counts of it for those who want the other: GPUs are scarcer than CPUs.
std::int64_t size_for(const ActorDemand& wanted, const ActorDemand& held) {
  if (wanted.gpu_e4 > 0) return held.gpu_e4;
  return wanted.cpu_e4 > 0 ? held.cpu_e4 : kCpu;
}

}  // namespace

SpawnPlace place_held_by(const Actor& actor) {
  const ActorRecord& record = actor.record;
  const GroupId group = record.spec.demand.group;
  return {group, group ? id_of_bundle(record.bundle) : record.node};
}

NodeView with_room_of(NodeView node, const Actor& actor) {
  return changed(std::move(node), actor, -1);
}

NodeView without(NodeView node, const BundleDemand& kept) {
  node.cpu_used_e4 += kept.cpu_e4;
  add_amounts(node.other_used, kept.other.amounts, 1);
  std::int64_t left = kept.gpu_e4;
  if (left > 0 && left < kGpu) {
    if (const auto dealt = deal_gpus(node.gpus, left)) node.gpus[dealt->front()] += std::exchange(left, 0);
  } else {
    for (std::int64_t& used : node.gpus) {
      if (left <= 0 || used > 0) continue;
      used = kGpu;
      left -= kGpu;
    }
  }
  // Parts of GPUs that come free one after another make one: nobody else gets a part of those in use.
  for (std::int64_t& used : node.gpus) {
    if (left > 0 && used > 0) used = kGpu;
  }
  return node;
}

void LeaseTurns::count(Shares& shares, const ProcessAddress& owner, const ActorDemand& demand, int more) {
  std::vector<Held>& all = shares[owner];
  const auto at = std::find_if(all.begin(), all.end(), [&](const Held& one) { return one.demand == demand; });
  if (at == all.end()) {
    all.push_back({demand, more});
  } else if (at->count += more; at->count == 0) {
    all.erase(at);
  }
  if (all.empty()) shares.erase(owner);
}

void LeaseTurns::set(const Actor& worker, bool may_be_told) {
  const ActorRecord& record = worker.record;
  remove(record.actor);
  const bool goes = record.state == ActorState::kEnding || worker.wanted_at.has_value();
  const bool is_open = !goes && may_be_told && record.state == ActorState::kAlive;
  const Lease lease{&worker, place_held_by(worker), worker.up_at,   goes,
                    is_open, worker.waits,          held_by(worker)};
  leases_.emplace(record.actor, lease);
  put(lease, true);
}

void LeaseTurns::remove(ActorId worker) {
  const auto lease = leases_.extract(worker);
  if (lease) put(lease.mapped(), false);
}

void LeaseTurns::put(const Lease& lease, bool is_there) {
  const ActorRecord& record = lease.worker->record;
  if (!lease.waits) {
    std::size_t& at_work = at_work_[record.requester.from];
    is_there ? ++at_work : --at_work;
    if (at_work == 0) at_work_.erase(record.requester.from);
  }
  if (!lease.goes) count(held_, record.requester.from, lease.held, is_there ? 1 : -1);
  if (!lease.goes && !lease.is_open) return;
  const SpawnPlace& place = lease.place;
  There& there = places_[place];
  by_oldest_.erase({place.group, there.oldest(), place});
  const auto change = [&](auto& all, const auto& key) {
    is_there ? void(all.emplace(key, lease.worker)) : void(all.erase(key));
  };
  lease.goes ? change(there.going, record.actor) : change(there.open, std::pair(lease.up_at, record.actor));
  there.going.empty() ? void(going_at_.erase(place)) : void(going_at_.insert(place));
  if (there.going.empty() && there.open.empty()) {
    places_.erase(place);
  } else {
    by_oldest_.insert({place.group, there.oldest(), place});
  }
}

bool LeaseTurns::any_in(GroupId group) const {
  const auto first = places_.lower_bound({group});
  return first != places_.end() && first->first.group == group;
}

bool LeaseTurns::is_same(const LeaseTurns& other) const {
  return leases_ == other.leases_ && places_ == other.places_ && going_at_ == other.going_at_ &&
         by_oldest_ == other.by_oldest_ && held_.size() == other.held_.size() && at_work_ == other.at_work_;
}

void LeaseTurns::begin(Instant now) {
  now_ = now;
  kept_.clear();
  looks_ = 0;
}

void LeaseTurns::add_kept(const ProcessAddress& owner, const ActorDemand& demand, int more) {
  count(kept_, owner, demand, more);
}

/// `only`: of that demand alone.
std::int64_t LeaseTurns::share_of(const ProcessAddress& owner, const ActorDemand& wanted,
                                  const ActorDemand* only) const {
  std::int64_t sum = 0;
  for (const Shares* shares : {&held_, &kept_}) {
    const auto at = shares->find(owner);
    if (at == shares->end()) continue;
    for (const Held& one : at->second) {
      if (only == nullptr || one.demand == *only) sum += one.count * size_for(wanted, one.demand);
    }
  }
  return sum;
}

/// Whether demands count, and not processes: what is held elsewhere is no share of what is there alone.
bool LeaseTurns::counts_alike(const Starved& waits, const ProcessAddress& owner) {
  const ActorDemand& wanted = waits.demand;
  return owner == waits.owner || wanted.group || wanted.affinity || wanted.other != OtherResources{};
}

/// `taken`: how much of that owner, and where demands count of that demand, is taken for it already.
bool LeaseTurns::may_take(const Starved& waits, const ProcessAddress& owner, const ActorDemand& held,
                          std::int64_t taken) const {
  if (!waits.owner) return true;
  const bool alike = counts_alike(waits, owner);
  const ActorDemand& wanted = waits.demand;
  const std::int64_t mine = share_of(*waits.owner, wanted, alike ? &wanted : nullptr);
  if (mine == 0) return true;
  const std::int64_t theirs = share_of(owner, wanted, alike ? &held : nullptr);
  return theirs - taken - size_for(wanted, held) >= mine + size_for(wanted, wanted);
}

/// False: of no process.
bool LeaseTurns::may_take_any(const Starved& waits) const {
  return std::any_of(held_.begin(), held_.end(), [&](const auto& process) {
    return std::any_of(process.second.begin(), process.second.end(), [&](const Held& one) {
      const bool is_its = waits.owner == process.first && one.demand == waits.demand;
      return !is_its && may_take(waits, process.first, one.demand, 0);
    });
  });
}

std::optional<std::vector<ActorId>> LeaseTurns::room_in(const SpawnPlace& place, const Starved& waits,
                                                        NodeView view, const std::vector<BundleDemand>& kept,
                                                        Duration within) const {
  const auto at = places_.find(place);
  static const There kNobody;
  const There& there = at == places_.end() ? kNobody : at->second;
  for (const auto& [id, one] : there.going) {
    if (!one->wanted_at || now_ - *one->wanted_at < within) view = with_room_of(std::move(view), *one);
  }
  for (const BundleDemand& room : kept) view = without(std::move(view), room);
  const auto fits = [&](const NodeView& as) { return scheduler::NodeIndex::fits(as, waits.demand); };
  const auto taken_like = [&](const std::vector<const Actor*>& taken, const Actor& worker) {
    std::int64_t sum = 0;
    const bool alike = counts_alike(waits, worker.record.requester.from);
    for (const Actor* one : taken) {
      if (one->record.requester.from == worker.record.requester.from &&
          (!alike || held_by(*one) == held_by(worker)))
        sum += size_for(waits.demand, held_by(*one));
    }
    return sum;
  };
  std::vector<const Actor*> taken;
  for (const auto& [age, one] : there.open) {
    if (fits(view) || now_ - age.first < config_.held) break;
    const ProcessAddress& owner = one->record.requester.from;
    // One of the same demand would go back to its own process.
    if (owner == waits.owner && one->record.spec.demand == waits.demand) continue;
    if (!would_help(view, waits.demand, *one) ||
        !may_take(waits, owner, held_by(*one), taken_like(taken, *one)))
      continue;
    view = with_room_of(std::move(view), *one);
    taken.push_back(one);
  }
  if (!fits(view)) return std::nullopt;
  // Those of a resource that others bring as well stay: the ones that were leased last first.
  std::vector<ActorId> tell;
  for (auto one = taken.rbegin(); one != taken.rend(); ++one) {
    if (NodeView still = changed(view, **one, 1); fits(still)) {
      view = std::move(still);
    } else {
      tell.push_back((*one)->record.actor);
    }
  }
  std::reverse(tell.begin(), tell.end());
  return tell;
}

std::optional<LeaseTurns::Room> LeaseTurns::find(const Starved& waits, const ViewOf& view_of,
                                                 const SpawnPlace& first, const Kept& kept) {
  static const std::vector<BundleDemand> kNothing;
  const ActorDemand& demand = waits.demand;
  const NodeId only = demand.group && demand.bundle >= 0 ? id_of_bundle(demand.bundle) : demand.affinity;
  std::optional<Room> best;
  std::size_t looks_since = 0;
  // True: there is no better one.
  const auto look_at = [&](const SpawnPlace& place, Duration within) {
    if (!places_.contains(place) || place.group != demand.group || (only && place.node != only)) return false;
    ++looks_;
    const auto others = kept.find(place);
    auto tell =
        room_in(place, waits, view_of(place), others == kept.end() ? kNothing : others->second, within);
    if (tell && (!best || tell->size() < best->tell.size())) best = Room{place, *std::move(tell)};
    if (best) ++looks_since;
    return best && (place == first || best->tell.size() <= 1 || looks_since > kMoreLooks);
  };
  for (const Duration within : {config_.soon, config_.within}) {
    if (look_at(first, within)) return best;
    const auto from = SpawnPlace{demand.group};
    for (auto at = going_at_.lower_bound(from); at != going_at_.end() && at->group == demand.group; ++at) {
      if (look_at(*at, within)) return best;
    }
    if (only && look_at({demand.group, only}, within)) return best;
    // Elsewhere it makes no difference how long those that go are waited for.
    if (only || within != config_.soon || !may_take_any(waits)) continue;
    for (auto at = by_oldest_.lower_bound({demand.group, Instant::min(), {}});
         at != by_oldest_.end() && std::get<GroupId>(*at) == demand.group; ++at) {
      if (look_at(std::get<SpawnPlace>(*at), within)) return best;
    }
    if (best) return best;
  }
  return best;
}

NodeView LeaseTurns::without_all(const NodeView& node) const {
  NodeView view = node;
  const auto at = places_.find({{}, node.id});
  if (at == places_.end()) return view;
  for (const auto& [age, one] : at->second.open) {
    if (now_ - age.first >= config_.held) view = with_room_of(std::move(view), *one);
  }
  for (const auto& [id, one] : at->second.going) {
    if (!one->wanted_at || now_ - *one->wanted_at < config_.within)
      view = with_room_of(std::move(view), *one);
  }
  return view;
}

}  // namespace troupe::cluster
