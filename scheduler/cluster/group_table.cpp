#include "scheduler/cluster/group_table.hpp"

#include <algorithm>

#include "runtime/core/assert.hpp"

namespace troupe::cluster {
namespace {

/// The demand as the index of bundles sees it.
ActorDemand inside(const ActorDemand& demand) {
  return {demand.cpu_e4,
          demand.isolated,
          demand.bundle < 0 ? NodeId{} : id_of_bundle(demand.bundle),
          demand.gpu_e4,
          {},
          -1,
          {demand.other.amounts, {}}};  // a bundle has its node
}

bool could_hold(const BundleDemand& bundle, const ActorDemand& demand) {
  return bundle.cpu_e4 >= demand.cpu_e4 && bundle.gpu_e4 >= demand.gpu_e4 &&
         has_amounts(bundle.other.amounts, {}, demand.other.amounts);
}

}  // namespace

std::string name_of(const GroupRecord& group) {
  return "placement group " + (group.spec.name.empty() ? to_string(group.group) : group.spec.name);
}

Placement place_in(const Group& group, const ActorDemand& demand) {
  const std::string name = name_of(group.record);
  const auto& bundles = group.record.spec.bundles;
  const auto never = [&](std::string why) { return Placement{PlacementVerdict::kNever, {}, std::move(why)}; };
  if (group.record.state == GroupState::kEnding) return never(name + " was removed");
  const auto count = static_cast<std::int32_t>(bundles.size());
  if (demand.bundle >= count)
    return never(name + " has no bundle " + std::to_string(demand.bundle) + ": it has " +
                 std::to_string(count) + ", from 0");
  const auto holds = [&](const BundleDemand& bundle) { return could_hold(bundle, demand); };
  const std::string wanted = scheduler::NodeIndex::wanted(demand);
  if (demand.bundle >= 0 && !holds(bundles[static_cast<std::size_t>(demand.bundle)]))
    return never("bundle " + std::to_string(demand.bundle) + " of " + name + " has no " + wanted + " at all");
  if (std::none_of(bundles.begin(), bundles.end(), holds))
    return never("no bundle of " + name + " has " + wanted + " at all");
  Placement placement = group.room.place(inside(demand));
  if (placement.verdict != PlacementVerdict::kPlaced) return {};  // those that could hold it may be away
  placement.bundle = static_cast<std::int32_t>(bundle_of_id(placement.node));
  const PlacedBundle& on = group.record.placed[static_cast<std::size_t>(placement.bundle)];
  placement.node = on.node;
  for (std::uint32_t& gpu : placement.gpus) gpu = on.gpus[gpu];
  placement.reason = name + ": " + placement.reason;
  return placement;
}

std::string why_waits_in(const Group& group, const ActorDemand& demand) {
  const std::string name = name_of(group.record);
  if (group.record.state == GroupState::kWaiting) return name + " waits: " + group.reason;
  if (group.room.nodes().empty()) return name + ": the nodes of its bundles leave, drain or are silent";
  return name + ": " + group.room.why_waits(inside(demand));
}

NodeView view_of_bundle(const Group& group, std::size_t bundle, const NodeView& node) {
  const BundleDemand& has = group.record.spec.bundles[bundle];
  const Group::Use& use = group.used[bundle];
  GpuUse gpus = use.gpus;
  // A part of a GPU: the rest is not this bundle's.
  if (has.gpu_e4 > 0 && has.gpu_e4 < kGpu) gpus[0] += kGpu - has.gpu_e4;
  return {id_of_bundle(static_cast<std::int32_t>(bundle)),
          "bundle " + std::to_string(bundle) + " on " + node.name,
          has.cpu_e4,
          use.cpu_e4,
          use.actors,
          node.suspect,
          std::move(gpus),
          {has.other.amounts, {}},
          use.other};
}

bool is_in_its_bundle(const Group& group, const ActorRecord& actor) {
  const auto at = static_cast<std::size_t>(actor.bundle);
  if (actor.bundle < 0 || at >= group.record.placed.size()) return false;
  const PlacedBundle& on = group.record.placed[at];
  const auto is_its = [&](std::uint32_t gpu) {
    return std::find(on.gpus.begin(), on.gpus.end(), gpu) != on.gpus.end();
  };
  return actor.node && on.node == actor.node && std::all_of(actor.gpus.begin(), actor.gpus.end(), is_its);
}

void use_bundle(Group& group, const Actor& of, int sign) {
  const ActorRecord& actor = of.record;
  TROUPE_ASSERT(is_in_its_bundle(group, actor), "an actor in a group is where its bundle is");
  const auto at = static_cast<std::size_t>(actor.bundle);
  Group::Use& use = group.used[at];
  const auto& gpus = group.record.placed[at].gpus;
  use.cpu_e4 += sign * held_by(of).cpu_e4;
  use.actors += sign;
  for (const std::uint32_t gpu : actor.gpus) {
    const auto local = std::find(gpus.begin(), gpus.end(), gpu) - gpus.begin();
    use.gpus[static_cast<std::size_t>(local)] += sign * held_of_each(actor.spec.demand.gpu_e4);
  }
  add_amounts(use.other, actor.spec.demand.other.amounts, sign);
  TROUPE_ASSERT(use.cpu_e4 >= 0 && use.actors >= 0, "an actor gives back what it held");
  if (sign > 0) {
    group.actors.insert(actor.actor);
  } else {
    group.actors.erase(actor.actor);
  }
}

Group& GroupTable::add(GroupRecord record) {
  const GroupId id = record.group;
  TROUPE_ASSERT(!groups_.contains(id), "a group's id is given once");
  record.placed.resize(record.spec.bundles.size());
  jobs_[record.spec.job].insert(id);
  requests_[record.requester] = id;
  Group group;
  group.number = ++last_number_;
  if (record.state == GroupState::kWaiting) waiting_.emplace(group.number, id);
  for (const PlacedBundle& bundle : record.placed) group.used.push_back({0, GpuUse(bundle.gpus.size()), 0});
  bundles_ += record.spec.bundles.size();
  group.record = std::move(record);
  return groups_.emplace(id, std::move(group)).first->second;
}

Group* GroupTable::find(GroupId id) {
  const auto at = groups_.find(id);
  return at == groups_.end() ? nullptr : &at->second;
}

const Group* GroupTable::find(GroupId id) const {
  const auto at = groups_.find(id);
  return at == groups_.end() ? nullptr : &at->second;
}

Group* GroupTable::named(JobId job, const std::string& name) {
  if (name.empty()) return nullptr;
  for (const GroupId id : of_job(job)) {
    Group& group = groups_.at(id);
    if (group.record.spec.name == name && group.record.state != GroupState::kEnding) return &group;
  }
  return nullptr;
}

Group* GroupTable::of_request(const Requester& requester) {
  const auto at = requests_.find(requester);
  return at == requests_.end() ? nullptr : &groups_.at(at->second);
}

std::vector<GroupId> GroupTable::of_job(JobId job) const {
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return {};
  return {at->second.begin(), at->second.end()};
}

void GroupTable::set_state(Group& group, GroupState state) {
  group.record.state = state;
  group.cut_off = false;
  if (state == GroupState::kWaiting) {
    waiting_.emplace(group.number, group.record.group);
  } else {
    waiting_.erase(group.number);
  }
}

void GroupTable::erase(GroupId id) {
  const Group group = std::move(groups_.extract(id).mapped());
  const GroupRecord& record = group.record;
  requests_.erase(record.requester);
  waiting_.erase(group.number);
  bundles_ -= record.spec.bundles.size();
  const auto job = jobs_.find(record.spec.job);
  job->second.erase(id);
  if (job->second.empty()) jobs_.erase(job);
}

void GroupTable::check() const {
  std::size_t of_jobs = 0, bundles = 0;
  for (const auto& [job, groups] : jobs_) of_jobs += groups.size();
  TROUPE_ASSERT(of_jobs == groups_.size() && requests_.size() == groups_.size(), "a group is of a job");
  for (const auto& [id, group] : groups_) {
    TROUPE_ASSERT(waiting_.contains(group.number) == (group.record.state == GroupState::kWaiting),
                  "groups that wait are known");
    bundles += group.record.spec.bundles.size();
    TROUPE_ASSERT(group.record.placed.size() == group.record.spec.bundles.size(),
                  "a bundle is placed or not");
    TROUPE_ASSERT(group.record.state != GroupState::kEnding || !group.actors.empty(),
                  "a group that was removed goes with the last that runs in it");
    TROUPE_ASSERT(group.record.state != GroupState::kReady || group.awaiting.empty(), "who waits is told");
    for (const PlacedBundle& bundle : group.record.placed)
      TROUPE_ASSERT(group.record.state != GroupState::kReady || bundle.node,
                    "a ready group has all its room");
  }
  TROUPE_ASSERT(bundles == bundles_, "bundles are counted");
}

}  // namespace troupe::cluster
