#include "runtime/tasks/lease_pool.hpp"

#include <algorithm>
#include <utility>

#include "runtime/core/count.hpp"

namespace troupe::tasks {
namespace {

/// So many tasks wait for each worker that one of them may as well wait there.
constexpr std::size_t kManyAWorker = 2;
/// So many workers, and tasks, are looked at for those whose arguments are on the node.
constexpr std::size_t kLooks = 16;
/// A task lets so many go first.
constexpr int kMostPassed = 16;

ErrorInfo task_lost(std::uint32_t times, const ErrorInfo& why) {
  return {ErrorCode::kActorDied, "a task did not come to its end",
          "its worker was lost, " + count_of(times, "time") + ": " + (why.why.empty() ? why.what : why.why),
          "see what its workers printed last; TaskOptions::max_retries says how often it is tried again"};
}

}  // namespace

void LeasePool::enqueue(TaskNumber number, Task& task) {
  task.lease = 0;
  classes_[task.what.demand].queue.insert(turn_of(number, task));
  if (task.what.parent != 0) own_[task.what.parent].insert(number);
  ++queued_;
  queued_bytes_ += task.what.bytes;
}

void LeasePool::dequeue(TaskNumber number, Task& task) {
  classes_[task.what.demand].queue.erase(turn_of(number, task));
  if (task.what.parent != 0) {
    const auto own = own_.find(task.what.parent);
    own->second.erase(number);
    if (own->second.empty()) own_.erase(own);
  }
  --queued_;
  queued_bytes_ -= task.what.bytes;
}

TaskNumber LeasePool::submitted(const Submitted& what, Instant now, Actions& out) {
  const TaskNumber number = ++last_task_;
  Task& task = tasks_[number];
  task.what = what;
  enqueue(number, task);
  fill(what.demand, now, out);
  return number;
}

void LeasePool::hasten(TaskNumber number) {
  const auto at = tasks_.find(number);
  if (at == tasks_.end() || at->second.is_wanted) return;
  Task& task = at->second;
  const bool waits = task.lease == 0;
  std::set<Turn>& queue = classes_.at(task.what.demand).queue;
  if (waits) queue.erase(turn_of(number, task));
  task.is_wanted = true;
  if (waits) queue.insert(turn_of(number, task));
}

LeasePool::Own LeasePool::take_own(std::uint64_t parent, const Demand& mine, Instant now, Actions& out) {
  const auto own = own_.find(parent);
  if (own == own_.end()) return {};
  for (const TaskNumber number : own->second) {
    Task& task = tasks_.at(number);
    const Demand demand = task.what.demand;
    if (now < task.own_from || !demand.fits_in(mine)) continue;
    const Own taken{number, task.what.retries};
    dequeue(number, task);
    tasks_.erase(number);
    emptied(classes_[demand], now, out);
    return taken;
  }
  return {};
}

bool LeasePool::cancel(TaskNumber number, Duration grace, Instant now, Actions& out) {
  const auto at = tasks_.find(number);
  if (at == tasks_.end() || at->second.cancelled) return false;
  Task& task = at->second;
  if (task.lease == 0) {
    const Demand demand = task.what.demand;
    dequeue(number, task);
    tasks_.erase(at);
    emptied(classes_[demand], now, out);
    return true;
  }
  task.cancelled = true;
  cancelled_[number] = grace > Instant::max() - now ? Instant::max() : now + grace;
  out.push_back(Interrupt{task.lease, number});
  wake(cancelled_[number], out);
  return false;
}

void LeasePool::emptied(Class& group, Instant now, Actions& out) {
  if (!group.queue.empty() || group.asked.empty()) return;
  group.empty_since = now;
  wake(now + limits_.unneeded, out);
}

void LeasePool::fill(const Demand& demand, Instant now, Actions& out) {
  if (closed_) return;
  Class& group = classes_[demand];
  std::size_t up = 0;
  for (const auto& leases : group.up) up += leases.size();
  const auto give = [&](TaskNumber number, LeaseNumber to) {
    Task& task = tasks_.at(number);
    Lease& lease = leases_.at(to);
    dequeue(number, task);
    const TaskNumber plain = task.is_wanted ? oldest_plain(group) : 0;
    if (plain != 0 && plain < number) ++tasks_.at(plain).passed;
    task.lease = to;
    ++task.attempt;
    if (lease.tasks.empty()) lease.begun = now;
    unplace(to, lease, group);
    lease.tasks.push_back(number);
    place(to, lease, group);
    out.push_back(Push{to, number, task.attempt});
  };
  // It may be that no other node can hold such a worker, or has the room.
  for (const LeaseNumber to : up == 0 ? group.leaving : std::set<LeaseNumber>()) {
    const Lease& lease = leases_.at(to);
    if (!group.queue.empty() && lease.tasks.empty() && !lease.for_others) give(first_of(group), to);
  }
  for (std::size_t load = 0; load < kPlaces; ++load) {
    const std::size_t least = load == 0 ? 1 : std::max<std::size_t>(1, kManyAWorker * up);
    while (group.queue.size() >= least) {
      const Task& first = tasks_.at(first_of(group));
      // One that may run once alone waits for none: whether it had begun when its worker died is not known.
      // One whose worker was lost may be the cause: it is found out alone.
      if (load >= (first.what.retries <= 0 || first.lost > 0 ? 1 : places(first.what.function))) break;
      const LeaseNumber to = with_place(group, load, first.what.prefers);
      if (to == 0) break;
      give(load == 0 ? next_for(group, to) : first_of(group), to);
      if (load > 0) wake(leases_.at(to).begun + limits_.runs_long, out);
    }
  }
  if (group.queue.empty()) return emptied(group, now, out);
  const bool is_free = demand.cpu_e4 == 0 && demand.gpu_e4 == 0 && demand.other.amounts.empty();
  const std::size_t most = is_free ? limits_.free_leases : limits_.leases;
  while (group.asked.size() < std::min(limits_.asked, group.queue.size()) && group.asked.size() + up < most) {
    const LeaseNumber number = ++last_lease_;
    leases_[number].demand = demand;
    group.asked.insert(number);
    out.push_back(AskLease{number, demand});
  }
}

std::size_t LeasePool::places(std::uint64_t function) const {
  const auto mean = means_.find(function);
  if (mean == means_.end() || mean->second >= limits_.short_task) return 1;
  const auto many = limits_.in_hand / std::max(mean->second, Duration(1));
  return std::clamp(static_cast<std::size_t>(many), std::size_t{2}, kPlaces);
}

/// A worker with `load` tasks that takes one more: not behind one that may take long. 0: there is none.
LeaseNumber LeasePool::with_place(const Class& group, std::size_t load, NodeId prefers) const {
  if (load == 0) {
    std::size_t looks = kLooks;
    for (auto at = group.up[0].begin(); prefers && at != group.up[0].end() && looks > 0; ++at, --looks) {
      if (leases_.at(*at).node == prefers) return *at;
    }
    return group.up[0].empty() ? 0 : *group.up[0].begin();
  }
  LeaseNumber first = 0;
  for (const auto& [function, leases] : group.open[load]) {
    if (load < places(function) && (first == 0 || *leases.begin() < first)) first = *leases.begin();
  }
  return first;
}

TaskNumber LeasePool::oldest_plain(const Class& group) {
  const auto at = group.queue.lower_bound({true, 0});
  return at == group.queue.end() ? 0 : at->task;
}

TaskNumber LeasePool::first_of(const Class& group) const {
  const TaskNumber plain = oldest_plain(group);
  return plain != 0 && tasks_.at(plain).passed >= kMostPassed ? plain : group.queue.begin()->task;
}

TaskNumber LeasePool::next_for(const Class& group, LeaseNumber to) {
  const NodeId node = leases_.at(to).node;
  const TaskNumber number = first_of(group);
  Task& first = tasks_.at(number);
  const bool waits =
      !first.is_wanted && first.what.prefers && first.what.prefers != node && first.passed < kMostPassed;
  std::size_t looks = kLooks;
  for (auto at = group.queue.begin(); waits && at != group.queue.end() && looks > 0; ++at, --looks) {
    if (tasks_.at(at->task).what.prefers != node) continue;
    ++first.passed;
    return at->task;
  }
  return number;
}

bool LeasePool::is_open(const Lease& lease) const {
  return !lease.tasks.empty() && !lease.is_long && tasks_.at(lease.tasks.front()).lost == 0;
}

void LeasePool::place(LeaseNumber number, const Lease& lease, Class& group) {
  if (!lease.why_leaves.empty()) {
    group.leaving.insert(number);
    return;
  }
  const std::size_t load = lease.tasks.size();
  group.up[load].insert(number);
  if (is_open(lease)) group.open[load][tasks_.at(lease.tasks.front()).what.function].insert(number);
}

void LeasePool::unplace(LeaseNumber number, const Lease& lease, Class& group) {
  if (!lease.why_leaves.empty()) {
    group.leaving.erase(number);
    return;
  }
  const std::size_t load = lease.tasks.size();
  group.up[load].erase(number);
  if (!is_open(lease)) return;
  const auto of = group.open[load].find(tasks_.at(lease.tasks.front()).what.function);
  of->second.erase(number);
  if (of->second.empty()) group.open[load].erase(of);
}

void LeasePool::granted(LeaseNumber number, Instant now, Actions& out, NodeId node) {
  const auto at = leases_.find(number);
  if (at == leases_.end()) {
    out.push_back(ReturnLease{number, "it was granted when it was not needed any more"});
    return;
  }
  Class& group = classes_[at->second.demand];
  group.asked.erase(number);
  group.failed_asks = 0;
  at->second.up = true;
  at->second.node = node;
  at->second.idle_since = now;
  place(number, at->second, group);
  fill(at->second.demand, now, out);
  wake_if_idle(at->second, out);
}

void LeasePool::refused(LeaseNumber number, const ErrorInfo& why, Instant now, Actions& out) {
  const auto at = leases_.find(number);
  if (at == leases_.end()) return;
  const Demand demand = at->second.demand;
  Class& group = classes_[demand];
  group.asked.erase(number);
  leases_.erase(at);
  const bool none_up = !has_up(group) && group.leaving.empty();
  // What no node can ever hold is refused at once, and what hangs would hang again; another refusal may be
  // one node's bad day.
  const bool is_for_good = why.code == ErrorCode::kRefused || why.code == ErrorCode::kTimeout;
  if (++group.failed_asks >= limits_.failed_asks || is_for_good) {
    if (!none_up) return;  // the workers that there are go on
    for (const auto& [is_plain, task] : std::set<Turn>(group.queue)) {
      dequeue(task, tasks_.at(task));
      tasks_.erase(task);
      out.push_back(Fail{task, why});
    }
    group.failed_asks = 0;
    return;
  }
  fill(demand, now, out);
}

void LeasePool::leaves(LeaseNumber number, bool stays, Instant now, Actions& out) {
  const auto at = leases_.find(number);
  if (at == leases_.end() || at->second.for_others || at->second.why_leaves.empty() == stays) return;
  set_leaving(at, stays ? "" : "its node drains", false, now, out);
}

void LeasePool::wanted(LeaseNumber number, const std::string& why, Instant now, Actions& out) {
  const auto at = leases_.find(number);
  if (at == leases_.end() || at->second.for_others) return;
  set_leaving(at, why.empty() ? "others wait for its room" : why, true, now, out);
}

void LeasePool::set_leaving(Leases::iterator at, const std::string& why, bool for_others, Instant now,
                            Actions& out) {
  auto& [number, lease] = *at;
  if (!lease.up) return;
  Class& group = classes_.at(lease.demand);
  unplace(number, lease, group);
  lease.why_leaves = why;
  lease.for_others = for_others;
  place(number, lease, group);
  if (!why.empty() && has_behind(lease)) runs_long(number, lease, out);
  fill(lease.demand, now, out);
  wake_if_idle(lease, out);
}

bool LeasePool::is_present(TaskNumber number, std::uint32_t attempt) const {
  const auto at = tasks_.find(number);
  return at != tasks_.end() && at->second.attempt == attempt && at->second.lease != 0;
}

void LeasePool::leave(TaskNumber number, Instant now) {
  const LeaseNumber on = tasks_.at(number).lease;
  Lease& lease = leases_.at(on);
  Class& group = classes_[lease.demand];
  const bool had_begun = lease.tasks.front() == number;
  unplace(on, lease, group);
  std::erase(lease.tasks, number);
  if (had_begun) {
    lease.begun = now;
    lease.is_long = false;
  }
  place(on, lease, group);
  if (lease.tasks.empty()) lease.idle_since = now;
}

bool LeasePool::ended(TaskNumber number, std::uint32_t attempt, Instant now, Actions& out) {
  if (!is_present(number, attempt)) return false;
  const auto at = tasks_.find(number);
  const Lease& lease = leases_.at(at->second.lease);
  const Duration took = now - lease.begun;
  const auto [mean, is_first] = means_.try_emplace(at->second.what.function, took);
  if (!is_first) mean->second = (mean->second * 7 + took) / 8;
  leave(number, now);
  cancelled_.erase(number);
  tasks_.erase(at);
  fill(lease.demand, now, out);
  wake_if_idle(lease, out);
  return true;
}

bool LeasePool::threw(TaskNumber number, std::uint32_t attempt, Instant now, Actions& out) {
  if (!is_present(number, attempt)) return false;
  Task& task = tasks_.at(number);
  if (task.cancelled || task.what.retries <= 0) return false;
  --task.what.retries;
  out.push_back(Retry{number});
  const Lease& lease = leases_.at(task.lease);
  leave(number, now);
  enqueue(number, task);
  fill(lease.demand, now, out);
  wake_if_idle(lease, out);
  return true;
}

void LeasePool::taken_back(TaskNumber number, std::uint32_t attempt, Instant now, Actions& out) {
  if (!is_present(number, attempt)) return;
  Task& task = tasks_.at(number);
  if (task.cancelled) return;  // its worker says that it does not run it
  const Lease& lease = leases_.at(task.lease);
  leave(number, now);
  enqueue(number, task);
  fill(lease.demand, now, out);
  wake_if_idle(lease, out);
}

bool LeasePool::has_behind(const Lease& lease) const {
  return lease.tasks.size() > 1 && std::any_of(lease.tasks.begin() + 1, lease.tasks.end(),
                                               [&](TaskNumber task) { return !tasks_.at(task).cancelled; });
}

/// When the worker of a cancelled task is killed that may run until then: the tasks behind it are asked for
/// first, else nobody could say whether they had begun.
Instant LeasePool::ends_for(const Lease& lease, Instant until) const {
  return has_behind(lease) ? std::max(until, lease.begun + limits_.runs_long + limits_.unneeded) : until;
}

void LeasePool::lost(TaskNumber number, std::uint32_t attempt, const ErrorInfo& why, Instant now,
                     Actions& out) {
  const auto at = tasks_.find(number);
  if (at == tasks_.end() || at->second.attempt != attempt || at->second.lease == 0) return;
  lease_lost(at->second.lease, Begun::kAll, why, now, out);
}

void LeasePool::lease_lost(LeaseNumber number, Begun begun, const ErrorInfo& why, Instant now, Actions& out) {
  if (const auto at = leases_.find(number); at != leases_.end()) end_lease(at, begun, why, now, out);
}

void LeasePool::again(TaskNumber number, bool had_begun, const ErrorInfo& why, Instant now, Actions& out) {
  Task& task = tasks_.at(number);
  if (had_begun) ++task.lost;
  if (task.cancelled || (had_begun && task.what.retries-- <= 0)) {
    out.push_back(Fail{number, task_lost(std::max(task.lost, 1U), why)});
    cancelled_.erase(number);
    tasks_.erase(number);
    return;
  }
  if (had_begun) out.push_back(Retry{number});
  task.own_from = now + limits_.new_worker;
  enqueue(number, task);
}

void LeasePool::end_lease(Leases::iterator at, Begun begun, const ErrorInfo& why, Instant now, Actions& out) {
  const LeaseNumber number = at->first;
  const Lease lease = std::move(at->second);
  leases_.erase(at);
  Class& group = classes_[lease.demand];
  const std::string reason = why.why.empty() ? why.what : why.why;
  if (lease.up) {
    unplace(number, lease, group);
    out.push_back(ReturnLease{number, reason});
  } else {
    group.asked.erase(number);
    out.push_back(CancelAsk{number, reason});
  }
  // The oldest had begun, and may be what ended its worker.
  for (const TaskNumber task : lease.tasks)
    again(task, begun == Begun::kAll || task == lease.tasks.front(), why, now, out);
  fill(lease.demand, now, out);
}

void LeasePool::wake(Instant at, Actions& out) {
  if (at >= wake_at_) return;
  wake_at_ = at;
  out.push_back(WakeAt{at, ++last_wake_});
}

void LeasePool::runs_long(LeaseNumber number, Lease& lease, Actions& out) {
  Class& group = classes_.at(lease.demand);
  unplace(number, lease, group);
  lease.is_long = true;
  place(number, lease, group);
  for (std::size_t i = 1; i < lease.tasks.size(); ++i) {
    const Task& behind = tasks_.at(lease.tasks[i]);
    if (!behind.cancelled) out.push_back(TakeBack{number, lease.tasks[i], behind.attempt});
  }
}

bool LeasePool::has_up(const Class& group) {
  return std::any_of(group.up.begin(), group.up.end(), [](const auto& leases) { return !leases.empty(); });
}

Instant LeasePool::idle_until(const Lease& lease) const {
  const bool at_once = lease.for_others || (!lease.why_leaves.empty() && has_up(classes_.at(lease.demand)));
  return at_once ? lease.idle_since : lease.idle_since + limits_.idle;
}

void LeasePool::wake_if_idle(const Lease& lease, Actions& out) {
  if (lease.tasks.empty()) wake(idle_until(lease), out);
}

void LeasePool::tick(std::uint64_t wake_number, Instant now, Actions& out) {
  if (wake_number != last_wake_ || wake_at_ == Instant::max()) return;
  wake_at_ = Instant::max();
  std::vector<LeaseNumber> over;
  Instant next = Instant::max();
  for (auto& [number, lease] : leases_) {
    if (!lease.is_long && has_behind(lease)) {
      const Instant long_from = lease.begun + limits_.runs_long;
      if (long_from > now) {
        next = std::min(next, long_from);
      } else {
        runs_long(number, lease, out);
      }
    }
    if (!lease.tasks.empty()) continue;
    const Class& group = classes_.at(lease.demand);
    if (!lease.up && !group.queue.empty()) continue;
    const Instant end = lease.up ? idle_until(lease) : group.empty_since + limits_.unneeded;
    if (end <= now) {
      over.push_back(number);
    } else {
      next = std::min(next, end);
    }
  }
  std::vector<LeaseNumber> stuck;
  for (auto& [number, until] : cancelled_) {
    const LeaseNumber lease = tasks_.at(number).lease;
    const Instant ends = ends_for(leases_.at(lease), until);
    const bool is_over = ends <= now;
    if (is_over && leases_.at(lease).tasks.front() == number) {
      stuck.push_back(lease);
    } else {  // behind another one it is not run
      next = std::min(next, is_over ? now + limits_.unneeded : ends);
    }
  }
  for (const LeaseNumber number : over) {
    const auto lease = leases_.find(number);
    std::string why = lease->second.why_leaves;
    if (why.empty()) why = "nothing waits for it";
    end_lease(lease, Begun::kAll, {ErrorCode::kUnavailable, why, "", ""}, now, out);
  }
  for (const LeaseNumber number : stuck)
    end_lease(leases_.find(number), Begun::kAll,
              {ErrorCode::kCancelled, "its task was cancelled, and ran on", "", ""}, now, out);
  if (next != Instant::max()) wake(next, out);
  std::erase_if(classes_, [](const auto& named) {
    const Class& group = named.second;
    return group.queue.empty() && group.asked.empty() && group.leaving.empty() && !has_up(group);
  });
}

LeasePool::Waiting LeasePool::waiting(TaskNumber number) const {
  Waiting waiting;
  const Task& task = tasks_.at(number);
  const Class& group = classes_.at(task.what.demand);
  for (const auto& leases : group.up) waiting.workers += leases.size();
  waiting.asked.assign(group.asked.begin(), group.asked.end());
  waiting.runs_on = task.lease;
  const auto before = [](const auto& tasks, const auto& one) {
    return static_cast<std::size_t>(std::distance(tasks.begin(), std::find(tasks.begin(), tasks.end(), one)));
  };
  waiting.before = task.lease != 0 ? before(leases_.at(task.lease).tasks, number)
                                   : before(group.queue, turn_of(number, task));
  return waiting;
}

void LeasePool::close(const ErrorInfo& why, Actions& out) {
  closed_ = true;
  while (!leases_.empty()) end_lease(leases_.begin(), Begun::kAll, why, Instant{}, out);
  for (const auto& [number, task] : tasks_) out.push_back(Fail{number, why});
  tasks_.clear();
  cancelled_.clear();
  classes_.clear();
  own_.clear();
  queued_ = 0;
  queued_bytes_ = 0;
}

}  // namespace troupe::tasks
