#include "actors/train/trainer/trainer.hpp"

#include <signal.h>
#include <unistd.h>

#include <optional>

#include "actors/train/batches/batch_feed.hpp"
#include "actors/train/driver/train_driver.hpp"
#include "actors/train/engine/state_transfer.hpp"
#include "actors/train/floor.hpp"
#include "actors/train/snapshot.hpp"
#include "actors/train/trainer/fetch_snapshot.hpp"
#include "actors/train/trainer/state_walks.hpp"
#include "actors/train/trainer/step_slots.hpp"
#include "actors/train/trainer/task_failures.hpp"
#include "actors/train/trainer/trainer_checkpoints.hpp"
#include "actors/train/trainer/trainer_machine.hpp"
#include "collectives/flight/flight_recorder.hpp"
#include "collectives/normal_end.hpp"
#include "runtime/core/condition.hpp"
#include "runtime/core/thread.hpp"
#include "runtime/host/may_wait.hpp"

namespace troupe::train {
namespace {

constexpr Duration kFollowLook = std::chrono::milliseconds(5);  ///< a step is rarely shorter

}  // namespace

class Trainer::Work {
 public:
  Work(ActorContext& actor, RunSettings settings, ActorHandle<TrainDriver> driver, WeightCopies& copies,
       KeptShards& shards)
      : actor_(actor),
        copies_(copies),
        session_(actor.session()),
        settings_(std::move(settings)),
        driver_(driver),
        floor_(train_floor()),
        machine_(actor.address().actor, floor_.mutations()),
        groups_(floor_.make_groups(session_, settings_)),
        snapshot_(driver_, actor.process(), settings_.new_options),
        engine_(floor_.make_engine(settings_)),
        checkpoints_(floor_, settings_, *engine_, shards, told_of_checkpoints()) {
    floor_.watch(machine_, actor.address().actor);
    engine_->on_exchange([this](bool begins) { begins ? waits() : computes("after an exchange"); });
    copies_.made_by([this] {
      const Hold hold(mutex_);
      wake_.notify_all();
    });
  }

  ~Work() {
    {
      const Hold hold(mutex_);
      stopping_ = true;
      interrupt("the trainer of rank " + std::to_string(rank_) + " " + collectives::kToldToEnd);
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
    checkpoints_.end();
  }

  /// REQUIRES: before prepare().
  TrainerHello hello() { return hello_of(*groups_, *engine_, floor_, settings_); }

  void prepare(const DataInfo& info) {
    info_ = info;
    try {
      engine_->know_run(total_steps(settings_, info.steps_per_epoch), info.steps_per_epoch);
    } catch (...) {
      return give_up_by(floor_.job_name(settings_) + "::scheduler");
    }
    feed_ = std::make_unique<BatchFeed>(actor_, settings_, info,
                                        settings_.run + "/batches/" + to_string(actor_.address().actor),
                                        [this](std::span<std::byte> memory) { return engine_->pin(memory); });
    thread_ = Thread([this] { run(); });
  }

  void order(const TrainerOrder& order) {
    const Hold hold(mutex_);
    handle(machine_.on(order));
    wake_.notify_all();
  }

  /// In the actor's thread.
  SharedPiece shared(Generation in, std::uint64_t offset) {
    std::shared_ptr<StateStream> stream;
    {
      const Hold hold(mutex_);
      stream = stream_;
    }
    if (stream == nullptr || stream->generation() != in)
      throw_error({ErrorCode::kUnavailable, "the state is not shared any more",
                   "the generation " + to_string(in) + " is over", ""});
    return stream->read(offset);
  }

  /// In the actor's thread. Under the mutex no task begins, so that nothing changes the state meanwhile.
  HeldPiece final_state(HeldWish wish, std::uint64_t offset) {
    const Hold hold(mutex_);
    return final_state_.piece(machine_, *engine_, wish, offset);
  }

  /// The same: a copy of the state as it is.
  std::unique_ptr<StateStream> keep(KeptState& what) {
    const Hold hold(mutex_);
    HeldState::check(machine_);
    what.steps = machine_.steps(), what.lineage = machine_.lineage();
    return std::make_unique<StateStream>(Generation{}, SharedState{what.steps, {}, 0}, engine_->copy_state());
  }

  void beat() {
    std::shared_ptr<StateStream> done;  // its end takes a moment, which no step has to wait for
    const Hold hold(mutex_);
    if (stream_ != nullptr && !is_shared()) done = std::move(stream_);
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
      if (copies_.are_wanted() && machine_.has_settled()) {
        const KeptState of{0, machine_.steps(), machine_.lineage()};
        lock.unlock();
        copies_.make(of, [this] { return engine_->copy_weights(); });
        lock.lock();
        continue;
      }
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
        if (!is_of_the_group(error.code()) && !is_recoverable(task)) return give_up_in(task);
        result = aborted_by(error);
      } catch (...) {
        return give_up_in(task);
      }
      lock.lock();
      if (stopping_) return;  // the others are asked, and this one's end is told by its process
      machine_.holds_whole_state(engine_->holds_whole_state());
      handle(machine_.done(*result));
    }
  }

  /// What the user's code throws is thrown again by whoever runs it: the job fails at once, with its message.
  void give_up_in(const TrainerTask& task) {
    give_up_by(users_part(floor_.job_name(settings_), task, engine_->part()));
  }
  void give_up_by(const std::string& part) {
    give_up(floor_.describe_exception(part), actor_.address().actor);
  }
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
      works_for_ = plan_.generation;
      rank_ = machine_.rank();
      group_.reset();
      final_state_.drop();
    }
    if (plan_.origin != StateOrigin::kCheckpoint || plan_.checkpoint != kSnapshotPath) snapshot_.drop();
    engine_->detach();
    checkpoints_.drop_shards();  // the state is had from a checkpoint that is a file, and so is none of these
    auto group = groups_->form(plan_, rank_, *engine_, [this] { return abandoned(); });
    {
      const Hold hold(mutex_);
      group_ = group;
      // An order that came while the group was being made could not abort it.
      if (aborted_below_ > plan_.generation || stopping_) group_->abort(collectives::kGenerationOver);
    }
    engine_->attach(group, groups_->form_gradients(plan_, group));
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
    if (task.role == TransferState::Role::kSource) {
      send_state(*group_, engine_->state().parts, task.receivers, [this] { progress(); });
      return TaskDone{};
    }
    const ReceivedState received = receive_state(*group_, task.source, [this] { progress(); });
    engine_->install(received.parts);  // checks everything, then swaps it in whole
    return StateReady{};
  }

  TrainerResult perform(const ShareOut& task) {
    SharedState head;
    {
      const Hold hold(mutex_);
      head = {machine_.steps(), {machine_.uncommitted().begin(), machine_.uncommitted().end()}, 0};
    }
    auto stream =
        std::make_shared<StateStream>(task.order.generation, std::move(head), engine_->copy_state());
    {
      const Hold hold(mutex_);
      std::swap(stream_, stream);
    }
    const auto address = wire::encode(actor_.address());
    return Shared{{reinterpret_cast<const char*>(address.data()), address.size()}};
  }

  TrainerResult perform(const FollowSource& task) {
    {
      const Hold hold(mutex_);
      works_for_ = task.until == kNoState ? task.order.generation : plan_.generation;
    }
    if (!task.goes_on) {
      const auto address = wire::decode<ActorAddress>(std::as_bytes(std::span(task.order.source))).value();
      const ActorHandle<Trainer> source(&actor_.process(), address);
      followed_ = {};
      follower_.emplace([this, source, in = task.order.shared_in](std::uint64_t offset) {
        return await(source.call<&Trainer::shared>(in, offset), [this] { progress(); });
      });
    }
    if (task.goes_on && task.until == kNoState) look_again_soon();
    for (;;) {
      bool more = false;
      try {
        more = follower_->pull();
        if (const auto state = follower_->take_state()) {
          computes("all of it");
          engine_->install(state->parts);
          followed_ = {follower_->head().steps, follower_->head().uncommitted};
        }
        while (const auto step = follower_->take_step()) {
          follow(*step);
          progress();
        }
        waits();
      } catch (const Error&) {
        // A newer generation calls: what is whole after some step may be of use to it.
        if (abandoned() && followed_.steps != kNoState) return followed_;
        throw;
      }
      if (more) continue;
      if (task.until == kNoState ? followed_.steps != kNoState : followed_.steps == task.until)
        return followed_;
      if (task.until != kNoState)
        throw_error({ErrorCode::kUnavailable, "steps are missing",
                     "the trainer that was followed gave " + std::to_string(followed_.steps) + " of " +
                         std::to_string(task.until),
                     ""});
    }
  }

  /// Between two looks at what the followed trainer adds.
  void look_again_soon() {
    std::unique_lock lock(mutex_);
    if (!stopping_ && aborted_below_ <= works_for_) wake_.wait_for(lock, kFollowLook);
  }

  /// The same step as the others', without its leaves.
  void follow(const StateFollower::Step& step) {
    const std::int64_t number = step.head.report.step;
    computes("step " + std::to_string(number + 1));
    if (number != followed_.steps)
      throw_error({ErrorCode::kCorrupt, "a followed step is not the next one", std::to_string(number), ""});
    engine_->take_record(number, epoch_of(number), step.record);
    followed_.steps = kNoState;  // until it is whole again
    finish(number, is_left_out(step.head.report.slots), step.head.total_weight, step.head.evaluated);
    followed_.steps = number + 1;
    followed_.uncommitted.push_back(step.head.report);
    std::erase_if(followed_.uncommitted,
                  [&](const StepReport& report) { return report.step < step.head.committed; });
  }

  TrainerResult perform(const MakeInitialState&) {
    engine_->install_initial();
    return StateReady{};
  }

  TrainerResult perform(const LoadCheckpoint& task) {
    if (task.path == kSnapshotPath) {
      snapshot_.install(*engine_, task.hash, settings_.new_options, [this] { progress(); });
      return StateReady{};
    }
    return checkpoints_.install(
        task, *group_, rank_, [this] { progress(); }, [this] { waits(); });
  }

  TrainerResult perform(const ComputeStep& task) {
    const int leaves = settings_.logical_ranks;
    std::vector<SlotWords> slots(static_cast<std::size_t>(leaves));
    std::vector<wire::Bytes> counted(static_cast<std::size_t>(leaves));
    if (task.rehearse && settings_.rehearse) {
      computes("a fresh copy of the model");
      engine_->rehearse();
    }
    engine_->begin_step(task.step, epoch_of(task.step));
    try {
      std::vector<data::BatchHeader> headers;
      int given_back = task.leaves.begin;
      const auto give_back = [&](std::size_t done) {
        for (; given_back < task.leaves.begin + static_cast<int>(done); ++given_back)
          feed_->used(task.step, given_back);
      };
      for (int leaf = task.leaves.begin; leaf < task.leaves.end; ++leaf) {
        waits();
        const auto view = feed_->wait(task.step, leaf);
        computes("leaf " + std::to_string(leaf));
        engine_->run_leaf(leaf, view);
        headers.push_back(view.header);
        give_back(engine_->batches_done());
      }
      const std::vector<LeafResult> results = engine_->results();
      give_back(results.size());
      for (std::size_t i = 0; i < results.size(); ++i) {
        const auto leaf = static_cast<std::size_t>(task.leaves.begin) + i;
        fill(slots[leaf], counted[leaf], headers[i], results[i]);
      }
      waits();
      const auto shared =
          group_->all_reduce({&slots.front().index_hash, 5 * slots.size(), collectives::DType::kInt64},
                             collectives::ReduceOp::kSum);
      engine_->finish_step();
      shared->wait();
      share_figures(*group_, slots, counted);
      total_weight_ = sum_of_weights(slots);
    } catch (...) {
      engine_->abandon_step();
      throw;
    }
    slots_ = reports_of(slots, counted);
    return Reduced{slots_};
  }

  /// The same on every trainer: all know what each leaf's loss was.
  bool is_left_out(const std::vector<SlotReport>& slots) const {
    return settings_.not_finite != NotFinite::kGoOn && !is_finite(slots);
  }
  StepValues finish(std::int64_t step, bool left_out, double total_weight, const StepValues& evaluated) {
    const bool ends_epoch = (step + 1) % feed_->steps_per_epoch() == 0;
    if (!evaluated.empty()) engine_->observe(evaluated);
    return left_out ? engine_->skip(ends_epoch) : engine_->apply(ends_epoch, total_weight);
  }

  int epoch_of(std::int64_t step) const { return static_cast<int>(step / feed_->steps_per_epoch()); }

  TrainerResult perform(const ApplyStep& task) {
    // beat() may let go of it meanwhile; a later generation's steps are not shared in it.
    const auto stream = stream_to_add_to();
    const auto record = stream ? engine_->step_record() : std::vector<std::byte>();
    Applied applied;
    const bool left_out = is_left_out(slots_);
    applied.values = finish(task.step, left_out, total_weight_, task.evaluated);
    applied.halts = left_out && settings_.not_finite == NotFinite::kStop;
    if (stream) {
      const SharedStep head{{task.step, slots_, applied.values},
                            first_uncommitted(task.step),
                            total_weight_,
                            task.evaluated,
                            0};
      stream->add(head, record);
    }
    feed_->release(task.step);
    if (task.proves >= 0) {
      auto piece = engine_->prove(task.proves);
      applied.parts = std::move(piece.parts);
      applied.proven = piece.last;
    }
    return applied;
  }

  TrainerResult perform(const HashState&) {
    collectives::flight::FlightRecorder::leave_timelines();  // it is killed once the driver has heard
    return hash_state(*engine_->walk(-1), [this] { progress(); });
  }

  TrainerResult perform(const HashParts& task) {
    return PartsHashed{checkpoints_.prove(task.order, group_members(), [this] { progress(); })};
  }

  TrainerResult perform(const RunEvaluation& task) {
    Evaluated done;
    engine_->begin_evaluation(task.order.end - task.order.begin);
    feed_->each_test_piece(task.order.begin, task.order.end,
                           [&](std::int64_t piece, const data::BatchView& view) {
                             computes("piece " + std::to_string(piece));
                             done.pieces.push_back({piece, view.header.index_hash, view.header.count,
                                                    engine_->evaluate(piece, task.order.epoch, view)});
                             waits();
                           });
    engine_->end_evaluation();
    return done;
  }

  TrainerResult perform(const RunCheckpoint& task) {
    return checkpoints_.write(task.order, info_, feed_->steps_per_epoch(), group_members(),
                              [this] { progress(); });
  }

  TrainerCheckpoints::Members group_members() {
    return {members_of(plan_, actor_.address().node), [this](bool copied) {
              waits();
              return all_copied(copied, *group_, plan_, actor_);
            }};
  }

  TrainerResult perform(const RunPrune& task) {
    checkpoints_.prune(task.order, [this] { progress(); });
    return TaskDone{};
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

  /// A walk over the state goes on, unless a newer generation calls.
  void progress() {
    const Hold hold(mutex_);
    if (stopping_ || aborted_below_ > works_for_)
      throw_error({ErrorCode::kAborted, "the walk over the state was given up",
                   "generation " + to_string(works_for_) + " is over", ""});
    machine_.advanced();
  }

  TrainerCheckpoints::Told told_of_checkpoints() {
    return {[this](std::int64_t step) {
              const Hold hold(mutex_);
              machine_.writes(step);
            },
            [this] {
              const Hold hold(mutex_);
              machine_.advanced();
            },
            [this](const WriteCheckpoint& order, const TrainerResult& result) {
              const Hold hold(mutex_);
              if (!stopping_) handle(machine_.wrote(order, result));
            }};
  }

  // ---- Under the mutex ----------------------------------------------------------------------------------

  void handle(const TrainerOutput& output) {
    const NoWaitScope no_wait;
    if (output.abort_group) interrupt(output.reason);
    if (output.loaders_changed && feed_ != nullptr) feed_->set_loaders(machine_.loaders());
    for (const auto& report : output.reports) driver_.tell<&TrainDriver::report>(report);
  }

  /// Whether the generation that is being formed, or followed, is over already.
  bool abandoned() {
    const Hold hold(mutex_);
    return stopping_ || aborted_below_ > works_for_;
  }

  std::shared_ptr<StateStream> stream_to_add_to() {
    const Hold hold(mutex_);
    return stream_ != nullptr && stream_->generation() == plan_.generation ? stream_ : nullptr;
  }

  std::int64_t first_uncommitted(std::int64_t otherwise) {
    const Hold hold(mutex_);
    return machine_.uncommitted().empty() ? otherwise : machine_.uncommitted().front().step;
  }

  /// Somebody may still ask for what this trainer shares: under the mutex.
  bool is_shared() {
    return stream_->beats_without_a_read() < StateStream::kQuietBeats &&
           machine_.may_be_followed(stream_->generation());
  }

  void interrupt(const std::string& reason) {
    aborted_below_ = machine_.generation();
    if (group_ != nullptr) group_->abort(reason);
    if (feed_ != nullptr) feed_->interrupt(reason);
  }

  ActorContext& actor_;
  WeightCopies& copies_;
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
  SnapshotSource snapshot_;  ///< before the engine: the state comes while the model is made
  const std::unique_ptr<TrainEngine> engine_;
  TrainerCheckpoints checkpoints_;
  std::unique_ptr<BatchFeed> feed_;
  GenerationPlan plan_;
  Generation works_for_;  ///< what the task under way is of
  int rank_ = 0;
  DataInfo info_;
  std::vector<SlotReport> slots_;  ///< of the step that was reduced last
  double total_weight_ = 0;        ///< of the step that was reduced last; 0: leaves have none
  std::shared_ptr<collectives::ProcessGroup> group_;
  std::shared_ptr<StateStream> stream_;    ///< what others follow; the mutex guards the pointer
  std::optional<StateFollower> follower_;  ///< what it follows itself
  Followed followed_;                      ///< what that came to
  HeldState final_state_;                  ///< once it was asked for
  Thread thread_;
};

Trainer::Trainer(RunSettings settings, ActorHandle<TrainDriver> driver) {
  work_ = std::make_unique<Work>(this_actor(), std::move(settings), driver, copies_, shards_);
}

Trainer::~Trainer() = default;

void Trainer::employ(const RunSettings& settings, ActorHandle<TrainDriver> driver) {
  kept_.drop();
  work_.reset();  // its memory is the next one's
  copies_.clear();
  work_ = std::make_unique<Work>(this_actor(), settings, driver, copies_, shards_);
}

TrainerHello Trainer::hello() {
  return work_->hello();
}

void Trainer::prepare(const DataInfo& info) {
  work_->prepare(info);
  if (!std::exchange(beats_, true)) beat();
}

KeptState Trainer::keep() {
  return kept_.take([this](KeptState& what) { return work_->keep(what); });
}

HeldPiece Trainer::final_state(HeldWish wish, std::uint64_t offset) {
  return work_->final_state(wish, offset);
}

SharedPiece Trainer::shared(Generation in, std::uint64_t offset) {
  return work_->shared(in, offset);
}

void Trainer::raise_signal(int number) {
  ::kill(::getpid(), number);
}

void Trainer::order(const TrainerOrder& order) {
  work_->order(order);
}

void Trainer::beat() {
  kept_.beat();
  copies_.beat();
  if (work_ != nullptr) work_->beat();
  this_actor().run_after(std::chrono::seconds(1), [this] { beat(); });
}

}  // namespace troupe::train
