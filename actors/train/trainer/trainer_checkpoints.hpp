/// A trainer's checkpoints: it reads one, deletes old ones, and writes one at a time beside its steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actors/train/engine/engine.hpp"
#include "actors/train/floor.hpp"
#include "actors/train/settings.hpp"
#include "actors/train/trainer/shard_copies.hpp"
#include "actors/train/trainer/state_walks.hpp"
#include "actors/train/trainer/trainer_machine.hpp"
#include "runtime/core/thread.hpp"

namespace troupe::train {

/// For the thread that computes. What its methods read and write asks `progress` about every 16 MiB, which
/// throws to end it.
class TrainerCheckpoints {
 public:
  /// Of what is written beside the steps; the second and the third in the thread that writes.
  struct Told {
    std::function<void(std::int64_t step)> begins;
    std::function<void()> advances;
    std::function<void(const WriteCheckpoint&, const TrainerResult&)> ends;
  };
  /// The ranks of the generation, where the state is in shards.
  struct Members {
    int here = 1;  ///< on this host, this one among them
    /// Collective: told whether this one has copied what it gives. The trainers by rank, if all have.
    std::function<std::vector<ActorHandle<Trainer>>(bool copied)> all_copied;
  };
  TrainerCheckpoints(TrainFloor& floor, const RunSettings& settings, TrainEngine& engine, KeptShards& shards,
                     Told told)
      : floor_(floor), settings_(settings), engine_(engine), shards_(shards), told_(std::move(told)) {}
  ~TrainerCheckpoints() {
    end();
    drop_shards();
  }
  TrainerCheckpoints(const TrainerCheckpoints&) = delete;
  TrainerCheckpoints& operator=(const TrainerCheckpoints&) = delete;

  /// As rank `rank` of the group: StateReady, or TaskAborted where a receiver was lost. `waits` is called
  /// where it waits for another one. Where the source cannot read it, or a receiver takes it, that one aborts
  /// the group. Throws what the file is refused for.
  TrainerResult install(const LoadCheckpoint& task, collectives::ProcessGroup& group, int rank,
                        const WalkProgress& progress, const std::function<void()>& waits);
  /// StateCopied, and the rest is told; or CheckpointStored, where there is no room for a copy: the process
  /// may not fork, or its memory is short. What the one before has written is ended first.
  TrainerResult write(const WriteCheckpoint& order, const DataInfo& info, std::int64_t steps_per_epoch,
                      const Members& members, const WalkProgress& progress);
  /// What another rank does meanwhile: what all trainers have, to be compared.
  std::vector<PartHash> prove(const ProveState& order, const Members& members, const WalkProgress& progress);
  void prune(const PruneCheckpoints& order, const WalkProgress& progress);
  /// What it gave to a checkpoint that another rank writes is of no use any more.
  void drop_shards() { shards_.drop(); }
  /// Waits until what is under way has been given up, which is told to nobody.
  void end();

 private:
  static constexpr int kWriter = 0;  ///< the rank
  checkpoint::CheckpointStore store(checkpoint::FileSystem& files, const WalkProgress& progress) const;
  std::vector<PartHash> compared(const WalkProgress& progress);
  std::unique_ptr<StateCopy> copy(const std::function<std::unique_ptr<StateCopy>()>& make);
  std::unique_ptr<StateCopy> copy_shards(const ShardedState& state, const Members& members);
  std::size_t parts_in_common(std::size_t parts);
  TrainerResult write_shards(const WriteCheckpoint& order, const checkpoint::SaveRequest& request,
                             const ShardedState& state, const Members& members, const WalkProgress& progress);
  using Save = std::function<CheckpointStored(checkpoint::CheckpointStore, const WalkProgress&)>;
  void write_beside(const WriteCheckpoint& order, const Save& save);

  TrainFloor& floor_;
  const RunSettings& settings_;
  TrainEngine& engine_;
  KeptShards& shards_;  ///< for a checkpoint that another rank writes
  const Told told_;
  bool told_no_copy_ = false;
  std::atomic<bool> ends_{false};
  Thread thread_;
};

}  // namespace troupe::train
