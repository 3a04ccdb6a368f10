#include "scheduler/cluster/queue_table.hpp"

#include "runtime/core/assert.hpp"
#include "scheduler/cluster/submission_table.hpp"
#include "scheduler/placement/placement.hpp"

namespace troupe::cluster {

std::optional<ErrorInfo> check_queue(const QueueRecord& queue) {
  const auto bad = [](std::string why, std::string todo) {
    return ErrorInfo{ErrorCode::kBadInput, "cannot set the queue", std::move(why), std::move(todo)};
  };
  if (!is_submission_id(queue.name))
    return bad(
        "its name is not 1 to 64 letters, digits, '_', '-' and '.', of which the first is a letter or a "
        "digit",
        "choose another name");
  if (queue.cpu_e4 > kMaxCpu_e4 || queue.gpu_e4 > kMaxCpu_e4)
    return bad("its quota is more than " + format_cpus(kMaxCpu_e4) + " CPUs or GPUs",
               "leave the quota out: then there is no limit");
  OtherResources other{queue.other};
  for (ResourceAmount& one : other.amounts) one.amount += one.amount == 0;  // a quota may be nothing
  if (const std::string wrong = wrong_about(other); !wrong.empty())
    return bad("its quota: " + wrong, "leave the quota out: then there is no limit");
  if (queue.weight_e4 <= 0 || queue.weight_e4 > kMostWeight_e4)
    return bad("its weight is not above 0 and at most 1000000", "choose one near 1");
  return std::nullopt;
}

const QueueTable::Queue* QueueTable::find(const std::string& name) const {
  const auto at = queues_.find(name);
  return at == queues_.end() ? nullptr : &at->second;
}

QueueTable::Queue& QueueTable::at(const std::string& name) {
  const auto [at, is_new] = queues_.try_emplace(name);
  if (is_new) {
    at->second.load.queue.name = name;
    at->second.number = ++last_number_;
  }
  return at->second;
}

void QueueTable::remove(const std::string& name) {
  if (name == kDefaultQueue) {
    at(name).load.queue = {kDefaultQueue};
    return;
  }
  const Queue* queue = find(name);
  TROUPE_ASSERT(queue != nullptr && queue->load.used == scheduler::Room{}, "nobody is in it");
  queues_.erase(name);
}

}  // namespace troupe::cluster
