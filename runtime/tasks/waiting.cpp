// What a task without an answer waits for, in words.
#include <algorithm>

#include "runtime/core/count.hpp"
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

}  // namespace troupe::tasks
