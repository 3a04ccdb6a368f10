/// How a job starts: the first loader says what the data are while the first trainers start beside it; then
/// the machine begins. Trainers that hold CPUs or GPUs start together, as many as min_trainers: the job waits
/// until there is room for all of these, and its deadlines with it.
#include "actors/train/batches/batch_feed.hpp"
#include "actors/train/driver/driver_machine.hpp"
#include "actors/train/driver/train_driver.hpp"
#include "actors/train/floor.hpp"
#include "runtime/client/start_group.hpp"

namespace troupe::train {
namespace {

/// How often the first loader is looked at.
constexpr Duration kTick = std::chrono::milliseconds(100);

Instant now() {
  return MonotonicClock().now();
}

}  // namespace

Future<RunResult> TrainDriver::run() {
  started_at_ = epoch_started_at_ = evaluated_at_ = now();
  learn_data();
  watch_first_loader();
  // They need the data only with their first order, and a process takes a while to start.
  start_trainers();
  return result_.future();
}

void TrainDriver::start_trainers() {
  if (!spare_.trainers.empty()) return trainers_have_places();  // these have theirs
  const auto group = detail::start_group(session_.process(), static_cast<std::size_t>(options_.min_trainers),
                                         trainer_options());
  if (!group.valid()) return trainers_have_places();
  group.then([this](Result<wire::GroupAnswer> made) {
    if (over_) return;
    if (!made) return finish(made.error());
    const GroupId together = made->status.record.group;
    for (int i = 0; i < options_.min_trainers; ++i) start_trainer(together, i);
    for (const auto& [number, spawned] : early_trainers_) {
      spawned.then([this](const Result<ActorHandle<Trainer>>& trainer) {
        if (!trainer) take_trainers_back(trainer.error());
      });
    }
    places_ = PlacementGroup(&session_.process(), together).ready();
    // The group is gone once they have their room: also then it says that there is none. Of one that was
    // refused its spawn says why.
    places_->then([this](const Result<void>&) {
      if (!over_) trainers_have_places();
    });
  });
}

/// One of those that start together was refused. The head may not know it any more, and have the others wait.
void TrainDriver::take_trainers_back(const ErrorInfo& why) {
  if (over_ || have_places_) return;
  const ErrorInfo with_it{why.code, "a trainer was not started",
                          "one that was to start with it was refused: " + why.why, why.todo};
  for (const auto& [number, spawned] : early_trainers_) spawned.state()->cancel(with_it);
  trainers_have_places();
}

/// The others take what room there is: before, they could take that of the first.
void TrainDriver::trainers_have_places() {
  if (std::exchange(have_places_, true)) return;
  places_.reset();
  while (trainer_count_ < options_.trainers) start_trainer();
  begin();
}

void TrainDriver::tell_why_waits() {
  if (!places_ || told_why_waits_) return;
  const std::string why = places_->waits_for();
  if (why.empty()) return;
  told_why_waits_ = true;
  emit(report::Warning{"the job waits for room for " + std::to_string(options_.min_trainers) +
                       " trainers (min_trainers): " + why});
}

/// Once the data are known and the first trainers have their places.
void TrainDriver::begin() {
  if (over_ || !data_ || !have_places_ || machine_ != nullptr) return;
  try {
    start_machine();
  } catch (const Error& error) {
    finish(error.info());
  }
}

/// The first loader says how much data there is; it also finds bad data.
void TrainDriver::learn_data() {
  if (over_) return;
  const int number = loader_count_++;
  first_.starts(now());
  start_loader(number).then([this, number](Result<ActorHandle<Loader>> loader) {
    if (!loader) return first_loader_died(loader.error());
    if (over_) return session_.kill(*loader, "the job is over");
    first_loader_ = std::pair(*loader, number);
    first_.reads(now());
    loader->tell<&Loader::start_heartbeat>();
    read_first_batch(*loader);
  });
}

void TrainDriver::read_first_batch(const ActorHandle<Loader>& loader) {
  loader.call<&Loader::describe>().then([this, loader](Result<DataInfo> info) {
    if (over_) return;
    if (!info && info.error().code == ErrorCode::kTaskFailed && first_.read_again()) {
      emit(report::Warning{"the first batch is read again: " + info.error().why});
      return read_first_batch(loader);
    }
    if (!info) return first_loader_died(info.error());
    first_.done();
    data_ = *info;
    begin();
  });
}

/// What it threw is bad data, and ends the job; a death may be anybody's.
void TrainDriver::first_loader_died(const ErrorInfo& how) {
  if (over_) return;
  first_loader_.reset();
  if (how.code != ErrorCode::kActorDied && how.code != ErrorCode::kUnavailable)
    return finish(of_the_dataset(train_floor().job_name(options_.settings), how));
  if (!first_.try_again(how.why)) {
    return finish(ErrorInfo{ErrorCode::kTaskFailed, "the job has no data",
                            "the first loader died again and again, the last time: " + how.why,
                            "look at the job's dataset() and its get()"});
  }
  ++so_far_.faults;
  first_.done();
  emit(report::Fault{"the first loader died: " + how.why, {}, {}, {}});
  this_actor().run_after(first_.pause(), [this] { learn_data(); });
}

void TrainDriver::watch_first_loader() {
  if (over_ || machine_ != nullptr) return;
  tell_why_waits();
  if (const auto why = first_.overdue(now())) {
    return finish(ErrorInfo{ErrorCode::kTimeout, "the job has no data",
                            "the first loader is given up: " + *why,
                            "look at the job's dataset() and its get(), or raise the option deadlines"});
  }
  this_actor().run_after(kTick, [this] { watch_first_loader(); });
}

void TrainDriver::check_resumed(const std::string& numerics) {
  if (!options_.resumed_job) return;
  if (const auto other =
          difference(*options_.resumed_job, job_identity(options_.settings, *data_, numerics))) {
    throw BadConfig("cannot resume from " + options_.resume.back().path, *other,
                    numerics.empty()
                        ? "resume the same job on the same data, or name another checkpoint folder"
                        : "resume on a machine and with a LibTorch that compute alike");
  }
}

void TrainDriver::start_machine() {
  check_resumed({});
  sampler_ = std::make_unique<data::LeafSampler>(sampler_options(options_.settings, *data_));
  DriverConfig config;
  config.logical_ranks = options_.settings.logical_ranks;
  config.trainers = options_.trainers;
  config.min_trainers = options_.min_trainers;
  static_cast<Deadlines&>(config.deadlines) = options_.deadlines;
  config.restart = options_.restart;
  config.ahead = options_.ahead;
  config.loaders = options_.loaders;
  config.epochs = options_.settings.epochs;
  config.steps_per_epoch = sampler_->steps_per_epoch();
  config.max_steps = options_.settings.max_steps;
  config.evaluates = options_.settings.evaluates;
  config.evaluate_every = options_.evaluations.every;
  if (options_.evaluations.on) config.test_pieces = data_->test_pieces();
  if (options_.evaluations.on) config.validation_pieces = data_->validation_pieces();
  config.exact = options_.settings.exact;
  config.sharded = options_.settings.sharding.what != Shard::kNothing;
  check_chaos(config.total_steps());
  check_metrics(config);
  config.checkpoints = !options_.settings.checkpoint_folder.empty();
  config.checkpoint_folder = options_.settings.checkpoint_folder;
  config.checkpoint_every = options_.checkpoint_every;
  config.keep_checkpoints = options_.keep_checkpoints;
  config.hold = options_.hold;
  config.tells_metrics = options_.evaluations.told;
  config.stop_early = options_.stop_early;
  config.not_finite = options_.settings.not_finite;
  config.keep_best = options_.keep_best;
  config.keep_best_mode = options_.keep_best_mode;
  config.incarnation = session_.incarnation();
  config.resume = options_.resume;
  config.expected_indices = [this](int epoch, std::int64_t step, int leaf) {
    return data::index_hash(sampler_->indices(static_cast<std::uint64_t>(epoch), step, leaf));
  };
  config.expected_piece = [info = trainers_data()](std::int64_t piece) {
    const auto [split, begin, end] = info.piece(piece);
    return data::index_hash_of_range(begin, end);
  };
  machine_ = std::make_unique<DriverMachine>(std::move(config), train_floor().mutations());
  carry_out(machine_->start(now()));
  if (stops_) feed(StopRequested{.hold_state = true});
  tick();
}

/// Without samples of a set there is no figure of them.
void TrainDriver::check_metrics(const DriverConfig& config) const {
  for (const std::string& metric : {options_.stop_early.metric, options_.keep_best}) {
    const bool test = config.test_pieces == 0 && metric.starts_with("test/");
    const bool validation = config.validation_pieces == 0 && metric.starts_with("validation/");
    if (test || validation)
      throw BadConfig("there is no metric '" + metric + "'",
                      "the job's dataset has no " + std::string(test ? "test" : "validation") + " samples",
                      "name a metric of training, such as train/loss");
  }
}

}  // namespace troupe::train
