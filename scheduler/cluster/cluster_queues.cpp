// Queues of submissions: what their jobs hold, what they may, and whose turn it is.
#include <algorithm>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"
#include "scheduler/cluster/cluster_machine.hpp"

namespace troupe::cluster {

using scheduler::QueueTurn;
using scheduler::Room;

const std::string& queue_of(const SubmissionSpec& spec) {
  static const std::string kDefault = kDefaultQueue;
  return spec.queue.empty() ? kDefault : spec.queue;
}

std::optional<ErrorInfo> ClusterMachine::queue_refused(const QueueChanged& e) const {
  const std::string& name = e.queue.name;
  if (!e.removed) {
    if (auto wrong = check_queue(e.queue)) return wrong;
    if (queues_.find(name) == nullptr && queues_.all().size() >= kMaxQueues)
      return ErrorInfo{ErrorCode::kLimit, "cannot set queue " + name,
                       "there are " + std::to_string(queues_.all().size()) + ", which are the most",
                       "remove some: troupe queue remove NAME"};
    return std::nullopt;
  }
  const std::string what = "cannot remove queue " + clipped(name.substr(0, 80));
  const QueueTable::Queue* queue = queues_.find(name);
  if (queue == nullptr)
    return ErrorInfo{ErrorCode::kRefused, what, "there is none of that name",
                     "troupe queue list shows those that there are"};
  const std::size_t jobs = submissions_.unfinished_of(name);
  const bool ends =
      queue->load.used != Room{} || std::any_of(jobs_.all().begin(), jobs_.all().end(), [&](const auto& job) {
        return job.second.runs() && job.second.queue == name;
      });
  if (name != kDefaultQueue && (jobs > 0 || ends))
    return ErrorInfo{ErrorCode::kRefused, what,
                     jobs > 0 ? count_of(static_cast<std::int64_t>(jobs), "job") +
                                    (jobs == 1 ? " of it waits or runs" : " of it wait or run")
                              : "what its jobs held is not given back yet",
                     "stop them: troupe job stop ID, or wait for their end"};
  return std::nullopt;
}

void ClusterMachine::handle(const QueueChanged& e) {
  if (queue_refused(e)) return;
  if (e.removed) {
    queues_.remove(e.queue.name);
    out_.push_back(Erase{"queue/" + e.queue.name});
  } else {
    queues_.set(e.queue);
    persist(e.queue);
  }
  eased(e.queue.name);
}

/// It may hold more than before.
void ClusterMachine::eased(const std::string& queue) {
  eased_queues_.insert(queue);
  look_at_queue_ = look_at_groups_ = true;
}

/// A program that nobody submitted is in no queue.
void ClusterMachine::find_queue(Job& job) const {
  const SubmissionRecord* submission = submissions_.find(job.record.submission);
  job.queue = submission == nullptr ? "" : cluster::queue_of(submission->spec);
}

/// Another program has the job: what its actors hold is of that one's queue from now on.
void ClusterMachine::change_queue(Job& job) {
  const std::string before = job.queue;
  find_queue(job);
  if (job.queue == before) return;
  for (const ActorId id : job.actors) {
    const ActorDemand demand = held_by(actors_.at(id));
    if (demand.group) continue;  // its group holds it
    charge(before, Room::of(demand), -1);
    charge(job.queue, Room::of(demand), 1);
  }
  for (const Requester& requester : waiting_.of_job(job.record.job)) {  // further lives
    if (waiting_.contains(requester) && waiting_.at(requester).stopped_by != 0)
      settle(*waiting_.take(requester));
  }
}

std::string ClusterMachine::queue_of(JobId id) const {
  const Job* job = jobs_.find(id);
  return job == nullptr ? "" : job->queue;
}

/// Jobs of that queue hold so much more, or (sign -1) less.
void ClusterMachine::charge(const std::string& queue, const Room& more, int sign) {
  if (queue.empty() || more == Room{}) return;  // who holds nothing may outlive its queue
  scheduler::QueueLoad& load = queues_.at(queue).load;
  load.used.add(more, sign);
  TROUPE_ASSERT(load.used.cpu_e4 >= 0 && load.used.gpu_e4 >= 0, "a queue gives back what it held");
  const bool has_quota = load.queue.cpu_e4 >= 0 || load.queue.gpu_e4 >= 0 || !load.queue.other.empty();
  if (has_quota && sign < 0) eased(queue);
}

/// The same of a program of a job of it.
void ClusterMachine::charge_program(const SubmissionSpec& spec, int sign) {
  const Room room = Room::of(spec);
  if (room == Room{}) return;
  queues_.at(cluster::queue_of(spec)).load.programs.add(room, sign);
  charge(cluster::queue_of(spec), room, sign);
}

/// Why actors of its jobs may not hold so much more now; empty: they may.
std::string ClusterMachine::why_stopped(const std::string& queue, const Room& more) const {
  const std::string over = over_quota(queue, more);
  return over.empty() ? over : over + scheduler::stuck_beside_programs(queues_.find(queue)->load, more);
}

/// Whether an actor of a job that ends to start again elsewhere would get back what it holds of its queue's
/// quota: nobody who waits for that comes before it.
bool ClusterMachine::keeps_its_quota(const ActorSpec& spec) {
  const Room held = Room::of(spec.demand);
  if (held == Room{}) return true;  // it gives nothing back
  const Job* job = spec.demand.group ? nullptr : jobs_.find(spec.job);
  const QueueTable::Queue* queue = job == nullptr || job->queue.empty() ? nullptr : queues_.find(job->queue);
  if (queue == nullptr) return true;
  scheduler::QueueLoad without = queue->load;
  without.used.add(held, -1);
  const auto fits = [&](const auto& asked) {
    return scheduler::over_quota(without, Room::of(asked)).empty();
  };
  if (!fits(spec.demand)) return false;
  const std::int64_t limit = without.queue.cpu_e4;
  const std::int64_t left = limit < 0 ? kMaxCpu_e4 : std::max<std::int64_t>(0, limit - without.used.cpu_e4);
  if (waiting_.first_fit({{}, {}, queue->number}, left, fits, true) != nullptr) return false;
  const auto is_not_stopped = [&](const SubmissionTable::Size& size) {
    return over_quota(job->queue, Room::of(size)).empty() || !fits(size);
  };
  if (submissions_.next_of(job->queue, is_not_stopped) != nullptr) return false;
  return std::none_of(groups_.waiting().begin(), groups_.waiting().end(), [&](const auto& waits) {
    const Group& group = *groups_.find(waits.second);
    return group.queue == job->queue && !over_quota(group).empty();
  });
}

/// Why it may not hold so much more; empty: it may.
std::string ClusterMachine::over_quota(const std::string& queue, const Room& more) const {
  const QueueTable::Queue* found = queue.empty() ? nullptr : queues_.find(queue);
  return found == nullptr ? "" : scheduler::over_quota(found->load, more);
}

/// The number of the queue that may not hold it now; 0: it may start.
std::uint64_t ClusterMachine::queue_that_stops(const ActorSpec& spec) const {
  const Job* job = spec.demand.group ? nullptr : jobs_.find(spec.job);
  if (job == nullptr || over_quota(job->queue, Room::of(spec.demand)).empty()) return 0;
  return queues_.find(job->queue)->number;
}

/// Spawns whose queues may hold more than before.
void ClusterMachine::start_parked() {
  for (const std::string& name : std::exchange(eased_queues_, {})) {
    for (;;) {
      const QueueTable::Queue* queue = queues_.find(name);
      if (queue == nullptr) break;
      const auto fits = [&](const ActorDemand& demand) {
        return scheduler::over_quota(queue->load, Room::of(demand)).empty();
      };
      const std::int64_t limit = queue->load.queue.cpu_e4;
      const std::int64_t left = limit < 0 ? kMaxCpu_e4 : limit - queue->load.used.cpu_e4;
      const PendingSpawn* first =
          waiting_.first_fit({{}, {}, queue->number}, std::max<std::int64_t>(left, 0), fits, true);
      if (first == nullptr) break;
      settle(*waiting_.take(Requester(first->requester)));
    }
  }
}

Room ClusterMachine::all_room() const {
  Room all;
  for (const auto& [id, node] : index_.nodes()) {
    all.cpu_e4 += node.cpu_e4;
    all.gpu_e4 += static_cast<std::int64_t>(node.gpus.size()) * kGpu;
    add_amounts(all.other, node.other.amounts, 1);
  }
  return all;
}

/// The next submission that is to be looked at. A queue whose first one had to wait keeps its turn until that
/// starts: shares change with everything that ends, and the room that is kept for it would go to another.
/// `all`: all_room(), where several queues wait.
SubmissionRecord* ClusterMachine::next_submission(const SubmissionRecord* first,
                                                  const std::set<SubmissionTable::Size>& fits_nowhere,
                                                  const QueueSizes& over, const Room& all) {
  const auto next_of = [&](const std::string& queue) {
    const auto its = over.find(queue);
    return submissions_.next_of(queue, [&](const SubmissionTable::Size& size) {
      return fits_nowhere.contains(size) || (its != over.end() && its->second.contains(size));
    });
  };
  if (first == nullptr && !turn_.empty()) {
    if (SubmissionRecord* submission = next_of(turn_)) return submission;
    turn_.clear();
  }
  std::vector<QueueTurn> turns;
  std::vector<SubmissionRecord*> nexts;
  for (const std::string& queue : submissions_.waiting_queues()) {
    SubmissionRecord* submission = next_of(queue);
    if (submission == nullptr) continue;
    turns.push_back({&queues_.at(queue).load, submission->spec.priority, submission->number});
    nexts.push_back(submission);
  }
  if (nexts.empty()) return nullptr;
  return nexts.size() == 1 ? nexts[0] : nexts[scheduler::next_turn(turns, all)];
}

/// Those that wait, in the order in which they would start if each did.
std::vector<std::string> ClusterMachine::order_of_submissions() const {
  std::map<std::string, std::pair<scheduler::QueueLoad, std::vector<const SubmissionRecord*>>> waiting;
  for (const auto& [place, id] : submissions_.queue()) {
    const SubmissionRecord* submission = submissions_.find(id);
    const std::string& name = cluster::queue_of(submission->spec);
    const QueueTable::Queue* queue = queues_.find(name);
    auto& [load, list] = waiting[name];
    if (list.empty() && queue != nullptr) load = queue->load;
    list.push_back(submission);
  }
  for (auto& [name, queue] : waiting) std::reverse(queue.second.begin(), queue.second.end());
  const Room all = all_room();
  std::vector<std::string> order;
  while (!waiting.empty()) {
    std::vector<QueueTurn> turns;
    std::vector<std::string> names;
    for (const auto& [name, queue] : waiting) {
      turns.push_back({&queue.first, queue.second.back()->spec.priority, queue.second.back()->number});
      names.push_back(name);
    }
    const bool is_kept = order.empty() && waiting.contains(turn_);
    const std::string name = is_kept ? turn_ : names[scheduler::next_turn(turns, all)];
    auto& [load, list] = waiting.at(name);
    const SubmissionRecord* next = list.back();
    list.pop_back();
    load.used.add(Room::of(next->spec));
    order.push_back(next->spec.id);
    if (list.empty()) waiting.erase(name);
  }
  return order;
}

std::vector<QueueStatus> ClusterMachine::queue_statuses() const {
  const Room all = all_room();
  std::map<std::string, std::pair<std::uint32_t, std::uint32_t>> jobs;
  for (const auto& [id, submission] : submissions_.all()) {
    if (has_ended(submission.state)) continue;
    auto& [waits, runs] = jobs[cluster::queue_of(submission.spec)];
    ++(submission.state == SubmissionState::kQueued ? waits : runs);
  }
  std::vector<QueueStatus> statuses;
  for (const auto& [name, queue] : queues_.all()) {
    const auto& [waits, runs] = jobs[name];
    statuses.push_back({queue.load.queue, queue.load.used.cpu_e4, queue.load.used.gpu_e4,
                        scheduler::dominant_share_e4(queue.load, all), waits, runs, queue.load.used.other});
  }
  return statuses;
}

}  // namespace troupe::cluster
