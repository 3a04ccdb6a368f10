/// A trainer's batches on their way: which are asked for (Prefetcher), the slots of shared memory they come
/// in (SlotPool), and the calls to the loaders. Training batches and pieces of the test set go the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/data/batch_layout.hpp"
#include "actors/train/batches/loader.hpp"
#include "actors/train/batches/prefetcher.hpp"
#include "actors/train/settings.hpp"
#include "runtime/client/session.hpp"

namespace troupe::train {

/// What the job's dataset threw, as a trainer that waited for the batch hears it.
class DataFailed final : public TaskFailed {
 public:
  using TaskFailed::TaskFailed;
};

/// What a loader's call failed with, told as the job's: "Digits::dataset threw: sample 3 ...".
ErrorInfo of_the_dataset(const std::string& job, ErrorInfo error);

/// Thread-safe: the trainer's thread waits for batches, answers arrive in the runtime's threads.
class BatchFeed {
 public:
  /// `region` begins the names of the feed's memory. `pin`: see RegionSource.
  BatchFeed(ActorContext& actor, const RunSettings& settings, const DataInfo& info, const std::string& region,
            std::function<std::shared_ptr<const void>(std::span<std::byte>)> pin = {});
  ~BatchFeed();

  std::int64_t steps_per_epoch() const { return info_.steps_per_epoch; }

  /// A generation starts: training batches from `step` on, for `leaves`. In the trainer's thread, as wait().
  void restart(LeafInterval leaves, std::int64_t step, std::int64_t total_steps);
  void set_loaders(const std::vector<LoaderInfo>& loaders);
  /// The batch of (step, leaf), in place. It stays until used(). Throws CollectiveAborted after interrupt(),
  /// what the dataset threw three times for this batch, and what the node says to more memory. It waits as
  /// long as the loaders live: the driver knows how long that may be.
  data::BatchView wait(std::int64_t step, int leaf);
  /// The leaf was computed: its batch may go, or stay for when the step runs again.
  void used(std::int64_t step, int leaf);
  /// The step was applied.
  void release(std::int64_t step);

  /// Calls `consume` for the pieces [begin, end) of the test set, in order. Throws as wait().
  void each_test_piece(std::int64_t begin, std::int64_t end,
                       const std::function<void(std::int64_t piece, const data::BatchView&)>& consume);

  /// Ends every wait of this generation; restart() takes it back.
  void interrupt(const std::string& reason);

 private:
  struct Stream;
  /// Shared with the callbacks of calls under way, which may outlive the feed.
  struct Shared;

  void make_room(std::unique_lock<std::mutex>& lock, Stream& stream);
  void send_requests(std::unique_lock<std::mutex>& lock, Stream& stream);
  data::BatchView wait(std::unique_lock<std::mutex>& lock, Stream& stream, std::int64_t step, int leaf);
  BatchAsk make_ask(const Stream& stream, SlotId slot, const BatchRequest& request) const;
  std::vector<std::uint64_t> attempts() const;
  data::BatchKey key_of(const Stream& stream, std::int64_t step, int leaf) const;

  ActorContext& actor_;
  const RunSettings settings_;
  const DataInfo info_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace troupe::train
