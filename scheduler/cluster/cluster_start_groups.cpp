// Groups whose actors start together, all of them or none: they hold nothing until they start, and are gone
// then.
#include <utility>

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {

/// Why that actor cannot start with the group. REQUIRES: the group is one that actors start with.
std::optional<ErrorInfo> ClusterMachine::start_group_wrong(const Group& group, const ActorSpec& spec) const {
  const std::string what = "cannot spawn " + spec.type;
  const auto refused = [&](std::string why, std::string todo) {
    return ErrorInfo{ErrorCode::kRefused, what, std::move(why), std::move(todo)};
  };
  const std::string name = name_of(group.record);
  const ActorDemand& demand = spec.demand;
  const auto& bundles = group.record.spec.bundles;
  if (group.record.state == GroupState::kEnding) return refused(name + " was removed", "make another one");
  if (demand.bundle < 0 || static_cast<std::size_t>(demand.bundle) >= bundles.size())
    return refused(name + " has no bundle " + std::to_string(demand.bundle) + " to start in",
                   "name one of its " + std::to_string(bundles.size()) + ", from 0");
  const BundleDemand& bundle = bundles[static_cast<std::size_t>(demand.bundle)];
  if (demand.cpu_e4 != bundle.cpu_e4 || demand.gpu_e4 != bundle.gpu_e4)
    return refused("it asks for other CPUs and GPUs than bundle " + std::to_string(demand.bundle) + " of " +
                       name + " has",
                   "ask for what the bundle has");
  if (demand.other != bundle.other)
    return refused("it asks for other memory, resources or labels than bundle " +
                       std::to_string(demand.bundle) + " of " + name + " has",
                   "ask for what the bundle has");
  if (waiting_.has({group.record.group, id_of_bundle(demand.bundle)}))
    return refused("another actor waits for bundle " + std::to_string(demand.bundle) + " of " + name,
                   "name another one");
  return std::nullopt;
}

bool ClusterMachine::are_all_there(const Group& group) const {
  // They come in order: the last one is the one that is missing.
  for (auto i = static_cast<std::int32_t>(group.record.spec.bundles.size()); i-- > 0;) {
    if (!waiting_.has({group.record.group, id_of_bundle(i)})) return false;
  }
  return true;
}

/// Why no node could hold one of its bundles, also once others have ended; empty: each could be held.
std::string ClusterMachine::why_never(const Group& group) const {
  const BundleDemand* before = nullptr;
  for (const BundleDemand& bundle : group.record.spec.bundles) {
    if (before != nullptr && *before == bundle) continue;
    before = &bundle;
    const ActorDemand alone{bundle.cpu_e4, true, {}, bundle.gpu_e4, {}, -1, bundle.other};
    const Placement placement = index_.place(alone);
    if (placement.verdict == PlacementVerdict::kNever && !may_come_back(alone)) return placement.reason;
  }
  return "";
}

/// Whoever made the group may have died, or failed, before it asked for all of them: those that came would
/// wait until their job ends.
void ClusterMachine::end_late_starts() {
  std::vector<GroupId> late;
  for (const auto& [number, id] : groups_.waiting()) {
    const Group& group = groups_.at(id);
    if (group.record.spec.start_only && now_ - group.since >= config_.start_together_within &&
        !are_all_there(group))
      late.push_back(id);
  }
  const auto within = static_cast<int>(to_seconds(config_.start_together_within));
  for (const GroupId id : late) {
    remove_group(groups_.at(id),
                 "not all of its actors were asked for within " + std::to_string(within) + " s");
  }
}

/// A node has not come back that alone could hold one of them.
void ClusterMachine::end_hopeless_starts() {
  std::vector<std::pair<GroupId, std::string>> hopeless;
  for (const auto& [number, id] : groups_.waiting()) {
    const Group& group = groups_.at(id);
    if (!group.record.spec.start_only || !are_all_there(group)) continue;
    if (std::string never = why_never(group); !never.empty()) hopeless.emplace_back(id, std::move(never));
  }
  for (const auto& [id, never] : hopeless) remove_group(groups_.at(id), never);
}

/// The last that comes may start all, or show that no wait would help. The others are told that they wait:
/// their process asks for no more than some hundreds at a time that are not (RequestQueue::kUnderWay).
void ClusterMachine::wait_together(PendingSpawn spawn, Group& group) {
  const Requester to = spawn.requester;
  waiting_.add(std::move(spawn));
  if (!are_all_there(group)) {
    if (is_live(to.from.node))
      out_.push_back(SpawnWaits{to, "not all that are to start with it have been asked for yet"});
    return;
  }
  if (place_group(group)) return;
  if (const std::string never = why_never(group); !never.empty()) return remove_group(group, never);
  tell_members(group);
}

/// What they wait for.
void ClusterMachine::tell_members(Group& group) {
  group.told = group.reason;
  group.told_at = now_;
  for (const Requester& to : waiting_.of_group(group.record.group)) {
    if (is_live(to.from.node)) out_.push_back(SpawnWaits{to, why_waits(waiting_.at(to).spec.demand)});
  }
}

/// What a group waits for may change with everything that ends: its members hear of it from time to time.
void ClusterMachine::tell_members_again() {
  for (const auto& [number, id] : groups_.waiting()) {
    Group& group = groups_.at(id);
    const bool is_news = !group.told.empty() && group.told != group.reason;
    if (is_news && now_ - group.told_at >= config_.tell_again) tell_members(group);
  }
}

/// An actor of that spec was refused, or is not wanted any more: those that were to start with it do not.
void ClusterMachine::end_start(const ActorSpec& spec, const std::string& why, ErrorCode code) {
  Group* group = groups_.find(spec.demand.group);
  if (group != nullptr && group->record.spec.start_only) remove_group(*group, why, code);
}

/// From here on each holds its room itself, as if it had started alone. REQUIRES: are_all_there(group).
void ClusterMachine::start_together(Group& group, const std::vector<PlacedBundle>& placed,
                                    const std::string& reason) {
  const std::string why = name_of(group.record) + ": " + reason;
  std::vector<PendingSpawn> members(placed.size());
  for (const Requester& requester : waiting_.of_group(group.record.group)) {
    PendingSpawn spawn = *waiting_.take(requester);
    members[static_cast<std::size_t>(spawn.spec.demand.bundle)] = std::move(spawn);
  }
  GroupRecord record = group.record;
  record.state = GroupState::kReady;
  record.placed = placed;
  for (const Requester& to : std::exchange(group.awaiting, {})) {
    if (is_live(to.from.node)) out_.push_back(GroupAnswered{to, true, {record, why}, {}});
  }
  out_.push_back(Erase{"group/" + to_string(record.group)});
  groups_.erase(record.group);
  for (std::size_t i = 0; i < members.size(); ++i) {
    TROUPE_ASSERT(members[i].requester.from.node, "each bundle has its actor");
    members[i].spec.demand.group = {};
    members[i].spec.demand.bundle = -1;
    start(std::move(members[i]), {PlacementVerdict::kPlaced, placed[i].node, why, placed[i].gpus});
  }
}

}  // namespace troupe::cluster
