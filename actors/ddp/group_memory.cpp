#include "actors/ddp/group_memory.hpp"

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "actors/ddp/of_group.hpp"
#include "runtime/core/error.hpp"

namespace troupe::train {
namespace {

struct Run {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// What is free of a group's memory. Thread-safe: a tensor may end in any thread.
class Pool {
 public:
  /// The smallest run that is large enough.
  std::optional<Run> take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = free_.end();
    for (auto at = free_.begin(); at != free_.end(); ++at) {
      if (at->bytes >= bytes && (best == free_.end() || at->bytes < best->bytes)) best = at;
    }
    if (best == free_.end()) return std::nullopt;
    const Run run = *best;
    free_.erase(best);
    return run;
  }
  void give(const Run& run) {
    const std::lock_guard lock(mutex_);
    free_.push_back(run);
  }

 private:
  std::mutex mutex_;
  std::vector<Run> free_;  ///< guarded by mutex_
};

class Taken final : public GroupMemory {
 public:
  Taken(std::shared_ptr<collectives::ProcessGroup> group, std::shared_ptr<Pool> pool, Run run)
      : group_(std::move(group)), pool_(std::move(pool)), run_(run) {
    data_ = run.data;
  }
  ~Taken() override { pool_->give(run_); }

 private:
  std::shared_ptr<collectives::ProcessGroup> group_;  ///< whose memory it is
  std::shared_ptr<Pool> pool_;
  Run run_;
};

std::optional<Run> allocate(collectives::ProcessGroup& group, std::size_t bytes) {
  try {
    return Run{group.allocate(bytes, collectives::DType::kUInt8).data, bytes};
  } catch (const LimitExceeded&) {  // no room: on every rank, since all allocate the same
  } catch (const BadConfig&) {      // a backend without memory of its own
  }
  return std::nullopt;
}

}  // namespace

std::shared_ptr<GroupMemory> take_group_memory(const std::shared_ptr<collectives::ProcessGroup>& group,
                                               std::size_t bytes) {
  const std::shared_ptr<Pool> pool = of_group<Pool>(group);
  std::optional<Run> run = pool->take(bytes);
  std::int32_t has_one = run ? 1 : 0;
  group->host_group().all_reduce(std::span(&has_one, 1), collectives::ReduceOp::kMin)->wait();
  if (has_one == 0) {
    if (run) pool->give(*run);
    run = allocate(*group, bytes);
  }
  return run ? std::make_shared<Taken>(group, pool, *run) : nullptr;
}

}  // namespace troupe::train
