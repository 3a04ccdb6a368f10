// Why a submission waits: what it asks for, what nodes lack, who is before it. Nothing is decided here.
#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/core/count.hpp"
#include "runtime/wire/slow_start.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t kMostListed = 16;

using Verdict = WaitReport::Verdict;

std::int64_t free_cpu(const NodeView& node) {
  return node.suspect ? 0 : std::max<std::int64_t>(0, node.cpu_e4 - node.cpu_used_e4);
}
std::int64_t free_gpus(const NodeView& node) {
  return node.suspect ? 0 : free_gpu(node.gpus);
}
std::int64_t all_gpus(const NodeView& node) {
  return static_cast<std::int64_t>(node.gpus.size()) * kGpu;
}

void lack(WaitReport::OnNode& on, const char* what, std::int64_t need, std::int64_t free, std::int64_t all) {
  if (need <= free) return;
  const std::string unit = std::string(" ") + what;
  on.lacks.push_back(format_cpus(need - free) + unit +
                     (all < need ? ", and has " + format_cpus(all) + " in all"
                                 : ": " + format_cpus(free) + " of " + format_cpus(all) + " is free"));
}

WaitReport::OnNode look_at(const NodeView& node, const ActorDemand& demand) {
  WaitReport::OnNode on{node.name, {}};
  if (node.suspect) on.lacks.emplace_back("a sign of life: it is silent");
  lack(on, "CPU", demand.cpu_e4, std::max<std::int64_t>(0, node.cpu_e4 - node.cpu_used_e4), node.cpu_e4);
  lack(on, "GPU", demand.gpu_e4, free_gpu(node.gpus), all_gpus(node));
  if (on.lacks.empty() && demand.gpu_e4 > 0 && !deal_gpus(node.gpus, demand.gpu_e4))
    on.lacks.emplace_back("GPUs in one piece: what is free are parts of several");
  for (const ResourceAmount& one : demand.other.amounts) {
    const std::int64_t all = amount_of(node.other.amounts, one.name);
    const std::int64_t free = all - amount_of(node.other_used, one.name);
    if (free >= one.amount) continue;
    on.lacks.push_back(format_amount({one.name, one.amount - free}) +
                       (all == 0           ? ", and has none"
                        : all < one.amount ? ", and has " + format_amount({one.name, all}) + " in all"
                                           : ": " + format_amount({one.name, free}) + " is free"));
  }
  for (const Label& label : demand.other.labels) {
    if (!has_labels(node.other.labels, {label})) on.lacks.push_back("label " + label.key + "=" + label.value);
  }
  return on;
}

}  // namespace

/// In full where that looks at one node, or the decision looked at many anyway.
std::string ClusterMachine::why_waits_briefly(const PendingSpawn& spawn) const {
  const ActorDemand& demand = spawn.spec.demand;
  return demand.gpu_e4 > 0 || !demand.other.empty() || demand.affinity || demand.group ||
                 spawn.stopped_by != 0
             ? why_waits(spawn)
             : index_.why_waits_for_cpus(demand) + held_by_groups(demand, nullptr);
}

std::string ClusterMachine::not_started(const Actor& actor, Duration after) const {
  return std::string(kDidNotStart) + nodes_.at(actor.record.node).info.name + " within " +
         std::to_string(static_cast<int>(to_seconds(after))) +
         " s: its constructor did not return, or its process did not come up";
}

std::string ClusterMachine::why(const Actor& actor) const {
  const ActorRecord& record = actor.record;
  if (record.state == ActorState::kStarting && now_ - actor.started_at >= config_.slow_start)
    return name_of(record) + ": " + not_started(actor, now_ - actor.started_at);
  if (record.state == ActorState::kRestarting && waiting_.contains(record.requester))
    return actor.reason + "; its next life waits: " + why_waits_briefly(waiting_.at(record.requester));
  if (record.state == ActorState::kRestarting && record.spec.is_kept() && !actor.has_payload) {
    const Instant until = actor.restart_at + config_.lost_node_grace;
    return actor.reason + "; it waits for a node that has what it is constructed with, for " +
           std::to_string(until > now_ ? static_cast<int>(to_seconds(until - now_)) : 0) + " s more at most";
  }
  return actor.reason + (actor.waits ? "; it waits, and leaves its CPUs to others" : "");
}

const SubmissionRecord* ClusterMachine::first_that_waits() const {
  return submissions_.find(first_);
}

/// There is room for it, which is kept for the first.
bool ClusterMachine::is_held(const SubmissionRecord& first, const SubmissionRecord& submission) const {
  return first.number != submission.number &&
         index_.place(demand_of(submission.spec)).verdict == PlacementVerdict::kPlaced;
}

/// The submission that a job is of, or else its program's name.
std::string ClusterMachine::whose(JobId id) const {
  const Job* job = jobs_.find(id);
  if (job == nullptr) return to_string(id);
  return job->record.submission.empty() ? job->record.name : job->record.submission;
}

/// The first jobs whose actors hold what is asked for, outside of placement groups, and what frees it. Empty:
/// none does. Of a training run the trainers hold theirs until its program has taken the result: who waits
/// cannot see that the run is over.
std::string ClusterMachine::held_by_actors(const ActorDemand& demand) const {
  constexpr std::size_t kNamed = 3, kMostLooks = 10'000;
  std::vector<std::string> holders;
  std::size_t looks = 0;
  for (auto at = jobs_.all().begin();
       at != jobs_.all().end() && holders.size() <= kNamed && looks < kMostLooks; ++at) {
    ActorDemand held;
    std::int64_t count = 0;
    std::string type;
    for (const ActorId id : at->second.actors) {
      if (++looks > kMostLooks) break;
      const ActorRecord& actor = actors_.at(id).record;
      const ActorDemand has = held_by(actors_.at(id));
      if (has.group || !competes(demand, has) || (demand.affinity && demand.affinity != actor.node)) continue;
      add_room(held, has);
      if (count++ == 0) type = actor.spec.type;
      if (type != actor.spec.type && !type.ends_with(", ...")) type += ", ...";
    }
    if (count > 0)
      holders.push_back(count_of(count, "actor") + " (" + type + ") of job " + whose(at->first) + " (" +
                        scheduler::NodeIndex::wanted(held) + ")");
  }
  if (holders.empty()) return "";
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, holders.size()); ++i)
    text += (text.empty() ? "; room is held by " : ", ") + holders[i];
  return text + (holders.size() > kNamed ? " and others" : "") +
         ", until they end or their program lets go of them (of a training run: takes its result)";
}

/// What holds on that node what is asked for: programs first, then each job's actors, then groups.
std::vector<WaitReport::Holder> ClusterMachine::holders_on(NodeId id, const ActorDemand& demand) const {
  const Node& node = nodes_.at(id);
  std::vector<WaitReport::Holder> all;
  const auto add = [&](const std::string& of, const auto& held, std::string what) {
    all.push_back({of, node.info.name, held.cpu_e4, held.gpu_e4, std::move(what), held.other.amounts});
  };
  for (const std::string& driver : node.drivers) {
    const SubmissionSpec& spec = submissions_.find(driver)->spec;
    if (competes(demand, demand_of(spec))) add(driver, spec, "its program, until it ends");
  }
  std::map<JobId, std::pair<ActorDemand, std::int64_t>> jobs;
  for (const ActorId actor : node.actors) {
    const ActorDemand has = held_by(actors_.at(actor));
    if (has.group || !competes(demand, has)) continue;
    auto& [held, count] = jobs[actors_.at(actor).record.spec.job];
    add_room(held, has);
    ++count;
  }
  for (const auto& [job, its] : jobs)
    add(whose(job), its.first,
        count_of(its.second, "actor") + ", until they end or their program lets go of them");
  for (const GroupId group : node.groups) {
    const GroupRecord& record = groups_.find(group)->record;
    ActorDemand held;
    for (std::size_t i = 0; i < record.placed.size(); ++i) {
      if (record.placed[i].node == id) add_room(held, record.spec.bundles[i]);
    }
    if (competes(demand, held))
      add(whose(record.spec.job), held, name_of(record) + ", until it is removed or its program ends");
  }
  return all;
}

/// What the actors of its program wait for; empty: for nothing. O(jobs + what waits of its own).
std::string ClusterMachine::why_program_waits(const SubmissionRecord& submission) const {
  const PendingSpawn* first = nullptr;
  std::size_t actors = 0;
  for (const auto& [id, job] : jobs_.all()) {
    if (!job.runs() || job.record.submission != submission.spec.id) continue;
    for (const GroupId group : groups_.of_job(id)) {
      const Group& one = *groups_.find(group);
      if (one.record.state == GroupState::kWaiting) return name_of(one.record) + " waits: " + one.reason;
    }
    const auto waiting = waiting_.of_job(id);
    actors += waiting.size();
    if (first == nullptr && !waiting.empty()) first = &waiting_.at(waiting.front());
  }
  if (first == nullptr) return "";
  const ActorDemand& demand = first->spec.demand;
  return (actors == 1 ? "an actor of it waits: " : std::to_string(actors) + " actors of it wait: ") +
         first->spec.type + ": " + why_waits(*first) +
         (first->stopped_by != 0 || demand.group ? "" : held_by_actors(demand));
}

std::string ClusterMachine::why(const SubmissionRecord& submission) const {
  if (submission.state == SubmissionState::kRunning) {
    const std::string waits = why_program_waits(submission);
    return submission.message + (waits.empty() ? "" : "; " + waits);
  }
  if (submission.state != SubmissionState::kQueued || submissions_.is_delayed(submission.spec.id))
    return submission.message;
  const ActorDemand demand = demand_of(submission.spec);
  const Placement placement = index_.place(demand);
  if (placement.verdict == PlacementVerdict::kNever)
    return placement.reason + "; it waits for a node that has it";
  const std::string& queue = cluster::queue_of(submission.spec);
  if (std::string over = over_quota(queue, scheduler::Room::of(demand)); !over.empty()) return over;
  const SubmissionRecord* first = first_that_waits();
  if (first == nullptr || first->number == submission.number)
    return why_waits(demand) + held_by_actors(demand);
  if (!is_held(*first, submission))
    return why_waits(demand) + held_by_actors(demand) + "; job " + first->spec.id + " starts before it" +
           turn_of(*first, queue);
  return "the room that there is on " + index_.nodes().at(placement.node).name + " is kept for job " +
         first->spec.id + ", which starts before it" + turn_of(*first, queue) + ": " +
         why_waits(demand_of(first->spec));
}

/// Why a job of another queue is before it; empty: it is of the same.
std::string ClusterMachine::turn_of(const SubmissionRecord& first, const std::string& queue) const {
  const std::string& other = cluster::queue_of(first.spec);
  if (other == queue) return "";
  const scheduler::Room all = all_room();
  const auto share = [&](const std::string& name) {
    const QueueTable::Queue* found = queues_.find(name);
    const std::int64_t part = found == nullptr ? 0 : scheduler::dominant_share_e4(found->load, all);
    return name + " has " + format_cpus(part * 100) + " %";  // to 1/100 %: so that the order is to be seen
  };
  return " (it is the turn of its queue: of the cluster, by weight, " + share(other) + ", " + share(queue) +
         ")";
}

WaitReport ClusterMachine::explain(const SubmissionRecord& submission) const {
  WaitReport report;
  report.sentence = why(submission);
  if (submission.state != SubmissionState::kQueued) return report;
  report.verdict = Verdict::kLater;
  if (submissions_.is_delayed(submission.spec.id)) return report;
  const ActorDemand demand = demand_of(submission.spec);
  const auto verdict = index_.place(demand).verdict;
  report.verdict = verdict == PlacementVerdict::kNever    ? Verdict::kNever
                   : verdict == PlacementVerdict::kPlaced ? Verdict::kHeld
                                                          : Verdict::kWaits;
  const std::string& queue = cluster::queue_of(submission.spec);
  if (report.verdict != Verdict::kNever && !over_quota(queue, scheduler::Room::of(demand)).empty())
    report.verdict = Verdict::kQuota;
  for (const std::string& id : order_of_submissions()) {
    ++report.position;
    if (id == submission.spec.id) break;
    if (report.ahead.size() < kMostListed) report.ahead.push_back(id);
  }
  for (QueueStatus& status : queue_statuses()) {
    const bool is_own = status.queue.name == queue;
    if (!is_own && status.waits == 0) continue;
    report.queues.insert(is_own ? report.queues.begin() : report.queues.end(), std::move(status));
  }
  if (report.queues.size() > kMostListed) report.queues.resize(kMostListed);
  const auto add = [&](const std::string& name, std::int64_t need, auto&& free_of, auto&& all_of) {
    if (need == 0) return;
    WaitReport::Resource resource{name, need};
    for (const auto& [id, node] : index_.nodes()) {
      resource.most_free_e4 = std::max(resource.most_free_e4, free_of(node));
      resource.most_e4 = std::max(resource.most_e4, all_of(node));
      resource.free_e4 += free_of(node);
      resource.total_e4 += all_of(node);
    }
    report.resources.push_back(std::move(resource));
  };
  add("CPU", demand.cpu_e4, free_cpu, [](const NodeView& node) { return node.cpu_e4; });
  add("GPU", demand.gpu_e4, free_gpus, all_gpus);
  for (const ResourceAmount& one : demand.other.amounts) {
    const auto all = [&](const NodeView& node) { return amount_of(node.other.amounts, one.name); };
    const auto free = [&](const NodeView& node) {
      return node.suspect ? 0 : std::max<std::int64_t>(0, all(node) - amount_of(node.other_used, one.name));
    };
    add(one.name, one.amount, free, all);
  }

  std::vector<const NodeView*> nearest;
  for (const auto& [id, node] : index_.nodes()) nearest.push_back(&node);
  const std::size_t listed = std::min(kMostListed, nearest.size());
  const auto distance = [&](const NodeView& node) {
    std::size_t others = 0;  // that it lacks, of what is asked for
    for (const ResourceAmount& one : demand.other.amounts)
      others += has_amounts(node.other.amounts, node.other_used, {one}) ? 0 : 1;
    for (const Label& label : demand.other.labels) others += has_labels(node.other.labels, {label}) ? 0 : 1;
    return std::tuple(others, std::max<std::int64_t>(0, demand.gpu_e4 - free_gpus(node)),
                      std::max<std::int64_t>(0, demand.cpu_e4 - free_cpu(node)));
  };
  std::partial_sort(nearest.begin(), nearest.begin() + static_cast<std::ptrdiff_t>(listed), nearest.end(),
                    [&](const NodeView* a, const NodeView* b) {
                      return std::pair(distance(*a), a->id) < std::pair(distance(*b), b->id);
                    });
  report.more_nodes = static_cast<std::uint32_t>(nearest.size() - listed);
  for (std::size_t i = 0; i < listed; ++i) {
    report.nodes.push_back(look_at(*nearest[i], demand));
    if (report.holders.size() >= kMostListed) continue;
    for (WaitReport::Holder& holder : holders_on(nearest[i]->id, demand))
      report.holders.push_back(std::move(holder));
  }
  if (report.holders.size() > kMostListed) report.holders.resize(kMostListed);
  return report;
}

}  // namespace troupe::cluster
