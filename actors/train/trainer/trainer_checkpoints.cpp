#include "actors/train/trainer/trainer_checkpoints.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "actors/ddp/freed_memory.hpp"
#include "actors/train/driver/history.hpp"
#include "actors/train/trainer/checkpoint_transfer.hpp"
#include "actors/train/trainer/task_failures.hpp"
#include "runtime/core/control_groups.hpp"
#include "runtime/core/error.hpp"
#include "runtime/core/log.hpp"

namespace troupe::train {

checkpoint::CheckpointStore TrainerCheckpoints::store(checkpoint::FileSystem& files,
                                                      const WalkProgress& progress) const {
  return {files, {settings_.checkpoint_folder, progress}};
}

TrainerResult TrainerCheckpoints::install(const LoadCheckpoint& task, collectives::ProcessGroup& group,
                                          int rank, const WalkProgress& progress,
                                          const std::function<void()>& waits) {
  const bool receives = std::find(task.receivers.begin(), task.receivers.end(), rank) != task.receivers.end();
  CheckpointSender sender(group, rank == task.source ? task.receivers : std::vector<int>());
  const auto goes_on = [&] {
    progress();
    sender.still_reads();
  };
  try {
    if (receives) {
      waits();
      receive_checkpoint(engine_, group, task.source, progress);
    } else {
      const auto files = floor_.files(progress);
      install_checkpoint(engine_, store(*files, goes_on), task.path, task.hash, sender);
    }
  } catch (const Error& error) {
    // Whoever is at the other end waits no longer.
    if (receives || sender.is_on())
      group.abort("the checkpoint " + task.path + " cannot be passed on: " + error.what());
    if (!sender.is_broken()) throw;
    TaskAborted aborted = aborted_by(error);
    aborted.is_of_others = true;
    return aborted;
  }
  return StateReady{};
}

TrainerResult TrainerCheckpoints::write(const WriteCheckpoint& order, const DataInfo& info,
                                        std::int64_t steps_per_epoch, const Members& members,
                                        const WalkProgress& progress) {
  const checkpoint::SaveRequest request{.job = job_identity(settings_, info, engine_.numerics()),
                                        .position = {static_cast<std::uint64_t>(order.step / steps_per_epoch),
                                                     static_cast<std::uint64_t>(order.step)},
                                        .metadata = {{kHistoryKey, order.history}}};
  end();
  if (const auto state = engine_.shards()) return write_shards(order, request, *state, members, progress);
  engine_.gather_state(kWriter);
  if (std::shared_ptr<StateCopy> made = copy([this] { return engine_.copy_state(); })) {
    const std::size_t in_common = parts_in_common(made->parts().size());
    write_beside(order, [request, made, in_common](const auto& store, const WalkProgress& goes_on) {
      CopyWalk walk(*made);
      CheckpointStored stored = save_state(walk, store, request, goes_on);
      stored.parts.resize(in_common);
      return stored;
    });
    return StateCopied{};
  }
  TrainEngine::State state = engine_.state();
  WholeWalk walk(std::move(state.parts), std::move(state.owner));
  const auto files = floor_.files(progress);
  CheckpointStored stored = save_state(walk, store(*files, progress), request, progress);
  stored.parts.resize(parts_in_common(stored.parts.size()));
  return stored;
}

/// Beside the steps where all trainers have a copy of what they give, else now, part by part.
TrainerResult TrainerCheckpoints::write_shards(const WriteCheckpoint& order,
                                               const checkpoint::SaveRequest& request,
                                               const ShardedState& state, const Members& members,
                                               const WalkProgress& progress) {
  auto mine = copy_shards(state, members);
  auto trainers = members.all_copied(mine != nullptr);
  if (trainers.empty()) {
    mine.reset();
    const auto files = floor_.files(progress);
    CheckpointStored stored = save_state(*engine_.walk(kWriter), store(*files, progress), request, progress);
    stored.parts = compared(progress);
    return stored;
  }
  const auto look = [this] {
    if (ends_) throw_error({ErrorCode::kAborted, "the checkpoint was given up", "its trainer ends", ""});
  };
  const auto copies = std::make_shared<ShardReader>(ShardsOf{order.generation, order.step}, std::move(mine),
                                                    std::move(trainers), look);
  const auto walk = std::make_shared<JoinedWalk>(
      state, [copies, this](std::size_t rank, std::uint64_t offset, std::span<std::byte> into) {
        copies->read(rank, offset, into);
        told_.advances();
      });
  write_beside(
      order, [request, walk, in_common = compared(progress)](const auto& store, const WalkProgress& goes_on) {
        CheckpointStored stored = save_state(*walk, store, request, goes_on);
        stored.parts = in_common;
        return stored;
      });
  return StateCopied{};
}

/// Null where there is no room for one, on the host or a device, as under limits of memory that count a
/// fork's pages twice.
std::unique_ptr<StateCopy> TrainerCheckpoints::copy(const std::function<std::unique_ptr<StateCopy>()>& make) {
  try {
    return make();
  } catch (const std::exception& error) {
    if (!std::exchange(told_no_copy_, true))
      log(LogLevel::kWarning, std::string("steps wait while a checkpoint is written: ") + error.what());
    return nullptr;
  }
}

/// Who shards its parameters may have no room for more: null, and none is tried, where memory is short.
std::unique_ptr<StateCopy> TrainerCheckpoints::copy_shards(const ShardedState& state,
                                                           const Members& members) {
  shards_.drop();  // of the checkpoint before, which has ended
  return copy([&] {
    std::uint64_t bytes = 0;
    for (const HeldPart& one : state.mine()) bytes += one.part.bytes.size();
    give_back_freed_memory();
    if (const auto why = why_no_room(bytes, members.here, own_process_memory(), available_memory());
        !why.empty())
      throw_error({ErrorCode::kLimit, "memory is short", why, ""});
    return state.copy_mine();
  });
}

/// Of a state's parts, those that all trainers have.
std::size_t TrainerCheckpoints::parts_in_common(std::size_t parts) {
  return settings_.sharding.what == Shard::kNothing ? parts : engine_.weight_parts();
}

void TrainerCheckpoints::write_beside(const WriteCheckpoint& order, const Save& save) {
  told_.begins(order.step);
  const auto write = [this, order, save] {
    const auto progress = [this] {
      if (ends_) throw_error({ErrorCode::kAborted, "the checkpoint was given up", "its trainer ends", ""});
      told_.advances();
    };
    TrainerResult result;
    try {
      const auto files = floor_.files(progress);
      result = save(store(*files, progress), progress);
    } catch (const Error& error) {
      result = aborted_by(error);
    } catch (const std::exception& error) {  // out of memory
      result = TaskAborted{error.what(), {}};
    }
    if (!ends_) told_.ends(order, result);
  };
  try {
    thread_ = Thread(write);
  } catch (const Error& error) {
    told_.ends(order, TaskAborted{std::string("no thread to write it: ") + error.what(), {}});
  }
}

std::vector<PartHash> TrainerCheckpoints::prove(const ProveState& order, const Members& members,
                                                const WalkProgress& progress) {
  if (const auto state = engine_.shards()) {
    auto mine = copy_shards(*state, members);
    const bool copied = mine != nullptr;
    shards_.keep({order.generation, order.step}, std::move(mine));  // who writes may ask once all have told
    if (members.all_copied(copied).empty()) {
      shards_.drop();
      follow_save(*engine_.walk(kWriter));
    }
  } else if (settings_.sharding.what != Shard::kNothing) {
    follow_save(*engine_.walk(kWriter));
  }
  return compared(progress);
}

/// Of shards each trainer has its own.
std::vector<PartHash> TrainerCheckpoints::compared(const WalkProgress& progress) {
  const auto state = settings_.sharding.what == Shard::kNothing ? engine_.state() : engine_.common();
  return hash_parts(state.parts, progress);
}

void TrainerCheckpoints::prune(const PruneCheckpoints& order, const WalkProgress& progress) {
  store(*floor_.files({}), progress).prune(order.oldest_kept, order.spared).value();
}

void TrainerCheckpoints::end() {
  ends_ = true;
  if (thread_.joinable()) thread_.join();
  ends_ = false;
}

}  // namespace troupe::train
