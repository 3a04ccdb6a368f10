#include "scheduler/cluster/lease_turns.hpp"

#include <algorithm>
#include <tuple>

#include "scheduler/cluster/group_table.hpp"

namespace troupe::cluster {
namespace {

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
  if (kept.gpu_e4 > 0 && kept.gpu_e4 < kGpu) {
    if (const auto dealt = deal_gpus(node.gpus, kept.gpu_e4)) node.gpus[dealt->front()] += kept.gpu_e4;
    return node;
  }
  std::int64_t left = kept.gpu_e4;
  for (std::int64_t& used : node.gpus) {
    if (left <= 0 || used > 0) continue;
    used = kGpu;
    left -= kGpu;
  }
  return node;
}

void LeaseTurns::count(const ProcessAddress& owner, const ActorDemand& demand, int more) {
  std::vector<Held>& all = held_[owner];
  const auto at = std::find_if(all.begin(), all.end(), [&](const Held& one) { return one.demand == demand; });
  if (at != all.end()) {
    at->count += more;
  } else {
    all.push_back({demand, more});
  }
}

void LeaseTurns::add(const Actor& worker, bool may_be_told) {
  const ActorRecord& record = worker.record;
  const bool goes = record.state == ActorState::kEnding || worker.wanted_at.has_value();
  if (!goes) count(record.requester.from, held_by(worker), 1);
  const SpawnPlace place = place_held_by(worker);
  if (goes) {
    going_[place].push_back(&worker);
  } else if (may_be_told && record.state == ActorState::kAlive && now_ - worker.up_at >= config_.held) {
    std::vector<const Actor*>& there = open_[place];
    const auto later = [](const Actor* a, const Actor* b) { return a->up_at < b->up_at; };
    there.insert(std::upper_bound(there.begin(), there.end(), &worker, later), &worker);
  }
}

void LeaseTurns::add_kept(const ProcessAddress& owner, const ActorDemand& demand) {
  count(owner, demand, 1);
}

void LeaseTurns::told(const Actor& worker) {
  const SpawnPlace place = place_held_by(worker);
  std::erase(open_[place], &worker);
  if (open_[place].empty()) open_.erase(place);
  going_[place].push_back(&worker);
  count(worker.record.requester.from, held_by(worker), -1);
}

bool LeaseTurns::may_take(const Starved& waits, const Actor& worker,
                          const std::vector<const Actor*>& taken) const {
  if (!waits.owner) return true;
  const ProcessAddress owner = worker.record.requester.from;
  const ActorDemand demand = held_by(worker);
  const bool same_process = owner == *waits.owner;
  if (same_process && worker.record.spec.demand == waits.demand) return false;
  const auto share_of = [&](const ProcessAddress& process, const ActorDemand& of) {
    std::int64_t sum = 0;
    const auto at = held_.find(process);
    if (at == held_.end()) return sum;
    for (const Held& one : at->second) {
      if (!same_process || one.demand == of) sum += one.count * size_for(waits.demand, one.demand);
    }
    return sum;
  };
  const std::int64_t mine = share_of(*waits.owner, waits.demand);
  if (mine == 0) return true;
  std::int64_t theirs = share_of(owner, demand) - size_for(waits.demand, demand);
  for (const Actor* one : taken) {
    const ActorDemand held = held_by(*one);
    if (one->record.requester.from == owner && (!same_process || held == demand))
      theirs -= size_for(waits.demand, held);
  }
  return theirs >= mine + size_for(waits.demand, waits.demand);
}

std::optional<std::vector<ActorId>> LeaseTurns::room_in(const SpawnPlace& place, const Starved& waits,
                                                        NodeView view, const std::vector<BundleDemand>& kept,
                                                        Duration within) const {
  if (const auto there = going_.find(place); there != going_.end()) {
    for (const Actor* one : there->second) {
      if (!one->wanted_at || now_ - *one->wanted_at < within) view = with_room_of(std::move(view), *one);
    }
  }
  for (const BundleDemand& room : kept) view = without(std::move(view), room);
  const auto fits = [&](const NodeView& as) { return scheduler::NodeIndex::fits(as, waits.demand); };
  std::vector<const Actor*> taken;
  if (const auto there = open_.find(place); there != open_.end()) {
    for (const Actor* one : there->second) {
      if (fits(view)) break;
      if (!would_help(view, waits.demand, *one) || !may_take(waits, *one, taken)) continue;
      view = with_room_of(std::move(view), *one);
      taken.push_back(one);
    }
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

std::optional<LeaseTurns::Room> LeaseTurns::find(const Starved& waits, const Views& places,
                                                 const SpawnPlace& first, const Kept& kept) const {
  static const std::vector<BundleDemand> kNothing;
  struct Candidate {
    bool is_first;
    Instant since;  ///< of its oldest lease; least where there are none but those that go
    SpawnPlace place;
    bool operator<(const Candidate& other) const {
      if (is_first != other.is_first) return is_first;
      return std::tie(since, place) < std::tie(other.since, other.place);
    }
  };
  const ActorDemand& demand = waits.demand;
  const NodeId only = demand.group && demand.bundle >= 0 ? id_of_bundle(demand.bundle) : demand.affinity;
  std::vector<Candidate> candidates;
  for (auto at = places.lower_bound({demand.group, only}); at != places.end(); ++at) {
    const SpawnPlace& place = at->first;
    if (place.group != demand.group || (only && place.node != only)) break;
    const auto there = open_.find(place);
    candidates.push_back(
        {place == first, there == open_.end() ? Instant::min() : there->second.front()->up_at, place});
  }
  std::sort(candidates.begin(), candidates.end());
  for (const Duration within : {config_.soon, config_.within}) {
    std::optional<Room> best;
    for (const Candidate& one : candidates) {
      const auto others = kept.find(one.place);
      auto tell = room_in(one.place, waits, places.at(one.place),
                          others == kept.end() ? kNothing : others->second, within);
      if (tell && (!best || tell->size() < best->tell.size())) best = Room{one.place, *std::move(tell)};
      if (best && (one.is_first || best->tell.size() <= 1)) return best;
    }
    if (best) return best;
  }
  return std::nullopt;
}

NodeView LeaseTurns::without_all(const NodeView& node) const {
  NodeView view = node;
  for (const auto* all : {&open_, &going_}) {
    const auto there = all->find({{}, node.id});
    if (there == all->end()) continue;
    for (const Actor* one : there->second) {
      if (!one->wanted_at || now_ - *one->wanted_at < config_.within)
        view = with_room_of(std::move(view), *one);
    }
  }
  return view;
}

std::set<SpawnPlace> LeaseTurns::places() const {
  std::set<SpawnPlace> found;
  for (const auto* all : {&open_, &going_}) {
    for (const auto& [place, there] : *all) found.insert(place);
  }
  return found;
}

}  // namespace troupe::cluster
