#include "actors/train/trainer.hpp"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <bit>
#include <optional>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/data/torch.hpp"
#include "actors/train/batch_feed.hpp"
#include "actors/train/group_setup.hpp"
#include "actors/train/job_registry.hpp"
#include "actors/train/numerics.hpp"
#include "actors/train/state_transfer.hpp"
#include "actors/train/step_engine.hpp"
#include "actors/train/train_driver.hpp"
#include "actors/train/trainer_machine.hpp"
#include "collectives/native/native_group.hpp"

namespace troupe::train {
namespace {

using collectives::Buffer;
using collectives::DType;
using collectives::ReduceOp;

/// No copy: the tensors are the batch's memory.
data::Batch as_batch(const data::BatchView& view) {
  data::Batch batch;
  batch.samples = view.header.count;
  for (const auto& field : view.fields) {
    const auto tensor = torch::from_blob(field.bytes.data(), field.shape, data::torch_dtype(field.dtype));
    if (field.name == "input") {
      batch.input = tensor;
    } else if (field.name == "target") {
      batch.target = tensor;
    } else {
      batch.others.emplace_back(field.name, tensor);
    }
  }
  return batch;
}

/// Loss and samples of a slot as one number of the slots' all-reduce.
std::int64_t pack_slot(double loss, std::uint32_t samples) {
  return std::bit_cast<std::int64_t>(std::uint64_t{samples} << 32 |
                                     std::bit_cast<std::uint32_t>(static_cast<float>(loss)));
}

StepEngine make_engine(const RunSettings& settings) {
  EngineOptions options;
  options.logical_ranks = settings.logical_ranks;
  options.seed = settings.seed;
  return {JobRegistry::instance().find(settings.job_type).make_model(settings.job, settings.seed), options};
}

}  // namespace

class Trainer::Work {
 public:
  Work(ActorContext& actor, RunSettings settings, ActorHandle<TrainDriver> driver)
      : actor_(actor),
        session_(actor.session()),
        settings_(std::move(settings)),
        driver_(driver),
        machine_(actor.address().actor),
        listener_(collectives::DataListener::bind({session_.host(), 0}).value()),
        engine_(make_engine(settings_)) {}

  ~Work() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      interrupt("the trainer ends");
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::string data_address() const { return troupe::to_string(listener_.endpoint()); }

  void prepare(const DataInfo& info) {
    info_ = info;
    feed_ = std::make_unique<BatchFeed>(actor_, settings_, info,
                                        settings_.run + "/batches/" + to_string(actor_.address().actor));
    thread_ = std::thread([this] { run(); });
  }

  void order(const TrainerOrder& order) {
    const std::lock_guard lock(mutex_);
    handle(machine_.on(order));
    wake_.notify_all();
  }

  void beat() { driver_.tell<&TrainDriver::report>(TrainerReport(TrainerHeartbeat{actor_.address().actor})); }

 private:
  // ---- The thread that computes -------------------------------------------------------------------------

  void run() {
    at::init_num_threads();  // this thread, too, computes with what set_up_numerics chose
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const TrainerTask task = machine_.take();
      if (std::holds_alternative<Wait>(task)) {
        wake_.wait(lock);
        continue;
      }
      lock.unlock();
      std::optional<TrainerResult> result;
      try {
        result = std::visit([this](const auto& one) { return perform(one); }, task);
      } catch (const Error& error) {
        const bool of_the_group =
            error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kTimeout ||
            error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kActorDied ||
            error.code() == ErrorCode::kCorrupt;
        if (of_the_group || is_recoverable(task)) {
          result = TaskAborted{error.what(), {}};
        } else {
          return give_up(describe_exception("this trainer"));
        }
      } catch (...) {
        return give_up(describe_exception("the job's code in a trainer"));
      }
      lock.lock();
      handle(machine_.done(*result));
    }
  }

  /// A failure of these is the system's (a file, a socket) and is reported, not deadly.
  static bool is_recoverable(const TrainerTask& task) {
    return std::holds_alternative<FormGroup>(task) || std::holds_alternative<LoadCheckpoint>(task) ||
           std::holds_alternative<RunCheckpoint>(task) || std::holds_alternative<RunPrune>(task);
  }

  /// What the user's code throws is thrown again by whoever runs it: the job fails at once, with its message.
  void give_up(const ErrorInfo& error) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      if (group_ != nullptr) group_->abort(error.message());
    }
    driver_.tell<&TrainDriver::job_threw>(actor_.address().actor, error);
  }

  // ---- Tasks --------------------------------------------------------------------------------------------

  TrainerResult perform(const Wait&) { return TaskDone{}; }

  TrainerResult perform(const FormGroup& task) {
    {
      const std::lock_guard lock(mutex_);
      plan_ = task.plan;
      rank_ = machine_.rank();
      group_.reset();
    }
    engine_.detach();
    std::vector<collectives::LeafInterval> leaves;
    for (const auto& member : plan_.members) leaves.push_back(member.leaves);
    std::size_t bytes = 0;
    for (const auto& allocation : engine_.allocations())
      bytes += collectives::native_tree_bytes(leaves, allocation.count, allocation.dtype);
    auto group =
        form_group(session_, settings_, plan_, rank_, bytes, listener_, [this] { return abandoned(); });
    {
      const std::lock_guard lock(mutex_);
      group_ = group;
      // An order that came while the group was being made could not abort it.
      if (aborted_below_ > plan_.generation || stopping_) group_->abort("the generation is over");
    }
    engine_.attach(group);
    {
      // The newest list: loaders may have come and gone since the plan was made.
      const std::lock_guard lock(mutex_);
      feed_->set_loaders(machine_.loaders());
    }
    feed_->restart(plan_.members[rank_].leaves, plan_.first_step, plan_.total_steps);
    group->barrier()->wait();
    return TaskDone{};
  }

  TrainerResult perform(const TransferState& task) {
    const auto progress = [this] { this->progress(); };
    if (task.role == TransferState::Role::kSource) {
      send_state(*group_, engine_.state().view().parts, task.receivers, progress);
      return TaskDone{};
    }
    pristine_ = false;
    const ReceivedState received = receive_state(*group_, task.source, progress);
    engine_.state().install(received.parts).value();  // checks everything, then swaps it in whole
    return StateReady{};
  }

  TrainerResult perform(const MakeInitialState&) {
    if (!std::exchange(pristine_, false)) engine_.state().install(TrainState(*make_model()).view().parts).value();
    return StateReady{};
  }

  TrainerResult perform(const LoadCheckpoint& task) {
    pristine_ = false;
    checkpoint::PosixFileSystem files([this] { progress(); });
    const auto loaded = make_store(files).load_manifest(task.path).value();
    if (loaded.manifest.state_hash != task.hash) {
      throw_error({ErrorCode::kCorrupt, "the checkpoint '" + task.path + "' is another one here",
                   "its state is " + loaded.manifest.state_hash + ", the job's is " + task.hash,
                   "share the checkpoint folder between the nodes, or empty it there"});
    }
    engine_.state().install(loaded.tensors).value();
    return StateReady{};
  }

  TrainerResult perform(const ComputeStep& task) {
    const int leaves = settings_.logical_ranks;
    // Per leaf: the hash of the indices that its batch was made of, and its loss. Every rank learns all of
    // it, so that a survivor can speak for a trainer that died. Summing zeros and one value changes no bit.
    std::vector<std::int64_t> slots(static_cast<std::size_t>(2 * leaves), 0);
    if (task.rehearse) engine_.rehearse(make_model());
    engine_.begin_step(static_cast<std::uint64_t>(task.step));
    try {
      for (int leaf = task.leaves.begin; leaf < task.leaves.end; ++leaf) {
        const auto view = feed_->wait(task.step, leaf);
        const double loss = engine_.run_leaf({leaf, as_batch(view)});
        slots[2 * leaf] = std::bit_cast<std::int64_t>(view.header.index_hash);
        slots[2 * leaf + 1] = pack_slot(loss, view.header.count);
        feed_->used(task.step, leaf);
      }
      const auto shared = group_->all_reduce({slots.data(), slots.size(), DType::kInt64}, ReduceOp::kSum);
      engine_.finish_step();
      shared->wait();
    } catch (...) {
      engine_.abandon_step();
      throw;
    }
    Reduced reduced;
    for (int leaf = 0; leaf < leaves; ++leaf) {
      const auto packed = std::bit_cast<std::uint64_t>(slots[2 * leaf + 1]);
      reduced.slots.push_back({leaf, std::bit_cast<std::uint64_t>(slots[2 * leaf]),
                               std::bit_cast<float>(static_cast<std::uint32_t>(packed)),
                               static_cast<std::uint32_t>(packed >> 32)});
    }
    return reduced;
  }

  TrainerResult perform(const ApplyStep& task) {
    engine_.apply((task.step + 1) % feed_->steps_per_epoch() == 0);
    feed_->release(task.step);
    Applied applied;
    if (task.prove) applied.parts = hash_parts(engine_.state().view().parts);
    return applied;
  }

  TrainerResult perform(const HashState&) {
    return Hashed{final_hash(engine_.state().view().parts, [this] { progress(); })};
  }

  TrainerResult perform(const HashParts&) {
    return PartsHashed{hash_parts(engine_.state().view().parts, [this] { progress(); })};
  }

  TrainerResult perform(const RunEvaluation& task) {
    Evaluated done;
    feed_->each_test_piece(
        task.order.begin, task.order.end, [&](std::int64_t piece, const data::BatchView& view) {
          const auto one = engine_.evaluate(as_batch(view));
          done.pieces.push_back({piece, view.header.index_hash, one.samples, one.correct, one.loss_sum});
        });
    return done;
  }

  TrainerResult perform(const RunCheckpoint& task) {
    checkpoint::PosixFileSystem files([this] { progress(); });
    const auto view = engine_.state().view();
    const checkpoint::SaveRequest request{
        .job = job_identity(settings_, info_, numerics_fingerprint()),
        .position = {static_cast<std::uint64_t>(task.order.step / feed_->steps_per_epoch()),
                     static_cast<std::uint64_t>(task.order.step)},
        .state_hash = final_hash(view.parts, [this] { progress(); }),
        .tensors = view.parts};
    const auto saved = make_store(files).save(request).value();
    return CheckpointStored{saved.manifest_path, request.state_hash,
                            hash_parts(view.parts, [this] { progress(); })};
  }

  TrainerResult perform(const RunPrune& task) {
    checkpoint::PosixFileSystem files;
    make_store(files).prune(task.order.oldest_kept).value();
    return TaskDone{};
  }

  checkpoint::CheckpointStore make_store(checkpoint::FileSystem& files) {
    return {files, {settings_.checkpoint_folder, [this] { progress(); }}};
  }

  std::unique_ptr<TrainingModel> make_model() const {
    return JobRegistry::instance().find(settings_.job_type).make_model(settings_.job, settings_.seed);
  }

  /// A walk over the state goes on: says so once a second, and ends it when a newer generation calls.
  void progress() {
    Generation generation;
    {
      const std::lock_guard lock(mutex_);
      generation = machine_.generation();
      if (stopping_ || aborted_below_ > plan_.generation) {
        throw_error({ErrorCode::kAborted, "the walk over the state was given up",
                     "generation " + to_string(plan_.generation) + " is over", ""});
      }
    }
    const Instant now = MonotonicClock().now();
    if (now - progress_told_ < std::chrono::seconds(1)) return;
    progress_told_ = now;
    driver_.tell<&TrainDriver::report>(TrainerReport(StateProgress{actor_.address().actor, generation}));
  }

  // ---- Under the mutex ----------------------------------------------------------------------------------

  void handle(const TrainerOutput& output) {
    if (output.abort_group) interrupt(output.reason);
    if (output.loaders_changed && feed_ != nullptr) feed_->set_loaders(machine_.loaders());
    for (const auto& report : output.reports) driver_.tell<&TrainDriver::report>(report);
  }

  /// Whether the generation that is being formed is over already.
  bool abandoned() {
    const std::lock_guard lock(mutex_);
    return stopping_ || aborted_below_ > plan_.generation;
  }

  void interrupt(const std::string& reason) {
    aborted_below_ = machine_.generation();
    if (group_ != nullptr) group_->abort(reason);
    if (feed_ != nullptr) feed_->interrupt(reason);
  }

  ActorContext& actor_;
  const Session session_;
  const RunSettings settings_;
  const ActorHandle<TrainDriver> driver_;

  std::mutex mutex_;  ///< guards machine_, and group_ against its replacement
  std::condition_variable wake_;
  TrainerMachine machine_;
  Generation aborted_below_;
  bool stopping_ = false;

  collectives::DataListener listener_;
  StepEngine engine_;
  std::unique_ptr<BatchFeed> feed_;
  GenerationPlan plan_;
  int rank_ = 0;
  DataInfo info_;
  bool pristine_ = true;  ///< the model is as the seed made it
  Instant progress_told_{};
  std::shared_ptr<collectives::ProcessGroup> group_;
  std::thread thread_;
};

Trainer::Trainer(RunSettings settings, ActorHandle<TrainDriver> driver) {
  set_up_numerics();
  work_ = std::make_unique<Work>(this_actor(), std::move(settings), driver);
}

Trainer::~Trainer() = default;

TrainerHello Trainer::hello() {
  return {::getpid(), work_->data_address(), numerics_fingerprint()};
}

void Trainer::prepare(const DataInfo& info) {
  work_->prepare(info);
  beat();
}

void Trainer::order(const TrainerOrder& order) {
  work_->order(order);
}

void Trainer::beat() {
  work_->beat();
  this_actor().run_after(std::chrono::seconds(1), [this] { beat(); });
}

}  // namespace troupe::train
