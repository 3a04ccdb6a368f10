/// Which batches a trainer asks which loader for. Pure: it says what to request; the caller sends.
///
/// The loader of a slot is loaders[(step * L + leaf) % n]: any loader can serve any slot, and the samples in
/// it do not depend on which one does. At most `slots` batches are outstanding or held at a time; they are
/// asked for in the order in which they will be used.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "actors/train/plan.hpp"
#include "runtime/core/clock.hpp"

namespace troupe::train {

struct BatchRequest {
  std::int64_t step = 0;
  int leaf = 0;
  ActorId loader{};
  bool operator==(const BatchRequest&) const = default;
};

/// Not thread-safe.
class Prefetcher {
 public:
  /// REQUIRES: slots is at least the number of leaves this trainer will ever host in a step, or they never
  /// fit.
  Prefetcher(int logical_ranks, int slots, Duration retry_after = std::chrono::seconds(10));

  /// A new generation: steps [next_step, end_step) for `leaves`. Batches of before that still fit are kept;
  /// those that do not are returned, so that the caller can release them.
  std::vector<std::pair<std::int64_t, int>> restart(LeafInterval leaves, std::int64_t next_step,
                                                    std::int64_t end_step);
  /// The loaders to use from now on. What was asked of one that is not among them will be asked again.
  void set_loaders(const std::vector<LoaderInfo>& loaders);

  /// Requests to send now, also those that are sent again. They count as outstanding.
  std::vector<BatchRequest> requests(Instant now);
  /// A batch came. False if nobody waits for it (a second answer, or another generation's): release it.
  bool arrived(std::int64_t step, int leaf);
  /// A loader could not give this batch: the next call of requests() asks another one.
  void failed(std::int64_t step, int leaf);
  bool ready(std::int64_t step, int leaf) const;
  /// All leaves of `step` are there.
  bool ready(std::int64_t step) const;
  /// The step was applied: its batches' slots are free again.
  void release(std::int64_t step);

  int held() const { return static_cast<int>(slots_.size()); }

 private:
  struct Slot {
    ActorId loader{};
    int tries = 0;  ///< requests sent
    Instant retry_at{};
    bool here = false;
  };
  using Key = std::pair<std::int64_t, int>;

  int logical_ranks_;
  int capacity_;
  Duration retry_after_;
  LeafInterval leaves_;
  std::int64_t next_step_ = 0;
  std::int64_t end_step_ = 0;
  std::vector<LoaderInfo> loaders_;
  std::map<Key, Slot> slots_;
};

}  // namespace troupe::train
