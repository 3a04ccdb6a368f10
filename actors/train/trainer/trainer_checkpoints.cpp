#include "actors/train/trainer/trainer_checkpoints.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "actors/train/driver/history.hpp"
#include "actors/train/trainer/checkpoint_transfer.hpp"
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
    ErrorInfo why = error.info();
    why.todo.clear();  // the driver does it
    return TaskAborted{why.message(), {}, true};
  }
  return StateReady{};
}

TrainerResult TrainerCheckpoints::write(const WriteCheckpoint& order, const DataInfo& info,
                                        std::int64_t steps_per_epoch, const WalkProgress& progress) {
  const checkpoint::SaveRequest request{.job = job_identity(settings_, info, engine_.numerics()),
                                        .position = {static_cast<std::uint64_t>(order.step / steps_per_epoch),
                                                     static_cast<std::uint64_t>(order.step)},
                                        .metadata = {{kHistoryKey, order.history}}};
  const auto files = floor_.files(progress);
  if (has_units(settings_.sharding.what)) {
    CheckpointStored stored = save_state(*engine_.walk(kWriter), store(*files, progress), request, progress);
    stored.parts = compared(progress);
    return stored;
  }
  end();
  engine_.gather_state(kWriter);
  if (std::shared_ptr<StateCopy> copy = copy_state()) {
    write_beside(order, request, std::move(copy));
    return StateCopied{};
  }
  TrainEngine::State state = engine_.state();
  WholeWalk walk(std::move(state.parts), std::move(state.owner));
  CheckpointStored stored = save_state(walk, store(*files, progress), request, progress);
  stored.parts.resize(parts_in_common(stored.parts.size()));
  return stored;
}

/// Null where there is no room for one, on the host or a device, as under limits of memory that count a
/// fork's pages twice.
std::unique_ptr<StateCopy> TrainerCheckpoints::copy_state() {
  try {
    return engine_.copy_state();
  } catch (const std::exception& error) {
    if (!std::exchange(told_no_copy_, true))
      log(LogLevel::kWarning, std::string("steps wait while a checkpoint is written: ") + error.what());
    return nullptr;
  }
}

/// Of a state's parts, those that all trainers have.
std::size_t TrainerCheckpoints::parts_in_common(std::size_t parts) {
  return settings_.sharding.what == Shard::kNothing ? parts : engine_.weight_parts();
}

void TrainerCheckpoints::write_beside(const WriteCheckpoint& order, const checkpoint::SaveRequest& request,
                                      std::shared_ptr<StateCopy> copy) {
  const std::size_t in_common = parts_in_common(copy->parts().size());
  told_.begins(order.step);
  const auto write = [this, order, request, copy, in_common] {
    const auto progress = [this] {
      if (ends_) throw_error({ErrorCode::kAborted, "the checkpoint was given up", "its trainer ends", ""});
      told_.advances();
    };
    TrainerResult result;
    try {
      const auto files = floor_.files(progress);
      CopyWalk walk(*copy);
      CheckpointStored stored = save_state(walk, store(*files, progress), request, progress);
      stored.parts.resize(in_common);
      result = std::move(stored);
    } catch (const Error& error) {
      ErrorInfo why = error.info();
      why.todo.clear();  // the driver does it
      result = TaskAborted{why.message(), {}};
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

std::vector<PartHash> TrainerCheckpoints::prove(const WalkProgress& progress) {
  if (settings_.sharding.what != Shard::kNothing) follow_save(*engine_.walk(kWriter));
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
