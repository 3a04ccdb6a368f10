// Placement groups: their room, who gets it, and what follows from a death.
#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/names.hpp"
#include "scheduler/cluster/cluster_machine.hpp"
#include "scheduler/placement/group_plan.hpp"

namespace troupe::cluster {
namespace {

std::string key_of(const Group& group) {
  return "group/" + to_string(group.record.group);
}

/// What its bundles that have no room ask for together.
ActorDemand missing_of(const Group& group) {
  ActorDemand all{0, true, {}};
  for (std::size_t i = 0; i < group.record.placed.size(); ++i) {
    if (!group.record.placed[i].node) add_room(all, group.record.spec.bundles[i]);
  }
  return all;
}

ErrorInfo removed(const GroupRecord& group, const std::string& why) {
  return {ErrorCode::kRefused, name_of(group) + " is not ready", why, "make another one"};
}

}  // namespace

void ClusterMachine::answer_group(const Requester& to, const Group& group) {
  if (is_live(to.from.node)) out_.push_back(GroupAnswered{to, true, {group.record, group.reason}, {}});
}

void ClusterMachine::handle(const GroupRequested& e) {
  if (!is_registered(e.requester.from.node)) return;
  const auto no = [&](ErrorInfo error) {
    out_.push_back(GroupAnswered{e.requester, false, {}, std::move(error)});
  };
  if (e.verb == GroupVerb::kMake) {
    if (const Group* known = groups_.of_request(e.requester)) return answer_group(e.requester, *known);
    if (auto error = group_refused(e)) return no(*std::move(error));
    return make_group(e);
  }
  const bool by_name = !e.group && e.verb == GroupVerb::kShow;
  Group* group = by_name ? groups_.named(e.job, e.spec.name) : groups_.find(e.group);
  if (group != nullptr && (group->record.spec.job != e.job || !holds_job(e.requester.from.node, e.job)))
    group = nullptr;  // another job's: as if there were none
  if (group == nullptr) {
    if (e.verb == GroupVerb::kRemove) return out_.push_back(GroupAnswered{e.requester, true, {}, {}});
    const std::string name = by_name ? "named '" + clipped(e.spec.name) + "'" : to_string(e.group);
    return no({by_name ? ErrorCode::kUnavailable : ErrorCode::kRefused, "there is no placement group " + name,
               "this job made none, or it was removed", "make one: Session::placement_group"});
  }
  if (e.verb == GroupVerb::kRemove) {
    GroupStatus last{group->record, "it was removed"};
    last.record.state = GroupState::kEnding;
    remove_group(*group, "it was removed");
    return out_.push_back(GroupAnswered{e.requester, true, std::move(last), {}});
  }
  if (e.verb == GroupVerb::kShow || group->record.state == GroupState::kReady)
    return answer_group(e.requester, *group);
  if (group->record.state == GroupState::kEnding) return no(removed(group->record, group->reason));
  group->awaiting.insert(e.requester);
  out_.push_back(SpawnWaits{e.requester, clipped(group->reason)});
}

std::optional<ErrorInfo> ClusterMachine::group_refused(const GroupRequested& e) {
  const std::string what = "cannot make a placement group";
  if (auto wrong = check_group(e.spec)) return wrong;
  if (auto wrong = check_name(e.spec.name, what)) return wrong;
  const Job* job = jobs_.find(e.job);
  if (job == nullptr || !job->runs() || job->was_driven_by(e.requester.from))
    return ErrorInfo{ErrorCode::kRefused, what, kJobIsOver, "register a job first"};
  if (auto parked = no_driver(*job, what)) return parked;
  if (!holds_job(e.requester.from.node, e.job))
    return ErrorInfo{ErrorCode::kRefused, what, "its node holds no process of that job", ""};
  if (!e.spec.name.empty() && groups_.named(e.job, e.spec.name) != nullptr)
    return ErrorInfo{ErrorCode::kRefused, what, "the name " + e.spec.name + std::string(kNameIsTaken),
                     "choose another name, find it, or remove it first"};
  if (groups_.all().size() >= config_.max_groups)
    return ErrorInfo{ErrorCode::kLimit, what,
                     "there are " + std::to_string(groups_.all().size()) + " in this cluster", "remove some"};
  if (groups_.bundles() + e.spec.bundles.size() > config_.max_bundles)
    return ErrorInfo{ErrorCode::kLimit, what,
                     "the groups of this cluster have " + std::to_string(groups_.bundles()) +
                         " bundles, and all may have " + std::to_string(config_.max_bundles),
                     "remove some, or ask for fewer bundles"};
  return std::nullopt;
}

void ClusterMachine::make_group(const GroupRequested& e) {
  GroupRecord record{GroupId{ids_.next()}, e.spec, e.requester};
  record.spec.job = e.job;
  Group& group = groups_.add(std::move(record));
  group.since = now_;
  group.queue = queue_of(e.job);
  if (!place_group(group)) persist(group.record);
  answer_group(e.requester, group);  // one that actors start with has none yet
}

/// Of what has no room yet.
std::string ClusterMachine::over_quota(const Group& group) const {
  if (group.queue.empty()) return "";
  return why_stopped(group.queue, scheduler::Room::of(missing_of(group)));
}

/// Places what has no room yet: all of it, or nothing. True: `group` may be gone.
bool ClusterMachine::place_group(Group& group) {
  const bool starts = group.record.spec.start_only;
  if (starts && !are_all_there(group)) {
    group.reason = "waits for the actors that start with it";
    group.not_placed.clear();
    return false;
  }
  const auto waits = [&](const std::string& why, bool may_come) {
    const bool is_known = std::exchange(group.not_placed, why) == why;
    if (is_known && now_ - group.reason_at < config_.tell_again) return false;
    group.reason_at = now_;
    const std::string before = std::exchange(
        group.reason, clipped(may_come ? why + held_by_groups(missing_of(group), &group) : why));
    if (is_known && group.reason == before) return false;
    for (const Requester& to : group.awaiting) {
      if (is_live(to.from.node)) out_.push_back(SpawnWaits{to, group.reason});
    }
    return false;
  };
  if (const std::string why = over_quota(group); !why.empty()) {
    group.cut_off = false;  // it takes no turn of those that are searched for: more quota has it tried
    return waits(why, false);
  }
  const auto plan = scheduler::plan_group(group.record.spec, group.record.placed, index_);
  group_looks_ += plan.looks;
  if (!plan.is_placed) {
    group.cut_off = plan.cut_off || plan.looks > config_.group_looks;
    if (group.cut_off) group.tried = ++group_searches_;
    return waits(plan.reason, !plan.is_never);
  }
  if (starts) {
    start_together(group, plan.placed, clipped(plan.reason));
    return true;
  }
  group.reason = clipped(plan.reason);
  group.not_placed.clear();
  group.ready_at = now_;
  ++group.record.generation;
  const auto before = std::exchange(group.record.placed, plan.placed);
  for (std::size_t i = 0; i < before.size(); ++i) group.used[i].gpus.resize(plan.placed[i].gpus.size());
  groups_.set_state(group, GroupState::kReady);
  persist(group.record);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!before[i].node) hold_bundle(group, i);
  }
  for (const Requester& to : std::exchange(group.awaiting, {})) answer_group(to, group);
  return true;
}

void ClusterMachine::hold_bundle(Group& group, std::size_t bundle) {
  const PlacedBundle& on = group.record.placed[bundle];
  const BundleDemand& has = group.record.spec.bundles[bundle];
  Node& node = nodes_.at(on.node);
  hold_room(node, has, on.gpus);
  charge(group.queue, scheduler::Room::of(has), 1);
  node.groups.insert(group.record.group);
  refresh(on.node);
  show(group, bundle);
  freed_.push_back(on.node);  // those that wait for the group
}

/// Groups go before spawns, which ask for less at a time, but for those that have waited long, and longer.
/// Not those whose search takes long, nor those behind many others: what an event of one actor may look at is
/// bounded.
void ClusterMachine::place_groups() {
  const auto left = place_groups_from(0);
  if (!left) return;
  auto& later = next_group_to_try_ ? try_again_from_ : next_group_to_try_;
  later = later ? std::min(*later, *left) : *left;
}

/// The first that was not tried, if there are too many.
std::optional<std::uint64_t> ClusterMachine::place_groups_from(std::uint64_t first) {
  group_looks_ = 0;
  InOrder older{std::exchange(next_in_order_, 0)};
  const auto& waiting = groups_.waiting();
  for (auto at = waiting.lower_bound(first); at != waiting.end();) {
    const auto [number, id] = *at;
    if (group_looks_ > config_.group_looks) return number;
    Group& group = groups_.at(id);
    place_older(waits_since(group), older);
    if (!group.cut_off) place_group(group);
    at = waiting.upper_bound(number);  // it may have been placed
  }
  return std::nullopt;
}

/// At each tick: groups that were not tried, and one of those whose search takes long, the one that was tried
/// the longest time ago. And the one whose reason is the oldest, if it may be of what is gone.
void ClusterMachine::search_again() {
  if (next_group_to_try_) {
    next_group_to_try_ = place_groups_from(*next_group_to_try_);
    if (!next_group_to_try_) next_group_to_try_ = std::exchange(try_again_from_, std::nullopt);
  }
  Group* next = nullptr;
  for (const auto& [number, id] : groups_.waiting()) {
    Group& group = groups_.at(id);
    if (group.cut_off && (next == nullptr || group.tried < next->tried)) next = &group;
  }
  if (next != nullptr) place_group(*next);
  Group* oldest = nullptr;
  for (const auto& [number, id] : groups_.waiting()) {
    Group& group = groups_.at(id);
    if (now_ - group.reason_at < config_.tell_again) continue;
    if (group.record.spec.start_only && !are_all_there(group)) continue;
    if (oldest == nullptr || group.reason_at < oldest->reason_at) oldest = &group;
  }
  if (oldest != nullptr) place_group(*oldest);
}

/// What is in it ends; its room is given back with the last of that.
void ClusterMachine::remove_group(Group& group, const std::string& reason, ErrorCode code) {
  if (group.record.state == GroupState::kEnding) return;
  const GroupId id = group.record.group;
  groups_.set_state(group, GroupState::kEnding);
  group.reason = reason;
  persist(group.record);
  for (const Requester& to : std::exchange(group.awaiting, {})) {
    if (is_live(to.from.node)) out_.push_back(GroupAnswered{to, false, {}, removed(group.record, reason)});
  }
  const std::string why = name_of(group.record) + ": " + reason;
  const JobId of = group.record.spec.job;
  // The last that ends takes the group with it.
  const std::set<ActorId> here = group.actors;
  for (const Requester& requester : waiting_.of_group(id)) {
    const auto spawn = waiting_.take(requester);
    refuse(*spawn, {code, "cannot place " + spawn->spec.type, why, ""});
  }
  for (const ActorId actor : here) end_actor(actors_.at(actor), why);
  if (Job* job = jobs_.find(of)) {
    for (const ActorId actor : std::set(job->restarting)) {
      if (actors_.at(actor).record.spec.demand.group == id) end_actor(actors_.at(actor), why);
    }
  }
  if (Group* left = groups_.find(id)) forget_if_empty(*left);
}

/// One that was removed, once nothing runs in it.
void ClusterMachine::forget_if_empty(Group& group) {
  if (group.record.state != GroupState::kEnding || !group.actors.empty()) return;
  const GroupId id = group.record.group;
  out_.push_back(Erase{key_of(group)});
  const GroupRecord record = group.record;
  const std::string queue = group.queue;
  groups_.erase(id);
  for (std::size_t i = 0; i < record.placed.size(); ++i) {
    const PlacedBundle& on = record.placed[i];
    const auto at = nodes_.find(on.node);
    if (at == nodes_.end()) continue;
    free_room(at->second, record.spec.bundles[i], on.gpus);
    charge(queue, scheduler::Room::of(record.spec.bundles[i]), -1);
    at->second.groups.erase(id);
    if (membership_.liveness(on.node) == Liveness::kDead) continue;
    refresh(on.node);
    freed_.push_back(on.node);
  }
}

/// What placement sees of a bundle: nothing, if it sees nothing of its node.
void ClusterMachine::show(Group& group, std::size_t bundle) {
  const NodeId id = id_of_bundle(static_cast<std::int32_t>(bundle));
  const auto on = index_.nodes().find(group.record.placed[bundle].node);
  if (on == index_.nodes().end()) return group.room.remove(id);
  const SpawnPlace place{group.record.group, id};
  group.room.set(without_kept(view_of_bundle(group, bundle, on->second), place));
}

void ClusterMachine::show_bundles(NodeId id) {
  for (const ActorId actor : nodes_.at(id).actors) note_lease(actors_.at(actor));
  for (const GroupId group_id : nodes_.at(id).groups) {
    Group& group = groups_.at(group_id);
    for (std::size_t i = 0; i < group.record.placed.size(); ++i) {
      if (group.record.placed[i].node == id) show(group, i);
    }
  }
}

/// Their node is dead, and what ran in them was let go: they are placed anew.
void ClusterMachine::lose_bundles(NodeId id, const std::string& why) {
  for (const GroupId group_id : nodes_.at(id).groups) {
    Group& group = groups_.at(group_id);
    for (std::size_t i = 0; i < group.record.placed.size(); ++i) {
      if (group.record.placed[i].node != id) continue;
      TROUPE_ASSERT(group.used[i].actors == 0, "what was on a dead node holds nothing");
      charge(group.queue, scheduler::Room::of(group.record.spec.bundles[i]), -1);
      group.record.placed[i] = {};
      group.used[i].gpus.clear();
    }
    group.lost_at = now_;
    group.reason = clipped("bundles are placed anew: " + why);
    group.not_placed.clear();
    if (group.record.state == GroupState::kReady) groups_.set_state(group, GroupState::kWaiting);
    persist(group.record);
  }
  look_at_groups_ = true;
}

void ClusterMachine::release_idle_bundles() {
  if (groups_.waiting().size() < 2) return;
  for (const auto& [number, id] : groups_.waiting()) {
    Group& group = groups_.at(id);
    auto& placed = group.record.placed;
    const auto is_idle = [&](std::size_t i) { return placed[i].node && group.used[i].actors == 0; };
    if (now_ - group.lost_at < config_.release_after) continue;
    bool released = false;
    for (std::size_t i = 0; i < placed.size(); ++i) {
      if (!is_idle(i)) continue;
      const PlacedBundle was = std::exchange(placed[i], {});
      group.used[i].gpus.clear();
      const BundleDemand& had = group.record.spec.bundles[i];
      Node& node = nodes_.at(was.node);
      free_room(node, had, was.gpus);
      charge(group.queue, scheduler::Room::of(had), -1);
      group.room.remove(id_of_bundle(static_cast<std::int32_t>(i)));
      if (std::none_of(placed.begin(), placed.end(), [&](const auto& on) { return on.node == was.node; }))
        node.groups.erase(id);
      refresh(was.node);
      freed_.push_back(was.node);
      released = true;
    }
    if (released) persist(group.record);
  }
}

/// Gives the room of bundles on that node to those that wait for it.
void ClusterMachine::fill_bundles(NodeId node) {
  const auto at = nodes_.find(node);
  if (at == nodes_.end()) return;
  for (const GroupId id : std::set(at->second.groups)) {
    const Group& group = groups_.at(id);
    for (std::size_t i = 0; i < group.record.placed.size(); ++i) {
      if (group.record.placed[i].node != node) continue;
      const NodeId bundle = id_of_bundle(static_cast<std::int32_t>(i));
      const auto fits = [&](const ActorDemand& demand) { return group.room.fits(bundle, demand); };
      for (;;) {
        const PendingSpawn* first = waiting_.first_fit({id, bundle}, group.room.free_of(bundle), fits,
                                                       group.room.has_free_gpus(bundle));
        if (first == nullptr) break;
        const Requester requester = first->requester;
        settle(*waiting_.take(requester));
        TROUPE_ASSERT(actors_.of_request(requester) != nullptr, "what fits a bundle is placed");
      }
    }
  }
}

Placement ClusterMachine::place(const ActorDemand& demand) const {
  if (!demand.group) return index_.place(demand);
  const Group* group = groups_.find(demand.group);
  if (group == nullptr)
    return {PlacementVerdict::kNever, {}, "placement group " + to_string(demand.group) + " was removed"};
  return place_in(*group, demand);
}

/// The first groups that hold what is asked for: "; room is held by placement group a of job x (4 CPU)".
/// Empty: none does.
std::string ClusterMachine::held_by_groups(const ActorDemand& demand, const Group* but) const {
  constexpr std::size_t kNamed = 3, kMostLooks = 1000;  // at groups and bundles: each spawn that waits asks
  std::vector<std::string> holders;
  std::size_t looks = 0;
  for (auto at = groups_.all().begin();
       at != groups_.all().end() && holders.size() <= kNamed && looks < kMostLooks; ++at) {
    const GroupRecord& record = at->second.record;
    looks += 1 + record.placed.size();
    ActorDemand held;
    for (std::size_t i = 0; i < record.placed.size() && &at->second != but; ++i) {
      if (record.placed[i].node) add_room(held, record.spec.bundles[i]);
    }
    if (competes(demand, held))
      holders.push_back(name_of(record) + " of job " + whose(record.spec.job) + " (" +
                        scheduler::NodeIndex::wanted(held) + ")");
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, holders.size()); ++i)
    text += (text.empty() ? "; room is held by " : ", ") + holders[i];
  return holders.size() > kNamed ? text + " and others" : text;
}

std::string ClusterMachine::why_waits(const PendingSpawn& spawn) const {
  const ActorDemand& demand = spawn.spec.demand;
  const Job* job = jobs_.find(spawn.spec.job);
  if (spawn.stopped_by != 0 && job != nullptr) return why_stopped(job->queue, scheduler::Room::of(demand));
  return why_waits(demand);
}

std::string ClusterMachine::why_waits(const ActorDemand& demand) const {
  const Group* group = groups_.find(demand.group);
  if (group == nullptr) return index_.why_waits(demand) + held_by_groups(demand, nullptr);
  const NodeId on =
      demand.bundle < 0 ? NodeId{} : group->record.placed.at(static_cast<std::size_t>(demand.bundle)).node;
  const auto node = nodes_.find(on);
  if (node == nodes_.end() || index_.nodes().contains(on)) return why_waits_in(*group, demand);
  const auto& drain = node->second.drain;
  return name_of(group->record) + ": bundle " + std::to_string(demand.bundle) + " is placed anew when " +
         node->second.info.name + " has left, which " +
         (drain && !node->second.leaving ? "drains: " + drain->reason : "leaves");
}

/// Why no actor of that spec can be in the group that it asks for.
std::optional<ErrorInfo> ClusterMachine::group_of_wrong(const ActorSpec& spec) const {
  if (!spec.demand.group) return std::nullopt;
  const std::string what = "cannot spawn " + spec.type;
  const Group* group = groups_.find(spec.demand.group);
  if (group == nullptr || group->record.spec.job != spec.job)
    return ErrorInfo{ErrorCode::kRefused, what,
                     "there is no placement group " + to_string(spec.demand.group) +
                         " in this job: it was removed, or is another job's",
                     "make one: Session::placement_group"};
  if (group->record.spec.start_only) return start_group_wrong(*group, spec);
  if (!spec.demand.other.labels.empty())
    return ErrorInfo{ErrorCode::kRefused, what, "it asks for labels in " + name_of(group->record),
                     "give the labels to the group's bundles, which have their nodes"};
  const Placement placement = place_in(*group, spec.demand);
  if (placement.verdict != PlacementVerdict::kNever) return std::nullopt;
  return ErrorInfo{ErrorCode::kRefused, what, placement.reason, "ask for what a bundle of it has"};
}

/// Of a store.
void ClusterMachine::restore_group(GroupRecord record) {
  if (check_group(record.spec)) return out_.push_back(Erase{"group/" + to_string(record.group)});
  record.placed.resize(record.spec.bundles.size());
  bool changed = false;
  for (std::size_t i = 0; i < record.placed.size(); ++i) {
    PlacedBundle& on = record.placed[i];
    if (!on.node || (nodes_.contains(on.node) && are_gpus_of(on.gpus, record.spec.bundles[i].gpu_e4)))
      continue;
    on = {};
    changed = true;
  }
  if (changed && record.state == GroupState::kReady) record.state = GroupState::kWaiting;
  Group& group = groups_.add(std::move(record));
  group.queue = queue_of(group.record.spec.job);
  group.reason = "known from before the head restarted";
  group.since = group.lost_at = now_;
  if (changed) persist(group.record);
  for (std::size_t i = 0; i < group.record.placed.size(); ++i) {
    if (group.record.placed[i].node) hold_bundle(group, i);
  }
  look_at_groups_ = true;
}

/// An actor of a store whose place is not that of its bundle cannot be.
bool ClusterMachine::is_where_its_bundle_is(const ActorRecord& actor) const {
  if (!actor.spec.demand.group) return true;
  const Group* group = groups_.find(actor.spec.demand.group);
  return group != nullptr && is_in_its_bundle(*group, actor);
}

}  // namespace troupe::cluster
