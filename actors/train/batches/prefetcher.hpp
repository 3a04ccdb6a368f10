/// Which batches a trainer asks which loader for. Pure: it says what to request; the caller sends.
///
/// The loader of a batch is loaders[(step * L + leaf) % n], of the n loaders on the trainer's own node or,
/// where that has none, of all. A batch that it could not give is asked of the next one of all. Any loader
/// can serve any batch, and the samples in it do not depend on which one does. At most `capacity` batches are
/// outstanding or held at a time; they are asked for in the order in which they will be used. It is the one
/// record of what has arrived, and where.
///
/// A step that fails runs again with the same batches. Where two steps fit, they are kept until the step is
/// released; else a batch goes as soon as its leaf was computed, and is asked for again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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

/// Where a batch lies: a number of the caller's.
using SlotId = std::uint64_t;

/// Not thread-safe.
class Prefetcher {
 public:
  /// `here`: the trainer's node.
  Prefetcher(int logical_ranks, int capacity, Duration retry_after = std::chrono::seconds(10),
             NodeId here = {});

  /// Batches that may be outstanding or held from now on, at least 1.
  void set_capacity(int capacity);

  /// A new generation: steps [next_step, end_step) for `leaves`. Batches of before that still fit are kept;
  /// the slots of those that do not are returned: they are free.
  std::vector<SlotId> restart(LeafInterval leaves, std::int64_t next_step, std::int64_t end_step);
  /// The loaders to use from now on. What was asked of one that is not among them will be asked again.
  void set_loaders(const std::vector<LoaderInfo>& loaders);

  /// Requests to send now, also those that are sent again. They count as outstanding.
  std::vector<BatchRequest> requests(Instant now);
  /// A batch came and lies in `slot`. False if nobody waits for it (a second answer, or another
  /// generation's): the slot is free.
  bool arrived(std::int64_t step, int leaf, SlotId slot = 0);
  /// A loader could not give this batch: the next call of requests() asks another one, or 50 ms later, once
  /// all were asked. Returns how often what it told was the data's own `error`.
  int failed(std::int64_t step, int leaf, bool error = false);
  /// It did not fit where it was to lie: it is asked for at once.
  void ask_again(std::int64_t step, int leaf);
  /// It was asked for, and has not come.
  bool waits_for(std::int64_t step, int leaf) const;
  bool ready(std::int64_t step, int leaf) const { return slot_of(step, leaf).has_value(); }
  /// Where the batch lies, if it has come.
  std::optional<SlotId> slot_of(std::int64_t step, int leaf) const;
  /// All leaves of `step` are there.
  bool ready(std::int64_t step) const;
  /// The leaf was computed; leaves are used in order. Returns its slot if it is free now.
  std::optional<SlotId> used(std::int64_t step, int leaf);
  /// The step was applied. Returns the slots that are free again.
  std::vector<SlotId> release(std::int64_t step);

  int held() const { return static_cast<int>(batches_.size()); }

 private:
  struct Wanted {
    ActorId loader{};
    int tries = 0;   ///< requests sent
    int errors = 0;  ///< of the dataset
    Instant asked_at{};
    Instant retry_at{};
    std::optional<SlotId> slot{};  ///< where it lies, once it is here
  };
  using Key = std::pair<std::int64_t, int>;
  bool keeps_used() const { return capacity_ >= 2 * leaves_.size(); }
  std::map<Key, Wanted>::iterator drop(std::map<Key, Wanted>::iterator at, std::vector<SlotId>& freed);

  int logical_ranks_;
  int capacity_;
  Duration retry_after_;
  NodeId here_;
  LeafInterval leaves_;
  std::int64_t next_step_ = 0;
  int next_leaf_ = 0;  ///< of next_step_: what is below was used and dropped
  std::int64_t end_step_ = 0;
  std::vector<LoaderInfo> loaders_;  ///< those of this node first
  std::size_t near_ = 0;             ///< so many
  std::map<Key, Wanted> batches_;    ///< Invariant: those of the window, at most capacity_
};

}  // namespace troupe::train
