/// A trainer's batches on their way: which are asked for (Prefetcher), the slots of shared memory they come
/// in, and the calls to the loaders.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/data/batch_layout.hpp"
#include "actors/train/loader.hpp"
#include "actors/train/prefetcher.hpp"
#include "actors/train/settings.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

/// Thread-safe: the trainer's thread waits for batches, answers arrive in the runtime's threads.
class BatchFeed {
 public:
  BatchFeed(ActorContext& actor, const RunSettings& settings, const DataInfo& info, std::string region);
  ~BatchFeed();

  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }

  /// A generation starts: training batches from `step` on, for `leaves`.
  void restart(LeafInterval leaves, std::int64_t step, std::int64_t total_steps);
  void set_loaders(const std::vector<LoaderInfo>& loaders);
  /// The batch of (step, leaf), in place. It stays until release(step). Throws CollectiveAborted after
  /// interrupt(), Timeout after 60 s, and what the dataset threw.
  data::BatchView wait(std::int64_t step, int leaf);
  void release(std::int64_t step);

  /// Test samples [begin, end) in pieces: calls `consume` for each, in order. Throws as wait().
  void each_test_batch(std::int64_t begin, std::int64_t end,
                       const std::function<void(const data::BatchView&)>& consume);

  /// Ends every wait of this generation; restart() takes it back.
  void interrupt(const std::string& reason);

 private:
  struct Asked {
    std::size_t slot = 0;
    std::int64_t step = 0;
    int leaf = 0;
    bool arrived = false;
  };
  /// Shared with the callbacks of calls under way, which may outlive the feed.
  struct Shared;

  void send_requests(std::unique_lock<std::mutex>& lock);
  BatchAsk make_ask(std::size_t slot) const;
  void check(const Shared& shared) const;

  ActorContext& actor_;
  const RunSettings settings_;
  const DataInfo info_;
  std::int64_t steps_per_epoch_ = 0;
  std::int64_t test_piece_ = 0;
  std::size_t slot_bytes_ = 0;
  std::size_t test_slot_bytes_ = 0;
  std::size_t test_offset_ = 0;
  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::train
