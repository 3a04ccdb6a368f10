#include "scheduler/cluster/waiting_spawns.hpp"

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/group_table.hpp"

namespace troupe::cluster {
namespace {

SpawnPlace place_of(const PendingSpawn& spawn) {
  const ActorDemand& demand = spawn.spec.demand;
  if (spawn.stopped_by != 0) return {{}, {}, spawn.stopped_by};
  if (!demand.group) return {{}, demand.affinity};
  return {demand.group, demand.bundle < 0 ? NodeId{} : id_of_bundle(demand.bundle)};
}

}  // namespace

void WaitingSpawns::add(PendingSpawn spawn) {
  const std::uint64_t number = ++next_number_;
  const bool is_new = numbers_.emplace(spawn.requester, number).second;
  TROUPE_ASSERT(is_new, "a request waits once");
  payload_bytes_ += spawn.spec.payload.size();
  const ActorDemand& demand = spawn.spec.demand;
  if (demand.gpu_e4 > 0) {
    gpu_queues_[place_of(spawn)].insert(number);
  } else if (!demand.other.empty()) {
    other_queues_[place_of(spawn)].insert(number);
  } else {
    queues_[place_of(spawn)].insert(number, -demand.cpu_e4);
  }
  jobs_[spawn.spec.job].emplace(number, spawn.requester);
  spawns_.emplace(number, std::move(spawn));
}

std::optional<PendingSpawn> WaitingSpawns::take(const Requester& requester) {
  const auto at = numbers_.find(requester);
  if (at == numbers_.end()) return std::nullopt;
  const std::uint64_t number = at->second;
  numbers_.erase(at);
  PendingSpawn spawn = std::move(spawns_.extract(number).mapped());
  payload_bytes_ -= spawn.spec.payload.size();
  const auto leave = [&](auto& queues) {
    const auto queue = queues.find(place_of(spawn));
    TROUPE_ASSERT(queue != queues.end() && queue->second.erase(number), "what waits is in its queue");
    if (queue->second.empty()) queues.erase(queue);
  };
  if (spawn.spec.demand.gpu_e4 > 0) {
    leave(gpu_queues_);
  } else if (!spawn.spec.demand.other.empty()) {
    leave(other_queues_);
  } else {
    leave(queues_);
  }
  const auto job = jobs_.find(spawn.spec.job);
  TROUPE_ASSERT(job != jobs_.end() && job->second.erase(number) == 1, "what waits is in its job");
  if (job->second.empty()) jobs_.erase(job);
  return spawn;
}

void WaitingSpawns::set_told(const Requester& requester, Instant at, std::size_t told) {
  PendingSpawn& spawn = spawns_.at(numbers_.at(requester));
  spawn.told_at = at;
  spawn.told = told;
}

const PendingSpawn* WaitingSpawns::first_fit(const SpawnPlace& place, std::int64_t free_e4,
                                             const std::function<bool(const ActorDemand&)>& fits,
                                             bool has_gpus) const {
  if (free_e4 < 0) return nullptr;
  const std::uint64_t* best = nullptr;
  for (const SpawnPlace& affinity : {SpawnPlace{place.group, {}, place.queue}, place}) {
    const auto queue = queues_.find(affinity);
    if (queue == queues_.end()) continue;
    const std::uint64_t* first = queue->second.first(-free_e4);
    if (first != nullptr && (best == nullptr || *first < *best)) best = first;
  }
  for (const Listed* listed : {&gpu_queues_, &other_queues_}) {
    if (listed == &gpu_queues_ && !has_gpus) continue;
    for (const SpawnPlace& affinity : {SpawnPlace{place.group, {}, place.queue}, place}) {
      const auto queue = listed->find(affinity);
      if (queue == listed->end()) continue;
      for (const std::uint64_t& number : queue->second) {
        if (best != nullptr && number > *best) break;
        if (!fits(spawns_.at(number).spec.demand)) continue;
        best = &number;
        break;
      }
    }
  }
  return best == nullptr ? nullptr : &spawns_.at(*best);
}

std::vector<Requester> WaitingSpawns::bound_to(NodeId node) const {
  std::vector<Requester> found;
  if (!node) return found;
  collect({{}, node}, found);
  const auto stopped = [&](const auto& queues, std::set<SpawnPlace>& places) {
    for (auto at = queues.lower_bound({{}, {}, 1}); at != queues.end() && at->first.queue != 0; ++at)
      places.insert(at->first);
  };
  std::set<SpawnPlace> places;
  stopped(queues_, places);
  stopped(gpu_queues_, places);
  stopped(other_queues_, places);
  std::vector<Requester> all;
  for (const SpawnPlace& place : places) collect(place, all);
  for (const Requester& requester : all) {
    if (at(requester).spec.demand.affinity == node) found.push_back(requester);
  }
  return found;
}

std::vector<Requester> WaitingSpawns::of_group(GroupId group) const {
  std::vector<Requester> found;
  std::set<SpawnPlace> places;
  const SpawnPlace from{group, {}};
  for (auto at = queues_.lower_bound(from); at != queues_.end() && at->first.group == group; ++at)
    places.insert(at->first);
  for (const Listed* listed : {&gpu_queues_, &other_queues_}) {
    for (auto at = listed->lower_bound(from); at != listed->end() && at->first.group == group; ++at)
      places.insert(at->first);
  }
  for (const SpawnPlace& place : places) collect(place, found);
  return found;
}

void WaitingSpawns::collect(const SpawnPlace& place, std::vector<Requester>& found) const {
  if (const auto queue = queues_.find(place); queue != queues_.end()) {
    queue->second.each(
        [&](std::uint64_t number, std::int64_t) { found.push_back(spawns_.at(number).requester); });
  }
  for (const Listed* listed : {&gpu_queues_, &other_queues_}) {
    const auto queue = listed->find(place);
    if (queue == listed->end()) continue;
    for (const std::uint64_t number : queue->second) found.push_back(spawns_.at(number).requester);
  }
}

std::vector<Requester> WaitingSpawns::asked_by(NodeId node) const {
  std::vector<Requester> found;
  for (auto at = numbers_.lower_bound(Requester{{node, {}}, 0});
       at != numbers_.end() && at->first.from.node == node; ++at)
    found.push_back(at->first);
  return found;
}

std::vector<Requester> WaitingSpawns::of_job(JobId job) const {
  std::vector<Requester> found;
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return found;
  for (const auto& [number, requester] : at->second) found.push_back(requester);
  return found;
}

}  // namespace troupe::cluster
