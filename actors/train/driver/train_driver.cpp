#include "actors/train/driver/train_driver.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "actors/checkpoint/checkpoint_store.hpp"
#include "actors/checkpoint/folder_lock.hpp"
#include "actors/train/batches/batch_feed.hpp"
#include "actors/train/driver/driver_machine.hpp"
#include "actors/train/floor.hpp"
#include "runtime/wire/slow_start.hpp"

namespace troupe::train {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kRateWindow = std::chrono::milliseconds(500);
constexpr std::size_t kMostEventsKept = 100'000;

Instant now() {
  return MonotonicClock().now();
}

std::string encode_address(const ActorAddress& address) {
  const auto bytes = wire::encode(address);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TrainDriver::TrainDriver(RunOptions options)
    : options_(std::move(options)),
      session_(this_actor().session()),
      first_(options_.deadlines, options_.restart) {
  so_far_.faults = options_.faults;
  so_far_.not_finite = options_.not_finite;
  seen_steps_ = options_.seen_steps;
  if (!options_.resume.empty())
    so_far_.metrics = decode_history(options_.resume.back().history).value_or(History{}).metrics;
}

TrainDriver::~TrainDriver() {
  const ErrorInfo died{ErrorCode::kActorDied, "the job's driver died", "it was ended", ""};
  if (waiting_) waiting_->fail(died);
  if (asks_where_) asks_where_->fail(died);
  for (auto& [number, ask] : weights_asks_) ask.answer.fail(died);
  if (!over_) result_.fail(died);
}

DataInfo TrainDriver::trainers_data() const {
  DataInfo info = *data_;
  info.sampling.weights.clear();
  return info;
}

void TrainDriver::tick() {
  if (over_) return;
  tell_who_waits();
  feed(DriverTick{});
  this_actor().run_after(kTick, [this] { tick(); });
}

void TrainDriver::feed(const DriverEvent& event) {
  if (over_ || machine_ == nullptr) return;
  const auto actions = machine_->on(event, now());
  train_floor().watch(*machine_, event, actions);
  carry_out(actions);
  serve_weights_asks();
}

void TrainDriver::carry_out(const std::vector<DriverAction>& actions) {
  for (const auto& action : actions) {
    if (over_) return;
    std::visit([this](const auto& one) { act(one); }, action);
  }
}

// Who comes and goes.

void TrainDriver::act(const SpawnActor& action) {
  if (action.kind == SpawnKind::kTrainer) {
    spawn_trainer(action.token);
  } else {
    spawn_loader(action.token);
  }
}

ActorOptions TrainDriver::trainer_options() const {
  ActorOptions options;
  options.num_cpus = options_.trainer_room.cpus;
  options.memory = options_.trainer_room.memory;
  options.resources = options_.trainer_room.resources;
  options.labels = options_.trainer_room.labels;
  options.num_gpus = options_.settings.trainer_gpus;
  options.isolated = true;
  options.group_strategy = options_.trainer_strategy;
  return options;
}

void TrainDriver::start_trainer(GroupId together, int bundle) {
  const int number = trainer_count_++;
  ActorOptions options = trainer_options();
  options.label = "trainer " + std::to_string(number);
  options.placement_group = together;
  options.bundle = bundle;
  if (!spare_.trainers.empty()) {
    const ActorAddress spare = spare_.trainers.back();
    spare_.trainers.pop_back();
    return early_trainers_.push_back({number, employ<Trainer>(spare, options)});
  }
  early_trainers_.push_back({number, start_worker<Trainer>(options)});
}

void TrainDriver::spawn_trainer(std::uint64_t token) {
  if (early_trainers_.empty()) start_trainer();
  const auto [number, spawned] = early_trainers_.front();
  early_trainers_.pop_front();
  unanswered_[token] = {spawned.state()};
  spawned.then([this, token, number = number](Result<ActorHandle<Trainer>> trainer) {
    unanswered_.erase(token);
    if (!trainer) return spawn_failed(token, trainer.error());
    trainer_up(token, number, *trainer);
  });
}

void TrainDriver::tell_who_waits() {
  std::vector<SpawnWaits> waits;
  for (auto& [token, spawn] : unanswered_) {
    std::string why = spawn.call->waits_for();
    if (why.empty() || spawn.starts) continue;
    spawn.starts = cluster::is_slow_start(why);
    waits.push_back({token, std::move(why)});
  }
  for (const SpawnWaits& one : waits) feed(one);
}

/// A refusal is for good (the job has ended, another build), and so is what makes no sense of the struct and
/// the options together, which the first trainer finds as it makes the model: trying again would end as this
/// did. Where one has made it, the fault is that host's.
void TrainDriver::spawn_failed(std::uint64_t token, const ErrorInfo& why) {
  const bool of_the_job = why.code == ErrorCode::kBadConfig && !first_hello_;
  if (why.code == ErrorCode::kRefused || of_the_job) return finish(why);
  feed(SpawnFailed{token, why.message(), why.code});
}

void TrainDriver::trainer_up(std::uint64_t token, int number, ActorHandle<Trainer> trainer) {
  const ActorId id = trainer.address().actor;
  if (over_ || cancelled_.contains(token)) return session_.kill(trainer, "it is not wanted any more");
  names_[id] = "trainer " + std::to_string(number);
  greeted_[token] = trainer;
  trainer.call<&Trainer::hello>().then([this, token, number, trainer, id](Result<TrainerHello> hello) {
    greeted_.erase(token);
    if (!hello) {
      session_.kill(trainer, "it did not say hello");  // it may live, and hold its CPUs
      return feed(SpawnFailed{token, hello.error().message(), hello.error().code});
    }
    names_[id] += " (pid " + std::to_string(hello->pid) + ")";
    if (over_) return session_.kill(trainer, "the job is over");
    if (const auto why = does_not_belong(*hello)) {
      session_.kill(trainer, "it is not like the others");
      if (machine_->lineage() == Generation{}) return finish(*why);
      return feed(SpawnFailed{token, why->message()});  // it is its host's fault: the others train on
    }
    compare_processor(id, hello->numerics);
    trainers_[id] = {trainer, number, *hello, -1};
    session_.monitor(trainer, [this, id](const std::string& reason) {
      trainers_.erase(id);
      feed(TrainerDown{id, reason});
    });
    session_.watch_leaving(trainer, [this, id](const Leaving& leaving) {
      feed(WorkerLeaves{id, leaving.reason, leaving.stays});
    });
    trainer.tell<&Trainer::prepare>(trainers_data());
    feed(TrainerReady{token, id, trainer.address().node, hello->data_address, hello->has_nccl,
                      hello->has_folder || !has_folder()});
  });
}

/// Why a trainer cannot train with the others.
std::optional<ErrorInfo> TrainDriver::does_not_belong(const TrainerHello& hello) try {
  if (!first_hello_) {
    first_hello_ = hello;
    if (options_.settings.exact) check_resumed(hello.numerics);
    return {};
  }
  if (options_.settings.exact && first_hello_->numerics != hello.numerics)
    return ErrorInfo{ErrorCode::kRefused, "a trainer would compute other bits",
                     "it has '" + hello.numerics + "', the first one has '" + first_hello_->numerics + "'",
                     "use the same processors and LibTorch everywhere, or the option exact = false"};
  if (const auto difference = first_difference(first_hello_->layout, hello.layout); !difference.empty())
    return ErrorInfo{ErrorCode::kBadInput, "two trainers made other models of the same job",
                     difference + ", in its name, its type or its shape",
                     "let model() and optimizer() depend on the job's fields alone: not on the process, its "
                     "environment or the time"};
  return {};
} catch (const Error& error) {
  return error.info();
}

void TrainDriver::compare_processor(ActorId worker, const std::string& numerics) {
  if (!options_.settings.exact) return;
  if (const auto other = processors_.compare(names_[worker], numerics)) emit(report::Warning{*other});
}

/// Whoever removed it while the job runs removed it for its trainers, too.
bool TrainDriver::has_folder() const {
  const RunSettings& settings = options_.settings;
  return checkpoint::FolderLock::is_of(*train_floor().files({}), settings.checkpoint_folder,
                                       settings.folder_lock);
}

void TrainDriver::spawn_loader(std::uint64_t token) {
  if (first_loader_) {
    const auto [loader, number] = *std::exchange(first_loader_, std::nullopt);
    return loader_up(token, number, loader);
  }
  const int number = loader_count_++;
  const Future<ActorHandle<Loader>> spawned = start_loader(number);
  unanswered_[token] = {spawned.state()};
  spawned.then([this, token, number](Result<ActorHandle<Loader>> loader) {
    unanswered_.erase(token);
    if (!loader) return spawn_failed(token, loader.error());
    loader_up(token, number, *loader);
  });
}

void TrainDriver::loader_up(std::uint64_t token, int number, ActorHandle<Loader> loader) {
  const ActorId id = loader.address().actor;
  if (over_ || cancelled_.contains(token)) return session_.kill(loader, "it is not wanted any more");
  names_[id] = "loader " + std::to_string(number);
  loaders_[id] = {loader, number};
  loader.call<&Loader::hello>().then([this, id](Result<LoaderHello> hello) {
    if (!hello || !loaders_.contains(id)) return;
    names_[id] += " (pid " + std::to_string(hello->pid) + ")";
    compare_processor(id, hello->numerics);
  });
  session_.monitor(loader, [this, id](const std::string& reason) {
    loaders_.erase(id);
    feed(LoaderDown{id, reason});
  });
  session_.watch_leaving(loader, [this, id](const Leaving& leaving) {
    feed(WorkerLeaves{id, leaving.reason, leaving.stays});
  });
  loader.tell<&Loader::start_heartbeat>();  // the first one beats already
  feed(LoaderReady{token, id, loader.address().node, encode_address(loader.address())});
}

void TrainDriver::act(const CancelSpawn& action) {
  cancelled_[action.token] = true;
  if (const auto trainer = greeted_.extract(action.token)) session_.kill(trainer.mapped(), action.reason);
  const auto at = unanswered_.find(action.token);
  if (at == unanswered_.end()) return;
  // What is waited for may also be a worker that is taken over: that is killed once it answers.
  const std::shared_ptr<CallState> call = at->second.call;
  if (std::find(starting_.begin(), starting_.end(), call) != starting_.end())
    call->cancel(troupe::detail::not_wanted(), Duration{0});
}

void TrainDriver::act(const SendOrder& action) {
  const auto at = trainers_.find(action.trainer);
  if (at == trainers_.end()) return;
  if (const auto* start = std::get_if<StartGeneration>(&action.order)) {
    const auto& members = start->plan.members;
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      if (members[rank].actor == action.trainer) at->second.rank = static_cast<int>(rank);
    }
  }
  at->second.handle.tell<&Trainer::order>(action.order);
}

void TrainDriver::act(const KillActor& action) {
  if (const auto at = trainers_.find(action.actor); at != trainers_.end())
    session_.kill(at->second.handle, action.reason);
  if (const auto at = loaders_.find(action.actor); at != loaders_.end())
    session_.kill(at->second.handle, action.reason);
}

// Reports.

void TrainDriver::report(const TrainerReport& report) {
  feed(report);
}
void TrainDriver::loader_lives(ActorId loader, const Progress& progress) {
  if (machine_ == nullptr) return first_.heard(progress, now());
  feed(LoaderHeartbeat{loader, progress});
}

void TrainDriver::job_threw(ActorId trainer, const std::string& place, const ErrorInfo& error) {
  const std::string who = names_.contains(trainer) ? names_[trainer] : "a loader";
  // "Digits::loss threw std::out_of_range in trainer 0 (pid 12), step 3, leaf 1"
  const auto end = std::min(error.what.find(" threw: "), error.what.size());
  std::string what = error.what.substr(0, end);
  if (end < error.what.size()) what += " threw";
  what += " in " + who + (place.empty() ? "" : ", " + place);
  if (end < error.what.size()) what += ": " + error.what.substr(end + std::string_view(" threw: ").size());
  finish(ErrorInfo{ErrorCode::kTaskFailed, what, error.why, error.todo});
}

void TrainDriver::stop() {
  if (over_) return;
  if (machine_ == nullptr) {  // not even the data are known
    JobDone nothing{.stopped = true};
    if (!options_.resume.empty())
      nothing.begun_at = nothing.steps = nothing.saved = options_.resume.back().step;
    return act(nothing);
  }
  stops_ = true;
  feed(StopRequested{});
}

void TrainDriver::abandon(const std::string& reason) {
  finish(ErrorInfo{ErrorCode::kAborted, "the job was ended", reason, ""});
  end_actors();
}

void TrainDriver::pause() {
  if (std::exchange(stops_, true)) return;
  if (machine_ != nullptr) feed(StopRequested{.hold_state = true});
}

Future<JobPlace> TrainDriver::held() {
  asks_where_.emplace();
  const auto where = asks_where_->future();
  tell_where();
  return where;
}

void TrainDriver::tell_where() {
  const bool holds = !over_ && machine_ != nullptr && machine_->holds();
  if (!asks_where_ || (!holds && !over_)) return;
  auto where = *std::exchange(asks_where_, std::nullopt);
  if (holds) return where.set(place());
  where.fail({ErrorCode::kUnavailable, "the job does not hold", "it is over", "take its result"});
}

void TrainDriver::go_on() {
  feed(GoOn{});
}

// What comes of it.

double TrainDriver::rate(std::int64_t samples) {
  if (rate_since_ == Instant{}) rate_since_ = now();  // from the first step on: the start is no training
  rate_samples_ += samples;
  const Duration elapsed = now() - rate_since_;
  if (elapsed > kRateWindow) {
    rate_now_ = static_cast<double>(rate_samples_) / to_seconds(elapsed);
    rate_samples_ = 0;
    rate_since_ = now();
  }
  return rate_now_;
}

void TrainDriver::act(const CommitStep& action) {
  const std::int64_t steps = sampler_->steps_per_epoch();
  const std::int64_t in_epoch = action.entry.step % steps;
  report::StepDone done;
  done.epoch = static_cast<int>(action.entry.step / steps) + 1;
  done.step = in_epoch + 1;
  done.steps_per_epoch = steps;
  done.total_steps = total_steps(options_.settings, steps);
  done.loss = action.loss;
  done.values = action.values;
  done.samples_per_s = rate(sampler_->batch_size(in_epoch) * options_.settings.logical_ranks);
  done.trainers_alive = static_cast<int>(trainers_.size());
  so_far_.steps = action.entry.step + 1;
  emit(done);
  if (replay_ && so_far_.steps >= replay_->until) {
    std::array<char, 32> seconds{};
    std::snprintf(seconds.data(), seconds.size(), "%.2f", to_seconds(now() - replay_->since));
    emit(report::Warning{"step " + std::to_string(replay_->until) + " is reached again after " +
                         seconds.data() + " s"});
    replay_.reset();
  }
  if (!is_finite(action.entry.slots)) tell_not_finite(action);
  if (options_.evaluations.on && machine_->evaluation_at(so_far_.steps)) emit(report::Evaluating{done.epoch});
  cause_chaos(action.entry.step + 1);
}

/// Counts the step, unless it was before it had to run again, and tells the first.
void TrainDriver::tell_not_finite(const CommitStep& action) {
  if (action.entry.step >= seen_steps_) ++so_far_.not_finite;
  seen_steps_ = std::max(seen_steps_, action.entry.step + 1);
  if (std::exchange(warned_of_loss_, true)) return;
  const char* what = ": lower the learning rate, or choose what becomes of such steps (not_finite)";
  if (options_.settings.not_finite == NotFinite::kSkip) what = ": such steps are left out";
  if (options_.settings.not_finite == NotFinite::kStop) what = ": it is left out, and the job ends";
  emit(report::Warning{"the loss of step " + std::to_string(action.entry.step + 1) + " is " +
                       std::to_string(action.loss) + what});
}

void TrainDriver::act(const DeadlineExpired& action) {
  ++so_far_.expired;
  emit(report::Warning{for_people(action.text)});
}

void TrainDriver::act(const Resumed& action) {
  const std::int64_t step = action.checkpoint.step;
  emit(report::Resumed{step, static_cast<int>(step / sampler_->steps_per_epoch()) + 1,
                       action.checkpoint.path});
}

void TrainDriver::act(const RewindLedger& action) {
  if (!replay_) replay_ = Replay{action.from, fault_at_.value_or(now())};
  replay_->until = std::max(replay_->until, action.from);
  emit(report::Warning{for_people(action.reason)});
}

void TrainDriver::act(const AcceptCheckpoint& action) {
  emit(report::Checkpointed{action.checkpoint.step, action.checkpoint.path});
}

void TrainDriver::act(const DiscardCheckpoint& action) {
  const auto files = train_floor().files({});
  checkpoint::CheckpointStore store(*files, {options_.settings.checkpoint_folder});
  if (auto gone = store.discard(action.path); !gone)
    emit(report::Warning{"a checkpoint with a wrong state stays: " + gone.error().message()});
}

void TrainDriver::act(const EpochDone& action) {
  so_far_.metrics = action.metrics;
  for (const auto& [set, figures] : {std::pair("train/", &action.train), std::pair("test/", &action.test),
                                     std::pair("validation/", &action.validation)}) {
    for (const Figure& figure : *figures) {
      if (figure.kind == FigureKind::kConfusion) so_far_.confusion[set + figure.name] = figure.counts;
    }
  }
  const Instant ended = now();
  if (action.ended) {
    emit(report::EpochDone{action.epoch + 1, action.step, so_far_.metrics,
                           to_seconds(ended - epoch_started_at_)});
    epoch_started_at_ = ended;
  } else {
    emit(
        report::Evaluated{action.epoch + 1, action.step, so_far_.metrics, to_seconds(ended - evaluated_at_)});
  }
  evaluated_at_ = ended;
}

void TrainDriver::act(const Notice& action) {
  // A trainer's death has a line of its own, with the times, once training goes on.
  const auto name = names_.find(action.actor);
  if (name != names_.end() && name->second.starts_with("trainer")) return;
  if (name != names_.end()) {
    ++so_far_.faults;
    return emit(report::Fault{for_people(action.text), {}, {}, {}});
  }
  emit(report::Warning{for_people(action.text)});
}

void TrainDriver::act(const Recovered& action) {
  const std::string cause = for_people(action.cause);
  if (!action.fault) return emit(report::Resized{action.trainers, cause});
  ++so_far_.faults;
  const Instant from = fault_at_.value_or(action.detected);
  report::Fault fault{cause, {}, to_millis(action.left - from), to_millis(action.training_again - from)};
  if (fault_at_) fault.detected_ms = to_millis(action.detected - from);
  fault_at_.reset();
  emit(fault);
}

void TrainDriver::act(const Held& action) {
  set_end_state(action.state);
  history_ = action.history;
  tell_where();
}

void TrainDriver::act(const JobDone& action) {
  so_far_.state_hash = action.hash;
  so_far_.steps = action.steps;
  so_far_.stopped = action.stopped;
  so_far_.stopped_early = action.stopped_early;
  so_far_.stopped_not_finite = action.stopped_not_finite;
  so_far_.best_metric = action.best_metric;
  so_far_.best_checkpoint = action.best_checkpoint;
  so_far_.seconds = options_.seconds + to_seconds(now() - started_at_);
  so_far_.failed_checkpoints = action.failed_checkpoints;
  so_far_.saved_step = action.saved;
  so_far_.unsaved =
      !options_.settings.checkpoint_folder.empty() && action.steps > std::max(action.saved, action.begun_at);
  history_ = action.history;
  set_end_state(action.state);
  report::JobDone done{action.hash, action.steps, so_far_.seconds, so_far_.faults};
  done.begun_at = action.begun_at;
  done.expired = so_far_.expired;
  done.stopped = action.stopped;
  done.failed_checkpoints = action.failed_checkpoints;
  if (so_far_.unsaved) done.lost_after = std::max<std::int64_t>(action.saved, 0);
  emit(done);
  finish(so_far_);
}

void TrainDriver::act(const JobFailed& action) {
  finish(ErrorInfo{ErrorCode::kTaskFailed, "the job failed", for_people(action.reason), action.todo});
}

void TrainDriver::finish(Result<RunResult> result) {
  if (std::exchange(over_, true)) return;
  if (!result) end_actors();  // else whoever waits takes the weights first
  if (waiting_) std::exchange(waiting_, std::nullopt)->set(take_events());
  tell_where();
  serve_weights_asks();
  if (result) {
    result_.set(*result);
  } else {
    result_.fail(result.error());
  }
}

void TrainDriver::end_actors() {
  for (const auto& [id, seat] : trainers_) session_.kill(seat.handle, "the job is over");
  for (const auto& [id, seat] : loaders_) session_.kill(seat.handle, "the job is over");
  if (first_loader_) session_.kill(first_loader_->first, "the job is over");
  for (const ActorAddress& taken : std::exchange(taken_, {})) session_.kill(taken, "the job is over");
  // What starts after the end of this actor is told to nobody, and would hold its CPUs for good.
  for (const auto& spawn : std::exchange(starting_, {}))
    spawn->cancel(troupe::detail::not_wanted(), Duration{0});
  for (const auto& [token, trainer] : std::exchange(greeted_, {})) session_.kill(trainer, "the job is over");
  for (const auto& [number, spawned] : std::exchange(early_trainers_, {})) {
    spawned.cancel();  // it may wait for room
    spawned.then([session = session_](Result<ActorHandle<Trainer>> trainer) {
      if (trainer) session.kill(*trainer, "the job is over");
    });
  }
}

void TrainDriver::emit(report::Event event) {
  if (waiting_) {
    events_.push_back(std::move(event));
    return std::exchange(waiting_, std::nullopt)->set(take_events());
  }
  if (events_.size() == kMostEventsKept) events_.pop_front();
  events_.push_back(std::move(event));
}

std::vector<report::Event> TrainDriver::take_events() {
  const auto all = std::exchange(events_, {});
  return {all.begin(), all.end()};
}

Future<std::vector<report::Event>> TrainDriver::next_events() {
  Promise<std::vector<report::Event>> promise;
  if (!events_.empty() || over_) {
    promise.set(take_events());
  } else {
    waiting_ = promise;
  }
  return promise.future();
}

std::string TrainDriver::for_people(std::string text) const {
  for (const auto& [id, name] : names_) {
    const std::string kind = name.substr(0, name.find(' ') + 1) + to_string(id);
    for (auto at = text.find(kind); at != std::string::npos; at = text.find(kind, at + name.size()))
      text.replace(at, kind.size(), name);
  }
  return text;
}

}  // namespace troupe::train
