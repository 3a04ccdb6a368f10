#include "scheduler/cluster/job_table.hpp"

#include "runtime/core/assert.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t kMostFormer = 64;

}  // namespace

Job& JobTable::add(JobRecord record) {
  const JobId id = record.job;
  const auto older = last_.find(record.name);
  if (older != last_.end()) {
    const JobId before = older->second;
    TROUPE_ASSERT(!jobs_.at(before).runs(), "a name has one running job");
    ended_.erase(before);
    if (jobs_.at(before).actors.empty()) jobs_.erase(before);
  }
  last_[record.name] = id;
  const auto [at, is_new] = jobs_.try_emplace(id);
  TROUPE_ASSERT(is_new, "a job's id is given once");
  if (!record.ended && !record.parked) driven_[record.driver.node].insert(id);
  at->second.record = std::move(record);
  return at->second;
}

Job* JobTable::find(JobId id) {
  const auto at = jobs_.find(id);
  return at == jobs_.end() ? nullptr : &at->second;
}

const Job* JobTable::find(JobId id) const {
  const auto at = jobs_.find(id);
  return at == jobs_.end() ? nullptr : &at->second;
}

Job* JobTable::named(const std::string& name) {
  const auto at = last_.find(name);
  return at == last_.end() ? nullptr : &jobs_.at(at->second);
}

const Job* JobTable::named(const std::string& name) const {
  const auto at = last_.find(name);
  return at == last_.end() ? nullptr : &jobs_.at(at->second);
}

bool JobTable::runs(JobId id) const {
  const Job* job = find(id);
  return job != nullptr && job->runs();
}

std::uint32_t JobTable::next_incarnation(const std::string& name) const {
  const auto at = last_.find(name);
  return 1 + (at == last_.end() ? floor_ : jobs_.at(at->second).record.incarnation);
}

std::vector<JobId> JobTable::driven_from(NodeId node) const {
  const auto at = driven_.find(node);
  if (at == driven_.end()) return {};
  return {at->second.begin(), at->second.end()};
}

void JobTable::end(Job& job) {
  TROUPE_ASSERT(job.runs(), "a job ends once");
  if (!job.record.parked) driver_went(job);
  job.record.parked = false;
  job.record.ended = true;
}

void JobTable::park(Job& job) {
  TROUPE_ASSERT(job.has_driver(), "a job is parked when its driver goes");
  driver_went(job);
  job.former.push_front(job.record.driver);
  if (job.former.size() > kMostFormer) job.former.pop_back();
  job.record.parked = true;
  job.record.driver = {};
  job.record.request = 0;
}

void JobTable::take_over(Job& job, ProcessAddress driver, std::uint64_t request) {
  TROUPE_ASSERT(job.record.parked, "a job has one driver");
  std::erase(job.former, driver);
  job.record.parked = false;
  job.record.driver = driver;
  job.record.request = request;
  ++job.record.incarnation;
  driven_[driver.node].insert(job.record.job);
}

void JobTable::driver_went(const Job& job) {
  const auto driven = driven_.find(job.record.driver.node);
  TROUPE_ASSERT(driven != driven_.end(), "a job is known by its driver's node");
  driven->second.erase(job.record.job);
  if (driven->second.empty()) driven_.erase(driven);
}

void JobTable::settle(JobId id, Instant forget_at) {
  const auto at = jobs_.find(id);
  if (at == jobs_.end() || at->second.runs() || !at->second.actors.empty() ||
      !at->second.restarting.empty() || ended_.contains(id))
    return;
  const auto last = last_.find(at->second.record.name);
  if (last != last_.end() && last->second == id) {
    ended_.set(id, forget_at);
  } else {
    jobs_.erase(at);
  }
}

std::optional<JobRecord> JobTable::trim(Instant now, std::size_t most) {
  const auto id = ended_.size() > most ? ended_.pop_first() : ended_.pop_due(now);
  if (!id) return std::nullopt;
  JobRecord record = std::move(jobs_.extract(*id).mapped().record);
  last_.erase(record.name);
  raise_floor(record.incarnation);
  return record;
}

void JobTable::check() const {
  for (const auto& [name, id] : last_) {
    TROUPE_ASSERT(jobs_.contains(id) && jobs_.at(id).record.name == name,
                  "a name leads to a job of that name");
  }
  std::size_t driven = 0;
  for (const auto& [node, jobs] : driven_) driven += jobs.size();
  for (const auto& [id, job] : jobs_) {
    const auto last = last_.find(job.record.name);
    const bool is_last = last != last_.end() && last->second == id;
    TROUPE_ASSERT(id == job.record.job, "a job is known by its id");
    TROUPE_ASSERT(is_last || (!job.runs() && !job.actors.empty()), "who is not the last of its name goes");
    TROUPE_ASSERT(ended_.contains(id) == (!job.runs() && job.actors.empty()), "what is over is trimmed");
    int actors = 0;
    for (const auto& [node, count] : job.actors_on) actors += count;
    TROUPE_ASSERT(static_cast<std::size_t>(actors) == job.actors.size(), "every actor is on a node");
    if (!job.has_driver()) continue;
    TROUPE_ASSERT(driven_.contains(job.record.driver.node) && driven_.at(job.record.driver.node).contains(id),
                  "a running job is known by its driver's node");
    --driven;
  }
  TROUPE_ASSERT(driven == 0, "a driver's node knows its jobs alone");
}

}  // namespace troupe::cluster
