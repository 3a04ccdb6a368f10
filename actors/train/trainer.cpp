#include "actors/train/trainer.hpp"

#include <unistd.h>

#include <bit>
#include <optional>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/checkpoint/safetensors.hpp"
#include "actors/train/batch_feed.hpp"
#include "actors/train/floor.hpp"
#include "actors/train/snapshot.hpp"
#include "actors/train/state_transfer.hpp"
#include "actors/train/train_driver.hpp"
#include "actors/train/trainer_machine.hpp"
#include "runtime/core/condition.hpp"
#include "runtime/core/thread.hpp"
#include "runtime/host/may_wait.hpp"

namespace troupe::train {
namespace {

using collectives::Buffer;
using collectives::DType;
using collectives::ReduceOp;

/// What every rank learns of a leaf, so that a survivor can speak for a trainer that died. Each is zero but
/// on the leaf's host, so that summing over ranks changes no bit.
struct SlotWords {
  std::int64_t index_hash = 0;
  std::int64_t loss = 0;          ///< the bits of a double
  std::int64_t weight = 0;        ///< the same: what the job gave, or the samples
  std::int64_t has_weight = 0;    ///< 1: the job gave it
  std::int64_t figure_bytes = 0;  ///< what it counted follows in that many
};
static_assert(sizeof(SlotWords) == 5 * sizeof(std::int64_t));
constexpr std::size_t kMostFigureBytes = 64 << 10;
/// How long a piece of a snapshot may take, and how often its wait is looked at meanwhile.
constexpr Duration kPieceArrives = std::chrono::seconds(30);
constexpr Duration kLook = std::chrono::milliseconds(100);

/// The part of the job that a task runs: "Digits::loss".
std::string users_part(const RunSettings& settings, const TrainerTask& task) {
  const std::string job = train_floor().job_name(settings);
  if (std::holds_alternative<ComputeStep>(task)) return job + "::loss";
  if (std::holds_alternative<ApplyStep>(task)) return "the apply (or optimizer) of " + job;
  if (std::holds_alternative<RunEvaluation>(task)) return "the evaluation of " + job;
  return job;
}

}  // namespace

class Trainer::Work {
 public:
  Work(ActorContext& actor, RunSettings settings, ActorHandle<TrainDriver> driver)
      : actor_(actor),
        session_(actor.session()),
        settings_(std::move(settings)),
        driver_(driver),
        floor_(train_floor()),
        machine_(actor.address().actor, floor_.mutations()),
        groups_(floor_.make_groups(session_, settings_)),
        engine_(floor_.make_engine(settings_)) {
    floor_.watch(machine_, actor.address().actor);
  }

  ~Work() {
    {
      const Hold hold(mutex_);
      stopping_ = true;
      interrupt("the trainer of rank " + std::to_string(rank_) + " was told to end");
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  /// REQUIRES: before prepare().
  TrainerHello hello() {
    return {::getpid(), groups_->address(), engine_->numerics(), hash_layout(engine_->state().parts)};
  }

  void prepare(const DataInfo& info) {
    info_ = info;
    feed_ = std::make_unique<BatchFeed>(actor_, settings_, info,
                                        settings_.run + "/batches/" + to_string(actor_.address().actor));
    thread_ = Thread([this] { run(); });
  }

  void order(const TrainerOrder& order) {
    const Hold hold(mutex_);
    handle(machine_.on(order));
    wake_.notify_all();
  }

  /// REQUIRES: the job is over, so that nothing changes the state.
  wire::Bytes final_state(bool weights_only, std::uint64_t offset) {
    if (final_state_.empty() || weights_only != weights_alone_) {
      auto state = engine_->state();
      if (weights_only) state.parts.resize(engine_->weight_parts());
      final_state_ = checkpoint::write_safetensors(checkpoint::lay_out_safetensors(state.parts).value());
      weights_alone_ = weights_only;
    }
    return state_piece(final_state_, offset);
  }

  void beat() {
    const Hold hold(mutex_);
    driver_.tell<&TrainDriver::report>(machine_.heartbeat());
  }

 private:
  /// Orders and signs of life take the mutex, so nothing that is sent under it waits for room.
  class Hold {
   public:
    explicit Hold(std::mutex& mutex) : lock_(mutex) {}

   private:
    const std::lock_guard<std::mutex> lock_;
    const NoWaitScope no_wait_;
  };

  // ---- The thread that computes -------------------------------------------------------------------------

  void run() {
    engine_->enter_thread();
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
      } catch (const DataFailed& error) {
        return give_up(of_the_dataset(floor_.job_name(settings_), error.info()), {});
      } catch (const Error& error) {
        const bool of_the_group =
            error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kTimeout ||
            error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kActorDied ||
            error.code() == ErrorCode::kCorrupt;
        if (of_the_group || is_recoverable(task)) {
          ErrorInfo why = error.info();
          why.todo.clear();  // the driver does it
          result = TaskAborted{why.message(), {}};
        } else {
          return give_up(floor_.describe_exception(users_part(settings_, task)));
        }
      } catch (...) {
        return give_up(floor_.describe_exception(users_part(settings_, task)));
      }
      lock.lock();
      if (stopping_) return;  // the others are asked, and this one's end is told by its process
      handle(machine_.done(*result));
    }
  }

  /// A failure of these is the system's (a file, a socket) and is reported, not deadly.
  static bool is_recoverable(const TrainerTask& task) {
    return std::holds_alternative<FormGroup>(task) || std::holds_alternative<LoadCheckpoint>(task) ||
           std::holds_alternative<RunCheckpoint>(task) || std::holds_alternative<RunPrune>(task);
  }

  /// What the user's code throws is thrown again by whoever runs it: the job fails at once, with its message.
  void give_up(const ErrorInfo& error) { give_up(error, actor_.address().actor); }
  /// `where`: none for what a loader ran.
  void give_up(const ErrorInfo& error, ActorId where) {
    const Hold hold(mutex_);
    if (stopping_) return;
    if (group_ != nullptr) group_->abort(error.message());
    const auto at = std::get<TrainerHeartbeat>(machine_.heartbeat()).progress.doing;
    driver_.tell<&TrainDriver::job_threw>(where, at, error);
  }

  // ---- Tasks --------------------------------------------------------------------------------------------

  TrainerResult perform(const Wait&) { return TaskDone{}; }

  TrainerResult perform(const FormGroup& task) {
    {
      const Hold hold(mutex_);
      plan_ = task.plan;
      rank_ = machine_.rank();
      group_.reset();
    }
    engine_->detach();
    std::vector<collectives::LeafInterval> leaves;
    for (const auto& member : plan_.members) leaves.push_back(member.leaves);
    auto group = groups_->form(plan_, rank_, engine_->group_bytes(leaves), [this] { return abandoned(); });
    {
      const Hold hold(mutex_);
      group_ = group;
      // An order that came while the group was being made could not abort it.
      if (aborted_below_ > plan_.generation || stopping_) group_->abort("the generation is over");
    }
    engine_->attach(group);
    {
      // The newest list: loaders may have come and gone since the plan was made.
      const Hold hold(mutex_);
      feed_->set_loaders(machine_.loaders());
    }
    feed_->restart(plan_.members[rank_].leaves, plan_.first_step, plan_.total_steps);
    group->barrier()->wait();
    return TaskDone{};
  }

  TrainerResult perform(const TransferState& task) {
    const auto progress = [this] { this->progress(); };
    if (task.role == TransferState::Role::kSource) {
      send_state(*group_, engine_->state().parts, task.receivers, progress);
      return TaskDone{};
    }
    const ReceivedState received = receive_state(*group_, task.source, progress);
    engine_->install(received.parts);  // checks everything, then swaps it in whole
    return StateReady{};
  }

  TrainerResult perform(const MakeInitialState&) {
    engine_->install_initial();
    return StateReady{};
  }

  TrainerResult perform(const LoadCheckpoint& task) {
    if (task.path == kSnapshotPath) return take_snapshot(task.hash);
    const auto files = floor_.files([this] { progress(); });
    const auto loaded = make_store(*files).load_manifest(task.path).value();
    if (loaded.manifest.state_hash != task.hash) {
      throw_error({ErrorCode::kCorrupt, "the checkpoint '" + task.path + "' is another one here",
                   "its state is " + loaded.manifest.state_hash + ", the job's is " + task.hash,
                   "share the checkpoint folder between the nodes, or empty it there"});
    }
    engine_->install(loaded.tensors);
    return StateReady{};
  }

  /// Fetches the state that the job begins from, which the driver's program holds.
  TrainerResult take_snapshot(const StateHash& hash) {
    wire::Bytes all;
    for (wire::Bytes piece; all.empty() || !piece.empty();
         all.insert(all.end(), piece.begin(), piece.end())) {
      const auto asked = driver_.call<&TrainDriver::snapshot>(all.size());
      const Instant deadline = MonotonicClock().now() + kPieceArrives;
      while (!asked.wait(kLook) && MonotonicClock().now() < deadline) progress();
      piece = asked.get(Duration(0));
      progress();
    }
    if (const auto held = hash_of_bytes(all, [this] { progress(); }); held != hash)
      throw_error({ErrorCode::kCorrupt, "the snapshot is not what was taken",
                   "its bytes are " + held + " here, and were " + hash, ""});
    auto parts = checkpoint::read_safetensors("the snapshot", all).value().tensors;
    if (settings_.new_options) {
      engine_->install_with_own_options(std::move(parts));
    } else {
      engine_->install(parts);
    }
    return StateReady{};
  }

  TrainerResult perform(const ComputeStep& task) {
    const int leaves = settings_.logical_ranks;
    std::vector<SlotWords> slots(static_cast<std::size_t>(leaves));
    std::vector<wire::Bytes> counted(static_cast<std::size_t>(leaves));
    if (task.rehearse) {
      computes("a fresh copy of the model");
      engine_->rehearse();
    }
    engine_->begin_step(task.step, epoch_of(task.step));
    try {
      for (int leaf = task.leaves.begin; leaf < task.leaves.end; ++leaf) {
        waits();
        const auto view = feed_->wait(task.step, leaf);
        computes("leaf " + std::to_string(leaf));
        const LeafResult result = engine_->run_leaf(leaf, view);
        SlotWords& slot = slots[leaf];
        slot = {std::bit_cast<std::int64_t>(view.header.index_hash), std::bit_cast<std::int64_t>(result.loss),
                std::bit_cast<std::int64_t>(result.weight.value_or(view.header.count)), result.weight ? 1 : 0,
                0};
        if (!result.figures.empty()) counted[leaf] = wire::encode(result.figures);
        if (counted[leaf].size() > kMostFigureBytes)
          throw BadConfig("a leaf counted too many figures",
                          std::to_string(result.figures.size()) + " in one step",
                          "count what an epoch's mean is wanted of");
        slot.figure_bytes = static_cast<std::int64_t>(counted[leaf].size());
        feed_->used(task.step, leaf);
      }
      waits();
      const auto shared =
          group_->all_reduce({&slots.front().index_hash, 5 * slots.size(), DType::kInt64}, ReduceOp::kSum);
      engine_->finish_step();
      shared->wait();
      share_figures(slots, counted);
      total_weight_ = sum_of_weights(slots);
    } catch (...) {
      engine_->abandon_step();
      throw;
    }
    Reduced reduced;
    for (int leaf = 0; leaf < leaves; ++leaf) {
      const SlotWords& slot = slots[leaf];
      SlotReport report{leaf,
                        std::bit_cast<std::uint64_t>(slot.index_hash),
                        std::bit_cast<double>(slot.loss),
                        std::bit_cast<double>(slot.weight),
                        {}};
      if (slot.figure_bytes > 0) report.figures = wire::decode<std::vector<Figure>>(counted[leaf]).value();
      reduced.slots.push_back(std::move(report));
    }
    return reduced;
  }

  int epoch_of(std::int64_t step) const { return static_cast<int>(step / feed_->steps_per_epoch()); }

  /// Every rank learns what every leaf counted; no rank asks when none did.
  void share_figures(const std::vector<SlotWords>& slots, std::vector<wire::Bytes>& counted) {
    std::size_t total = 0;
    for (const SlotWords& slot : slots) total += static_cast<std::size_t>(slot.figure_bytes);
    if (total == 0 || group_->size() == 1) return;
    wire::Bytes all(total);
    std::size_t at = 0;
    for (std::size_t leaf = 0; leaf < slots.size(); ++leaf) {
      std::copy(counted[leaf].begin(), counted[leaf].end(), all.begin() + static_cast<std::ptrdiff_t>(at));
      at += static_cast<std::size_t>(slots[leaf].figure_bytes);
    }
    group_->all_reduce({all.data(), all.size(), DType::kUInt8}, ReduceOp::kSum)->wait();
    at = 0;
    for (std::size_t leaf = 0; leaf < slots.size(); ++leaf) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
      counted[leaf].assign(begin, begin + static_cast<std::ptrdiff_t>(slots[leaf].figure_bytes));
      at += static_cast<std::size_t>(slots[leaf].figure_bytes);
    }
  }

  /// Over all leaves in their order, where they have weights; else 0.
  static double sum_of_weights(const std::vector<SlotWords>& slots) {
    std::int64_t given = 0;
    double sum = 0;
    for (const SlotWords& slot : slots) {
      given += slot.has_weight;
      sum += std::bit_cast<double>(slot.weight);
    }
    if (given == 0) return 0;
    if (given != static_cast<std::int64_t>(slots.size()))
      throw BadConfig("some leaves of a step have a weight and others none",
                      std::to_string(given) + " of " + std::to_string(slots.size()) + " called at.weight()",
                      "call it for every batch, or for none");
    if (sum <= 0)
      throw BadConfig("the weights of a step add up to nothing", "its gradient would be divided by zero",
                      "give a leaf without tokens a share of its own, or leave such samples out");
    return sum;
  }

  TrainerResult perform(const ApplyStep& task) {
    engine_->apply((task.step + 1) % feed_->steps_per_epoch() == 0, total_weight_);
    feed_->release(task.step);
    Applied applied;
    if (task.prove) applied.parts = hash_parts(engine_->state().parts, [this] { advanced(); });
    return applied;
  }

  TrainerResult perform(const HashState&) {
    return Hashed{final_hash(engine_->state().parts, [this] { progress(); })};
  }

  TrainerResult perform(const HashParts&) {
    return PartsHashed{hash_parts(engine_->state().parts, [this] { progress(); })};
  }

  TrainerResult perform(const RunEvaluation& task) {
    Evaluated done;
    feed_->each_test_piece(task.order.begin, task.order.end,
                           [&](std::int64_t piece, const data::BatchView& view) {
                             computes("piece " + std::to_string(piece));
                             done.pieces.push_back({piece, view.header.index_hash, view.header.count,
                                                    engine_->evaluate(piece, task.order.epoch, view)});
                             waits();
                           });
    return done;
  }

  TrainerResult perform(const RunCheckpoint& task) {
    const auto files = floor_.files([this] { progress(); });
    const auto state = engine_->state();
    const checkpoint::SaveRequest request{
        .job = job_identity(settings_, info_, engine_->numerics()),
        .position = {static_cast<std::uint64_t>(task.order.step / feed_->steps_per_epoch()),
                     static_cast<std::uint64_t>(task.order.step)},
        .state_hash = final_hash(state.parts, [this] { progress(); }),
        .tensors = state.parts,
        .metadata = {{kHistoryKey, task.order.history}}};
    const auto saved = make_store(*files).save(request).value();
    return CheckpointStored{saved.manifest_path, request.state_hash,
                            hash_parts(state.parts, [this] { progress(); })};
  }

  TrainerResult perform(const RunPrune& task) {
    const auto files = floor_.files({});
    make_store(*files).prune(task.order.oldest_kept, task.order.spared).value();
    return TaskDone{};
  }

  checkpoint::CheckpointStore make_store(checkpoint::FileSystem& files) {
    return {files, {settings_.checkpoint_folder, [this] { progress(); }}};
  }

  void computes(const std::string& part) {
    const Hold hold(mutex_);
    machine_.computes(part);
  }

  /// For a batch, or for other ranks.
  void waits() {
    const Hold hold(mutex_);
    machine_.waits();
  }

  void advanced() {
    const Hold hold(mutex_);
    machine_.advanced();
  }

  /// A walk over the state goes on, unless a newer generation calls.
  void progress() {
    const Hold hold(mutex_);
    if (stopping_ || aborted_below_ > plan_.generation) {
      throw_error({ErrorCode::kAborted, "the walk over the state was given up",
                   "generation " + to_string(plan_.generation) + " is over", ""});
    }
    machine_.advanced();
  }

  // ---- Under the mutex ----------------------------------------------------------------------------------

  void handle(const TrainerOutput& output) {
    const NoWaitScope no_wait;
    if (output.abort_group) interrupt(output.reason);
    if (output.loaders_changed && feed_ != nullptr) feed_->set_loaders(machine_.loaders());
    for (const auto& report : output.reports) driver_.tell<&TrainDriver::report>(report);
  }

  /// Whether the generation that is being formed is over already.
  bool abandoned() {
    const Hold hold(mutex_);
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
  TrainFloor& floor_;

  std::mutex mutex_;  ///< guards machine_, and group_ against its replacement
  Condition wake_;
  TrainerMachine machine_;
  Generation aborted_below_;
  bool stopping_ = false;

  const std::unique_ptr<GroupMaker> groups_;
  const std::unique_ptr<TrainEngine> engine_;
  std::unique_ptr<BatchFeed> feed_;
  GenerationPlan plan_;
  int rank_ = 0;
  DataInfo info_;
  double total_weight_ = 0;  ///< of the step that was reduced last; 0: leaves have none
  std::shared_ptr<collectives::ProcessGroup> group_;
  std::vector<std::byte> final_state_;  ///< once it was asked for
  bool weights_alone_ = false;          ///< what it has
  Thread thread_;
};

Trainer::Trainer(RunSettings settings, ActorHandle<TrainDriver> driver) {
  work_ = std::make_unique<Work>(this_actor(), std::move(settings), driver);
}

Trainer::~Trainer() = default;

TrainerHello Trainer::hello() {
  return work_->hello();
}

void Trainer::prepare(const DataInfo& info) {
  work_->prepare(info);
  beat();
}

wire::Bytes Trainer::final_state(bool weights_only, std::uint64_t offset) {
  return work_->final_state(weights_only, offset);
}

void Trainer::order(const TrainerOrder& order) {
  work_->order(order);
}

void Trainer::beat() {
  work_->beat();
  this_actor().run_after(std::chrono::seconds(1), [this] { beat(); });
}

}  // namespace troupe::train
