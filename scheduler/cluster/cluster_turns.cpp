// Turns: what has waited long for room that workers of tasks hold gets it from them, after the tasks that
// they run. Until it has it, what comes free there is kept for it: smaller ones would always be faster. What
// has waited longer goes in the order of waiting, and has the room as well of those who come and go.
#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"
#include "scheduler/cluster/cluster_machine.hpp"
#include "scheduler/placement/group_needs.hpp"
#include "scheduler/placement/group_plan.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t kMostTurns = 64;
/// For each node that was looked at, which takes some microseconds: looks take a twentieth of the time at
/// most.
constexpr Duration kPause = std::chrono::microseconds(100);
// In a tick:
constexpr std::size_t kTurnLooks = 1'000;   ///< at spawns that wait
constexpr std::size_t kHopelessLooks = 16;  ///< at demands that workers cannot make room for
constexpr std::size_t kPlaceLooks = 5'000;  ///< at nodes and bundles; the last demand's may be more

std::string waited(Duration time) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(time).count() / 100;
  return " has waited " + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s for its room";
}

}  // namespace

/// That node as it is, whatever is kept of it.
NodeView ClusterMachine::view_of(NodeId id) const {
  const Node& node = nodes_.at(id);
  const bool doubtful = !node.registered || membership_.liveness(id) != Liveness::kAlive;
  GpuUse gpus = node.gpu_used_e4;
  gpus.resize(node.info.gpus.size());
  const auto processes = static_cast<int>(node.actors.size() + node.drivers.size());
  return {id,       node.info.name,  node.info.cpu_e4, node.cpu_used_e4, processes,
          doubtful, std::move(gpus), node.info.other,  node.other_used};
}

/// The same of a node or a bundle. REQUIRES: seen_on(place).
NodeView ClusterMachine::view_of(const SpawnPlace& place) const {
  if (!place.group) return view_of(place.node);
  const Group& group = *groups_.find(place.group);
  const PlacedBundle& on = group.record.placed[bundle_of_id(place.node)];
  NodeView view = view_of_bundle(group, bundle_of_id(place.node), index_.nodes().at(on.node));
  // Actors have the numbers of their node's GPUs. Those that are not the bundle's are full.
  const GpuUse its = std::exchange(view.gpus, GpuUse(nodes_.at(on.node).info.gpus.size(), kGpu));
  for (std::size_t i = 0; i < its.size(); ++i) {
    if (on.gpus[i] < view.gpus.size()) view.gpus[on.gpus[i]] = its[i];
  }
  return view;
}

/// The node that it is, or is on, if placement sees it.
NodeId ClusterMachine::seen_on(const SpawnPlace& place) const {
  if (!place.group) return index_.nodes().contains(place.node) ? place.node : NodeId{};
  const Group* group = groups_.find(place.group);
  if (group == nullptr || !group->room.nodes().contains(place.node)) return {};
  return group->record.placed[bundle_of_id(place.node)].node;
}

/// As placement sees it.
NodeView ClusterMachine::shown(NodeId id) const {
  return without_kept(view_of(id), {{}, id});
}

NodeView ClusterMachine::without_kept(NodeView view, const SpawnPlace& place) const {
  for (const Turn& turn : turns_) {
    for (const auto& [at, room] : turn.rooms) {
      if (at == place) view = without(std::move(view), room);
    }
  }
  // One where more is held than it has is full: what asks for no CPUs may still go there.
  view.cpu_used_e4 = std::min(view.cpu_used_e4, view.cpu_e4);
  for (ResourceAmount& one : view.other_used)
    one.amount = std::min(one.amount, amount_of(view.other.amounts, one.name));
  return view;
}

void ClusterMachine::show_rooms(const Turn& turn) {
  for (const auto& [place, room] : turn.rooms) {
    if (!seen_on(place)) continue;
    place.group ? show(groups_.at(place.group), bundle_of_id(place.node)) : refresh(place.node);
  }
}

/// Whether nothing but room on nodes is lacking.
bool ClusterMachine::lacks_room(const Group& group) const {
  return group.record.state == GroupState::kWaiting &&
         (!group.record.spec.start_only || are_all_there(group)) && over_quota(group).empty();
}

bool ClusterMachine::still_waits(const Turn& turn) const {
  const auto is_there = [&](const auto& room) { return static_cast<bool>(seen_on(room.first)); };
  if (!std::all_of(turn.rooms.begin(), turn.rooms.end(), is_there)) return false;
  const Group* group = groups_.find(turn.group);
  if (turn.group) return group != nullptr && lacks_room(*group);
  return waiting_.contains(turn.spawn) && waiting_.at(turn.spawn).stopped_by == 0;
}

/// Gives those whose turn it is the room that came free, and forgets those that wait no longer.
void ClusterMachine::take_turns() {
  for (std::size_t i = 0; i < turns_.size();) {
    if (still_waits(turns_[i])) {
      ++i;
    } else {
      end_turn(i);
    }
  }
  const auto is_freed = [&](const auto& room) {
    return std::find(freed_.begin(), freed_.end(), seen_on(room.first)) != freed_.end();
  };
  for (std::size_t i = 0; i < turns_.size();) {
    const auto& rooms = turns_[i].rooms;
    if (std::none_of(rooms.begin(), rooms.end(), is_freed)) {
      ++i;
      continue;
    }
    // What is kept there for later ones is not kept from it: each would wait for the other.
    const Turn turn = turns_[i];
    const auto its = turns_.begin() + static_cast<std::ptrdiff_t>(i);
    const std::vector<Turn> later(its + 1, turns_.end());
    turns_.erase(its, turns_.end());
    show_rooms(turn);
    const bool stays = still_waits(turn) && !get_its_room(turn);
    if (stays) turns_.push_back(turn);
    turns_.insert(turns_.end(), later.begin(), later.end());
    show_rooms(turn);
    if (stays) {
      ++i;
      continue;
    }
    for (const Turn& one : later) show_rooms(one);
    free_rooms(turn);
  }
}

void ClusterMachine::free_rooms(const Turn& turn) {
  for (const auto& [place, room] : turn.rooms) {
    if (const NodeId node = seen_on(place)) freed_.push_back(node);
  }
}

/// Nothing is kept for it any more.
void ClusterMachine::end_turn(std::size_t at) {
  const Turn turn = std::move(turns_[at]);
  turns_.erase(turns_.begin() + static_cast<std::ptrdiff_t>(at));
  show_rooms(turn);
  free_rooms(turn);
}

bool ClusterMachine::get_its_room(const Turn& turn) {
  if (turn.group) return place_group(groups_.at(turn.group));
  if (place(waiting_.at(turn.spawn).spec.demand).verdict != PlacementVerdict::kPlaced) return false;
  settle(*waiting_.take(turn.spawn));
  return true;
}

/// What has waited long gets its turn, in the order in which it came, groups first.
void ClusterMachine::give_turns() {
  const auto is_starved = [&](const auto& one) { return now_ - one.second.since >= config_.lease_turn; };
  const auto& spawns = waiting_.all();
  if (groups_.waiting().empty() && std::none_of(spawns.begin(), spawns.end(), is_starved)) return;
  leases_.begin(now_);
  for (const Turn& turn : turns_) {
    if (!turn.group && waiting_.contains(turn.spawn) && waiting_.at(turn.spawn).spec.is_worker_of_tasks())
      leases_.add_kept(turn.spawn.from, waiting_.at(turn.spawn).spec.demand);
  }
  give_group_turn();
  give_spawn_turns();
}

std::size_t ClusterMachine::turn_of(const Requester& spawn, GroupId group) const {
  const auto at = std::find_if(turns_.begin(), turns_.end(), [&](const Turn& turn) {
    return group ? turn.group == group : !turn.group && turn.spawn == spawn;
  });
  return static_cast<std::size_t>(at - turns_.begin());
}

LeaseTurns::Kept ClusterMachine::kept_for_others(std::size_t but) const {
  LeaseTurns::Kept kept;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    for (const auto& [place, room] : turns_[i].rooms) {
      if (i != but) kept[place].push_back(room);
    }
  }
  return kept;
}

void ClusterMachine::set_turn(std::size_t at, Turn turn) {
  if (at == turns_.size()) turns_.emplace_back();
  if (turns_[at].rooms == turn.rooms) return;
  const Turn before = std::exchange(turns_[at], std::move(turn));
  show_rooms(before);
  show_rooms(turns_[at]);
  free_rooms(before);
}

/// Turns know of it as it is now.
void ClusterMachine::note_lease(const Actor& actor) {
  is_leased(actor) ? leases_.set(actor, may_be_told(actor)) : leases_.remove(actor.record.actor);
}

/// A worker of tasks where placement sees its node.
bool ClusterMachine::is_leased(const Actor& actor) const {
  const ActorRecord& record = actor.record;
  return record.spec.is_worker_of_tasks() && record.state != ActorState::kDead &&
         index_.nodes().contains(record.node);
}

bool ClusterMachine::may_be_told(const Actor& worker) const {
  return is_registered(worker.record.node) && is_registered(worker.record.requester.from.node);
}

void ClusterMachine::give_back(ActorId id, const std::string& why) {
  Actor& worker = actors_.at(id);
  worker.wanted_at = now_;
  note_lease(worker);
  out_.push_back(ActorLeaves{worker.record.requester, id, clipped("given back: " + why), false, true});
}

void ClusterMachine::give_spawn_turns() {
  if (now_ < next_look_) return;
  // Those that have their turn at each look: a round of all that wait may take long, and others are to be
  // asked for their room meanwhile, or it is kept for nothing.
  std::vector<Requester> had;
  for (const Turn& turn : turns_) {
    if (!turn.group) had.push_back(turn.spawn);
  }
  Hopeless hopeless;
  for (const Requester& one : had) {
    if (waiting_.contains(one) && leases_.looks() < kPlaceLooks) give_turn(waiting_.at(one), hopeless);
  }
  std::size_t looks = 0;
  auto at = waiting_.all().lower_bound(next_turn_);
  for (; at != waiting_.all().end() && looks < kTurnLooks && hopeless.size() < kHopelessLooks &&
         leases_.looks() < kPlaceLooks;
       ++at, ++looks) {
    const bool has_had = std::find(had.begin(), had.end(), at->second.requester) != had.end();
    if (!has_had) give_turn(at->second, hopeless);
  }
  next_look_ = now_ + leases_.looks() * kPause;
  next_turn_ = at == waiting_.all().end() ? 0 : at->first;
}

/// `hopeless`: those that workers cannot make room for, in these looks.
void ClusterMachine::give_turn(const PendingSpawn& spawn, Hopeless& hopeless) {
  const auto as_it_is = [&](const SpawnPlace& place) { return view_of(place); };
  const ActorDemand& demand = spawn.spec.demand;
  const Duration within = leases_.empty() ? config_.in_order_after : config_.lease_turn;
  const std::size_t turn = turn_of(spawn.requester, {});
  const bool is_new = turn == turns_.size();
  if (spawn.stopped_by != 0 || (is_new && now_ - spawn.since < within)) return;
  if (is_new && demand.group && !leases_.any_in(demand.group)) return;
  Starved starved{demand};
  if (spawn.spec.is_worker_of_tasks()) starved.owner = spawn.requester.from;
  const bool is_hopeless = std::any_of(hopeless.begin(), hopeless.end(), [&](const PendingSpawn* other) {
    return other->spec.demand == demand && other->spec.is_worker_of_tasks() == starved.owner.has_value() &&
           (!starved.owner || other->requester.from == *starved.owner);
  });
  if (is_new && (is_hopeless || turns_.size() >= kMostTurns)) return;
  const SpawnPlace first = is_new ? SpawnPlace{} : turns_[turn].rooms.front().first;
  // Others are asked for it as if it had none: it has none.
  if (!is_new && starved.owner) leases_.add_kept(*starved.owner, demand, -1);
  const auto kept = kept_for_others(turn);
  auto room = leases_.find(starved, as_it_is, first, kept);
  if (!room && goes_in_order(spawn)) room = find_recent(starved, first, kept);
  if (!room) {
    if (!is_new) end_turn(turn);
    hopeless.push_back(&spawn);
    return;
  }
  if (is_new || room->place != first)
    set_turn(turn, {spawn.requester, {}, {{room->place, {demand.cpu_e4, demand.gpu_e4, demand.other}}}});
  if (starved.owner) leases_.add_kept(*starved.owner, demand);
  const std::string why = spawn.spec.type + " of job " + whose(spawn.spec.job) + waited(now_ - spawn.since);
  for (const ActorId worker : room->tell) give_back(worker, why);
}

/// One group at a time, the first that workers can make room for: its plan looks at many nodes.
void ClusterMachine::give_group_turn() {
  if (now_ < next_group_look_) return;
  const auto of_group = [](const Turn& turn) { return static_cast<bool>(turn.group); };
  const auto had = std::find_if(turns_.begin(), turns_.end(), of_group);
  const auto& waiting = groups_.waiting();
  auto at = waiting.end();
  if (had != turns_.end()) {
    at = std::find_if(waiting.begin(), waiting.end(),
                      [&](const auto& one) { return one.second == had->group; });
  } else {
    const auto is_starved = [&](const auto& one) {
      const Group& group = groups_.at(one.second);
      const Duration within = leases_.empty() ? config_.in_order_after : config_.lease_turn;
      return now_ - waits_since(group) >= within && lacks_room(group);
    };
    at = std::find_if(waiting.lower_bound(next_group_turn_), waiting.end(), is_starved);
  }
  next_group_turn_ = 0;
  if (at == waiting.end()) return;
  const Group& group = groups_.at(at->second);
  const std::size_t turn = turn_of({}, at->second);
  next_group_look_ = now_ + index_.nodes().size() * kPause;
  if (make_room_for(group, turn, false)) return;
  if (now_ - waits_since(group) >= config_.in_order_after && make_room_for(group, turn, true)) return;
  if (turn < turns_.size()) end_turn(turn);
  next_group_turn_ = at->first + 1;
}

/// False: they cannot. `recent`: once others have gone, too, that have held room for a short time (nobody is
/// told before).
bool ClusterMachine::make_room_for(const Group& group, std::size_t turn, bool recent) {
  const auto kept = kept_for_others(turn);
  const auto kept_on = [&](NodeId node) {
    const auto at = kept.find({{}, node});
    return at == kept.end() ? std::vector<BundleDemand>() : at->second;
  };
  const Instant since = waits_since(group);
  const auto seen = [&](NodeId node) {
    return recent ? without_recent(view_of(node), &group) : view_of(node);
  };
  scheduler::NodeIndex emptier;
  for (const auto& [id, as_shown] : index_.nodes()) {
    NodeView view = leases_.without_all(seen(id));
    for (const BundleDemand& room : kept_on(id)) view = without(std::move(view), room);
    view.cpu_used_e4 = std::clamp<std::int64_t>(view.cpu_used_e4, 0, view.cpu_e4);
    emptier.set(std::move(view));
  }
  const auto plan = scheduler::plan_group(group.record.spec, group.record.placed, emptier);
  if (!plan.is_placed) return false;
  Turn next{{}, group.record.group, {}};
  std::map<NodeId, std::vector<std::size_t>> on;
  for (std::size_t i = 0; i < plan.placed.size(); ++i) {
    if (group.record.placed[i].node) continue;
    next.rooms.emplace_back(SpawnPlace{{}, plan.placed[i].node}, group.record.spec.bundles[i]);
    on[plan.placed[i].node].push_back(i);
  }
  std::vector<ActorId> tell;
  for (const auto& [node, bundles] : on) {
    Starved all{scheduler::demand_of(scheduler::total_of(group.record.spec, bundles))};
    if (all.demand.gpu_e4 > kGpu) all.demand.gpu_e4 = count_of_gpus(all.demand.gpu_e4) * kGpu;
    if (is_for_older(since, node, all.demand)) return false;
    for (const Duration within : {config_.turn_soon, config_.turn_within}) {
      auto some = leases_.room_in({{}, node}, all, seen(node), kept_on(node), within);
      if (!some && within != config_.turn_within) continue;
      if (!some) return false;
      if (!recent) tell.insert(tell.end(), some->begin(), some->end());
      break;
    }
  }
  set_turn(turn, std::move(next));
  const std::string why =
      name_of(group.record) + " of job " + whose(group.record.spec.job) + waited(now_ - since);
  for (const ActorId worker : tell) give_back(worker, why);
  return true;
}

/// Whether it goes before what came later. Of the workers of a process its first: who has one takes turns.
bool ClusterMachine::goes_in_order(const PendingSpawn& spawn) const {
  return spawn.stopped_by == 0 && !spawn.spec.demand.group && now_ - spawn.since >= config_.in_order_after &&
         !(spawn.spec.is_worker_of_tasks() && leases_.has_any(spawn.requester.from));
}

/// Room that came free goes to those that go before a group that waits since `than`.
void ClusterMachine::place_older(Instant than, InOrder& pass) {
  const auto& all = waiting_.all();
  for (auto at = all.lower_bound(pass.next); at != all.end(); at = all.lower_bound(pass.next)) {
    const PendingSpawn& spawn = at->second;
    if (spawn.since > than || now_ - spawn.since < config_.in_order_after) return;
    if (++pass.looks > kTurnLooks || pass.fits_nowhere.size() > kHopelessLooks) {
      next_in_order_ = at->first;
      return;
    }
    pass.next = at->first + 1;
    const ActorDemand& demand = spawn.spec.demand;
    const auto& tried = pass.fits_nowhere;
    if (!goes_in_order(spawn) || std::find(tried.begin(), tried.end(), demand) != tried.end()) continue;
    if (place(demand).verdict == PlacementVerdict::kPlaced) {
      settle(*waiting_.take(Requester(spawn.requester)));
    } else {
      pass.fits_nowhere.push_back(demand);
    }
  }
}

/// Whether one of those could have `room` of that node.
bool ClusterMachine::is_for_older(Instant than, NodeId node, const ActorDemand& room) const {
  std::size_t looks = 0;
  for (const auto& [number, spawn] : waiting_.all()) {
    if (spawn.since > than || now_ - spawn.since < config_.in_order_after || ++looks > kTurnLooks) break;
    const ActorDemand& demand = spawn.spec.demand;
    if (goes_in_order(spawn) && (!demand.affinity || demand.affinity == node) &&
        demand.cpu_e4 <= room.cpu_e4 && demand.gpu_e4 <= room.gpu_e4 &&
        has_amounts(room.other.amounts, {}, demand.other.amounts) &&
        has_labels(nodes_.at(node).info.other.labels, demand.other.labels))
      return true;
  }
  return false;
}

/// Without what others than workers of tasks have held for no longer than room is kept: those may come and
/// go, and if they stay, nothing is kept for it any more.
NodeView ClusterMachine::without_recent(NodeView view, const Group* but) const {
  const Node& node = nodes_.at(view.id);
  const auto is_recent = [&](Instant since) { return now_ - since < config_.turn_within; };
  for (const ActorId id : node.actors) {
    const Actor& actor = actors_.all().at(id);
    if (!actor.record.spec.demand.group && !is_leased(actor) && is_recent(actor.started_at))
      view = with_room_of(std::move(view), actor);
  }
  for (const GroupId id : node.groups) {
    const Group& group = *groups_.find(id);
    if (&group == but || group.record.state == GroupState::kWaiting || !is_recent(group.ready_at)) continue;
    for (std::size_t i = 0; i < group.record.placed.size(); ++i) {
      const PlacedBundle& on = group.record.placed[i];
      if (on.node != view.id) continue;
      const BundleDemand& has = group.record.spec.bundles[i];
      view.cpu_used_e4 -= has.cpu_e4;
      add_amounts(view.other_used, has.other.amounts, -1);
      for (const std::uint32_t gpu : on.gpus) {
        if (gpu < view.gpus.size()) view.gpus[gpu] -= held_of_each(has.gpu_e4);
      }
    }
  }
  return view;
}

/// Room on a node that would be there without those, and workers that may be told: once the others have gone.
std::optional<LeaseTurns::Room> ClusterMachine::find_recent(const Starved& waits, const SpawnPlace& first,
                                                            const LeaseTurns::Kept& kept) {
  static const std::vector<BundleDemand> kNothing;
  const auto room_on = [&](NodeId node) -> std::optional<LeaseTurns::Room> {
    const NodeId only = waits.demand.affinity;
    if (!index_.nodes().contains(node) || (only && only != node)) return std::nullopt;
    leases_.add_look();
    const SpawnPlace place{{}, node};
    const auto others = kept.find(place);
    const bool may_be = leases_
                            .room_in(place, waits, without_recent(view_of(node), nullptr),
                                     others == kept.end() ? kNothing : others->second, config_.turn_within)
                            .has_value();
    return may_be ? std::optional(LeaseTurns::Room{place, {}}) : std::nullopt;
  };
  auto room = room_on(first.node);
  for (auto at = index_.nodes().begin(); !room && at != index_.nodes().end(); ++at) room = room_on(at->first);
  return room;
}

}  // namespace troupe::cluster
