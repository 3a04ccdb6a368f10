// What a task without an answer waits for, in words; and what a worker gives away whose task waits itself, or
// that has none.
#include <algorithm>

#include "runtime/core/count.hpp"
#include "runtime/core/log.hpp"
#include "runtime/tasks/tasks.hpp"

namespace troupe::tasks {
namespace {

std::string in_words(const LeasePool::Waiting& task, const std::vector<std::shared_ptr<CallState>>& asked) {
  if (task.runs_on != 0) return "its worker has " + count_of(task.before, "other task") + " before it";
  std::string text;
  for (const auto& ask : asked) {
    if (text.empty()) text = ask->waits_for();
  }
  if (!text.empty()) {
    text = "for a worker: " + text;
  } else if (!asked.empty()) {
    text = "for a worker, which starts";
  } else {
    text = "for one of " + count_of(task.workers, "worker");
  }
  return task.before == 0 ? text : text + "; " + count_of(task.before, "task") + " before it";
}

}  // namespace

std::string Tasks::why_waits(const CallState& answer) const {
  Lineage::Number number = 0;
  {
    const std::lock_guard lock(lineage_mutex_);
    const auto entry = std::find_if(recipes_.begin(), recipes_.end(),
                                    [&](const auto& one) { return one.second.answer.get() == &answer; });
    if (entry != recipes_.end()) number = entry->first;
  }
  if (number != 0) return why_no_value(number);
  LeasePool::Waiting waiting;
  std::vector<std::shared_ptr<CallState>> asked;
  {
    const std::lock_guard lock(mutex_);
    const auto task = std::find_if(pending_.begin(), pending_.end(),
                                   [&](const auto& one) { return one.second.answer.get() == &answer; });
    if (task == pending_.end() || !pool_.contains(task->first)) return "";  // or it is about to fail
    waiting = pool_.waiting(task->first);
    if (waiting.runs_on != 0 && waiting.before == 0) return "";
    for (const LeaseNumber lease : waiting.asked) {
      const auto worker = workers_.find(lease);
      if (worker != workers_.end() && worker->second.ask != nullptr) asked.push_back(worker->second.ask);
    }
  }
  return in_words(waiting, asked);
}

void Tasks::serve(ProcessAddress owner, const Demand& demand) {
  {
    const std::lock_guard lock(mutex_);
    owner_ = owner;
    serves_ = true;
    holds_ = demand;
    holds_.node = gate_.address().node;
    pushed_.serves(clock_.now());
  }
  if (demand.cpu_e4 != 0) look_if_unused(kUnused);
}

void Tasks::give_cpus_away() {
  {
    const std::lock_guard lock(mutex_);
    if (!serves_ || holds_.cpu_e4 == 0) return;
  }
  if (!waits_.exchange(true)) gate_.task_waits(true);
}

void Tasks::take_cpus_back() {
  if (waits_.exchange(false)) gate_.task_waits(false);
}

/// A program that is stopped (SIGSTOP, a debugger) gives no worker back, and others wait for its CPUs. The
/// worker must not end for that: a task that is on its way would count as tried.
void Tasks::look_if_unused(Duration after) {
  gate_.later(after, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    Duration next{};
    {
      const std::lock_guard lock(self->mutex_);  // or a task that begins now would give its CPUs away
      if (self->closed_) return;
      next = self->pushed_.unused_in(self->clock_.now());
      if (next == Duration::zero() && !self->waits_.exchange(true)) self->gate_.task_waits(true);
    }
    self->look_if_unused(next == Duration::zero() ? kUnused : next);
  });
}

void Tasks::keeps_cpus(std::uint64_t others) {
  log(LogLevel::kWarning,
      "a task waits, and keeps its CPUs meanwhile, since " + count_of(others, "task") +
          " of this node wait already and have given theirs away: if what it waits for needs them, take the "
          "object as a parameter (View, or the value's type), which is there before the task begins");
}

}  // namespace troupe::tasks
