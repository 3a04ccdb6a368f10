#include "actors/train/api/run.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <mutex>
#include <thread>

#include "actors/train/api/interrupts.hpp"
#include "actors/train/api/run_losses.hpp"
#include "actors/train/api/train.hpp"
#include "actors/train/driver/final_state.hpp"
#include "actors/train/driver/history.hpp"
#include "actors/train/driver/train_driver.hpp"
#include "runtime/core/log.hpp"

namespace troupe::train {
namespace {

/// How often a signal is looked for.
constexpr Duration kLook = std::chrono::milliseconds(100);
constexpr Duration kEnds = std::chrono::seconds(10);
/// For a piece of the snapshot.
constexpr Duration kPieceArrives = std::chrono::seconds(60);
/// How long the program may be without a node, and how often it is looked for.
constexpr Duration kNextNode = std::chrono::seconds(60);
constexpr Duration kLookForNode = std::chrono::milliseconds(20);
/// For a job to hold: what comes after the epoch that was told is a checkpoint at most.
constexpr Duration kHolds = std::chrono::minutes(10);
constexpr int kMostTries = 10;
constexpr int kMostLosses = 3;
constexpr Duration kLookForEvents = std::chrono::milliseconds(5);
constexpr Duration kForEver = std::chrono::hours(24 * 365);

Instant now() {
  return MonotonicClock().now();
}

}  // namespace

struct Run::Parts {
  Parts(const DriverSession& on, RunPlan what, Reporting how, const report::JobStarted& started)
      : session(on), session_life(on.life()), plan(std::move(what)), reporting(std::move(how)) {
    unread.push_back(started);
    for (const std::string& text : plan.told) unread.push_back(report::Warning{text});
    begin(TakeUp::kAsAsked);
  }

  const DriverSession& session;
  const std::weak_ptr<const void> session_life;
  RunPlan plan;
  Reporting reporting;
  std::optional<checkpoint::FolderLock> folder;  ///< that of the checkpoints, until the job is over
  ActorHandle<TrainDriver> driver;
  Future<RunResult> result;
  std::uint32_t incarnation = 0;  ///< of this program, when the driver began
  std::deque<report::Event> unread;
  std::optional<Future<std::vector<report::Event>>> asked;
  bool over = false;                     ///< the driver has no more events
  bool waited = false;                   ///< the result was asked for
  bool pausing = false;                  ///< by pause()
  std::optional<std::int64_t> pause_at;  ///< after so many steps
  std::atomic<bool> ending = false;      ///< by pause() or stop(): every next driver is told so
  std::mutex driver_mutex;               ///< guards `driver` against stop() in another thread
  std::optional<Snapshot> paused;
  RunResult paused_result;
  std::optional<Interrupts> interrupts;      ///< while the job is under way
  int signal = 0;                            ///< that ends the job
  report::Metrics metrics;                   ///< of the last epoch that was told
  std::vector<std::string> incomplete_logs;  ///< RunResult::incomplete_logs

  RunLosses losses{kMostLosses};
  struct Lost {
    std::string why;
    Instant since{};
  };
  std::optional<Lost> lost;     ///< the driver is, and the next one has not begun
  std::int64_t began_with = 0;  ///< steps of earlier runs
  int faults = 0;               ///< told so far
  std::int64_t not_finite = 0;  ///< the same: steps without a finite loss
  double seconds = 0;           ///< before it was paused
  Instant began_at = now();     ///< or was resumed

  /// Before the session or a handle is used.
  void check_session() const {
    if (session_life.expired())
      throw BadConfig("the run cannot go on", "its session has ended, and every actor of the run with it",
                      "keep what init() gave for as long as its runs");
  }

  /// Starts a driver, with its snapshot.
  void begin(TakeUp take_up) {
    check_session();
    if (plan.options.handle_signals && !interrupts) interrupts.emplace();
    std::vector<report::Event> told;
    RunOptions options = run_options(session, plan, take_up, folder, told);
    if (take_up == TakeUp::kOwn) leave_out_past(options.chaos);
    if (lost) told.push_back(going_on(options.resume));
    unread.insert(unread.end(), told.begin(), told.end());
    options.faults = faults;
    options.not_finite = not_finite;
    options.seen_steps = losses.furthest();
    const std::int64_t from = options.resume.empty() ? 0 : options.resume.back().step;
    if (take_up == TakeUp::kAsAsked) began_with = from;
    options.seconds = seconds + (lost ? to_seconds(now() - began_at) : 0);
    incarnation = session.incarnation();
    const auto spawned = session.spawn<TrainDriver>({.here = true}, std::move(options));
    {
      const std::lock_guard lock(driver_mutex);
      driver = spawned;
    }
    if (const Workers workers = std::exchange(plan.workers, {});
        !workers.trainers.empty() || !workers.loaders.empty())
      driver.tell<&TrainDriver::take_over>(workers);
    if (plan.from && plan.from->state == nullptr) {
      driver.tell<&TrainDriver::begin_from>(plan.from->file, plan.from->donor);
    } else if (plan.from) {
      const wire::ByteView state = *plan.from->state;
      for (std::size_t at = 0; at < state.size(); at += kStatePiece)
        driver.call<&TrainDriver::add_snapshot>(state_piece(state, at)).get(kPieceArrives);
    }
    result = driver.call<&TrainDriver::run>();
    pause_at.reset();
    if (pausing && losses.furthest() > from) {
      pause_at = losses.furthest();  // where it was when it was to pause
    } else if (ending) {
      driver.tell<&TrainDriver::pause>();
    }
    over = false;
  }

  /// Leaves out faults on purpose that happened before; the death of the node may have been one of them.
  void leave_out_past(std::vector<ChaosStep>& chaos) {
    bool node = !lost;
    std::erase_if(chaos, [&](const ChaosStep& one) {
      const bool kills_node = one.what == ChaosStep::What::kKillNode;
      return one.step <= losses.furthest() || (kills_node && !std::exchange(node, true));
    });
    plan.options.chaos = chaos;
  }
  report::Event going_on(const std::vector<CheckpointInfo>& from) {
    ++faults;
    const std::string how =
        from.empty() ? "no checkpoint has the job's state, it begins again at step 0"
                     : "going on at step " + std::to_string(from.back().step) + " from " + from.back().path;
    return report::Fault{"the node of this program died: " + how, {}, {}, {}};
  }

  void tell(report::Event event) {
    if (auto* done = std::get_if<report::JobDone>(&event))
      done->incomplete_logs = static_cast<int>(incomplete_logs.size());
    for (auto& sink : reporting.sinks) {
      const auto taken = sink->take(event);
      if (taken) continue;
      incomplete_logs.push_back(taken.error().message());
      warn(taken.error().message());
    }
    if (reporting.on_event) reporting.on_event(event);
    if (std::holds_alternative<report::Checkpointed>(event)) check_folder();
  }
  /// Who removes the folder of a run removes the lock that keeps others out of it.
  void check_folder() {
    if (!folder) return;
    const auto renewed = folder->renew();
    if (!renewed) return warn(renewed.error().message());
    if (*renewed)
      warn("'" + folder->folder() +
           "' was removed while the job keeps its checkpoints there: it is made again, and older ones are "
           "gone");
  }
  void warn(const std::string& text) {
    const report::Event warning = report::Warning{text};
    for (auto& sink : reporting.sinks) {  // a log that fails at this says so once, here
      if (const auto taken = sink->take(warning); !taken) {
        incomplete_logs.push_back(taken.error().message());
        log(LogLevel::kWarning, taken.error().message());
      }
    }
    if (reporting.on_event) return reporting.on_event(warning);
    if (!plan.options.show_progress) log(LogLevel::kWarning, text);  // nobody else says it
  }

  void stop() {
    ending = true;
    check_session();
    const std::lock_guard lock(driver_mutex);
    driver.tell<&TrainDriver::stop>();
  }
  /// Ctrl-C. Whoever waits comes by here, whatever it waits for.
  void obey_signal() {
    if (!interrupts || signal != 0 || interrupts->signal() == 0) return;
    signal = interrupts->signal();
    stop();
  }
  /// Waits for events, or for a node where the driver is lost.
  void fetch(Duration timeout) {
    check_session();
    if (lost) return find_node(timeout);
    if (!asked) asked = driver.call<&TrainDriver::next_events>();
    if (!asked->wait(timeout)) return;
    try {
      auto events = std::exchange(asked, std::nullopt)->get();
      over = events.empty();
      if (over) interrupts.reset();
      for (auto& event : events) take(std::move(event));
    } catch (const ActorDied& died) {
      lose(died.info().why);
    } catch (const Unavailable& gone) {
      lose(gone.info().why);
    }
  }
  void reached(std::int64_t steps) {
    losses.reached(steps);
    if (!pause_at || steps < *pause_at) return;
    pause_at.reset();
    driver.tell<&TrainDriver::pause>();
  }
  void take(report::Event event) {
    if (const auto* step = std::get_if<report::StepDone>(&event)) {
      const std::int64_t steps = (step->epoch - 1) * step->steps_per_epoch + step->step;
      if (steps > losses.furthest() && !std::isfinite(step->loss)) ++not_finite;
      reached(steps);
    }
    if (auto* resumed = std::get_if<report::Resumed>(&event);
        resumed != nullptr && !plan.from_path.empty() && resumed->path == kSnapshotPath)
      resumed->path = plan.from_path;
    if (std::holds_alternative<report::Fault>(event)) ++faults;
    if (const auto* epoch = std::get_if<report::EpochDone>(&event)) metrics = epoch->metrics;
    if (const auto* within = std::get_if<report::Evaluated>(&event)) metrics = within->metrics;
    // For a driver that took over, the steps of this run are those of an earlier one.
    if (auto* done = std::get_if<report::JobDone>(&event))
      done->begun_at = std::min(done->begun_at, began_with);
    unread.push_back(std::move(event));
  }

  /// The job's driver lives in this program's place in the cluster, and goes with it.
  void lose(const std::string& why) {
    asked.reset();
    if (!losses.goes_on())
      throw TaskFailed({ErrorCode::kTaskFailed, "the job is lost",
                        "the node that this program was joined to died " + std::to_string(losses.in_a_row()) +
                            " times without a step of progress: " + why,
                        plan.options.checkpoint_folder.empty()
                            ? "run it again, with a checkpoint folder"
                            : "run it again, with resume if it has saved a checkpoint"});
    lost = Lost{why, now()};
  }
  void find_node(Duration timeout) {
    const Instant deadline = now() + timeout;
    while (session.incarnation() == incarnation) {
      if (now() - lost->since > kNextNode)
        throw TaskFailed(
            {ErrorCode::kTaskFailed, "the job is lost",
             "the node that this program was joined to is gone, and no other one took it: " + lost->why,
             plan.options.checkpoint_folder.empty()
                 ? "run it again, with a checkpoint folder"
                 : "run it again, with resume if it has saved a checkpoint"});
      if (now() >= deadline) return;
      std::this_thread::sleep_for(kLookForNode);
    }
    try {
      begin(TakeUp::kOwn);
      lost.reset();
    } catch (const Unavailable& gone) {  // that node, too
      lose(gone.info().why);
    } catch (const ActorDied& died) {
      lose(died.info().why);
    }
  }

  wire::Bytes take_state(bool weights_only) {
    return take_final_state(driver, weights_only, [this] { return session.incarnation() == incarnation; });
  }
  /// A job that is done does not fail for want of its weights.
  wire::Bytes take_weights() try { return take_state(true); } catch (const Error& error) {
    warn("the weights did not come back: " + std::string(error.what()));
    return {};
  }
  /// Takes the state of a job that is over. If its node dies meanwhile, the job goes on from what there is.
  void hold() {
    check_session();
    paused_result = result.get(kEnds);
    paused_result.signal = paused_result.stopped ? signal : 0;
    if (paused_result.state_hash.empty())
      throw_error({ErrorCode::kUnavailable, "cannot pause the run",
                   "it was stopped before a trainer held its state", "start it again"});
    try {
      const auto place = driver.call<&TrainDriver::place>().get(kEnds);
      auto state = std::make_shared<const wire::Bytes>(take_state(false));
      paused = Snapshot{place, plan.job_type, paused_result.metrics, std::move(state)};
    } catch (const Error& error) {
      if (session.incarnation() == incarnation && has_node()) throw;
      over = false;
      return lose(error.info().why);
    }
    ending = pausing = false;
    folder.reset();
    let_go("the run is paused");
  }
  bool has_node() const try { return !session.nodes().empty(); } catch (const Error&) {
    return false;
  }
  void let_go(const std::string& why) {
    driver.tell<&TrainDriver::abandon>(why);
    session.kill(driver, why);
  }
};

Run::Run(const DriverSession& session, RunPlan plan, Reporting reporting, const report::JobStarted& started)
    : parts_(std::make_unique<Parts>(session, std::move(plan), std::move(reporting), started)) {}

Run::Run(Run&& other) noexcept = default;

Run& Run::operator=(Run&& other) noexcept {
  std::swap(parts_, other.parts_);
  return *this;
}

Run::~Run() {
  if (parts_ == nullptr || parts_->paused || parts_->session_life.expired()) return;
  try {
    parts_->driver.call<&TrainDriver::abandon>("its handle is gone").get(kEnds);
    parts_->session.kill(parts_->driver, "the run is over");
  } catch (const Error&) {
    // The driver, or the cluster, is gone already.
  }
}

Run::Parts& Run::parts() const {
  if (parts_ == nullptr)
    throw BadConfig("a run was used that was moved away", "this handle is empty",
                    "use the one it was moved to");
  return *parts_;
}

std::optional<report::Event> Run::next_event(Duration timeout) {
  Parts& p = parts();
  p.obey_signal();
  const Instant deadline = now() + std::min(timeout, kForEver);
  for (bool late = false; !late && p.unread.empty() && !p.over; p.obey_signal()) {
    const Duration left = std::max(deadline - now(), Duration(0));
    late = left <= kLook;
    p.fetch(std::min(left, kLook));
  }
  if (p.unread.empty()) return {};
  report::Event event = std::move(p.unread.front());
  p.unread.pop_front();
  p.tell(event);
  return event;
}

bool Run::is_over() const {
  return parts().over && parts().unread.empty();
}

void Run::stop() const {
  parts().stop();
}

int Run::signal() const {
  return parts().signal;
}

RunResult Run::wait() {
  Parts& p = parts();
  if (std::exchange(p.waited, true))
    throw BadConfig("a run was waited for twice",
                    "its result is for who waited first, and on_event is told in there",
                    "keep the result; in on_event, call stop()");
  while (!is_over()) next_event(kForEver);
  if (p.paused) {
    p.paused_result.incomplete_logs = p.incomplete_logs;
    if (p.plan.options.return_weights) p.paused_result.weights = *p.paused->state;
    return std::move(p.paused_result);
  }
  p.check_session();
  RunResult result = p.result.get(kEnds);
  p.folder.reset();
  result.signal = result.stopped ? p.signal : 0;
  result.incomplete_logs = p.incomplete_logs;
  if (p.plan.options.return_weights && !result.state_hash.empty()) result.weights = p.take_weights();
  if (!p.plan.is_released)  // the trainers go, if the handle stays
    p.driver.tell<&TrainDriver::abandon>("its result was taken");
  p.reporting.sinks.clear();  // what they hold is flushed, and a bar is cleared
  return result;
}

Snapshot Run::pause() {
  Parts& p = parts();
  if (!p.paused && !p.waited && !p.over) {
    p.check_session();
    p.ending = p.pausing = true;
    if (!p.lost) p.driver.tell<&TrainDriver::pause>();
  }
  return pause_at_end();
}

Snapshot Run::pause_at_end() {
  Parts& p = parts();
  if (p.paused) return *p.paused;
  if (p.waited)
    throw BadConfig("cannot pause a run",
                    "somebody waits, or has waited, for its result: its trainers go at its end",
                    "pause it instead of waiting");
  while (!p.paused) {
    while (!is_over()) next_event(kForEver);
    p.hold();
  }
  return *p.paused;
}

void Run::go_on() const {
  Parts& p = parts();
  p.check_session();
  if (!p.lost) p.driver.tell<&TrainDriver::go_on>();
}

Snapshot Run::snapshot() const {
  Parts& p = parts();
  if (p.paused) return *p.paused;
  p.check_session();
  for (int tries = 1;; ++tries) {
    const auto place = p.driver.call<&TrainDriver::held>().get(kHolds);
    try {
      // The driver's own figures: their event may not have been read yet.
      const auto history = decode_history(place.history);
      return {place, p.plan.job_type, history ? history->metrics : p.metrics,
              std::make_shared<const wire::Bytes>(p.take_state(false))};
    } catch (const Unavailable&) {  // who held it died: the job comes to this hold again
      if (tries == kMostTries) throw;
      std::this_thread::sleep_for(kLook);
    }
  }
}

Snapshot Run::share() const {
  Snapshot shared = snapshot();
  if (parts().plan.options.shard != Shard::kNothing) return shared;  // no trainer has all of it to keep
  try {
    shared.donor = parts().driver.call<&TrainDriver::keep_state>().get(kEnds);
  } catch (const Error& error) {  // who begins from it reads the snapshot's own bytes
    log(LogLevel::kWarning, "a state is not shared from trainer to trainer: " + std::string(error.what()));
  }
  return shared;
}

std::string Run::numerics() const try {
  return parts().driver.call<&TrainDriver::numerics>().get(kEnds);
} catch (const Error&) {  // its driver has gone
  return {};
}

RunWeights Run::weights(Duration timeout) const {
  Parts& p = parts();
  if (has_units(p.plan.options.shard))
    throw BadConfig("cannot copy the weights of a run",
                    "its parameters are sharded over its trainers: none has all of them",
                    "give a checkpoint's path, or use Shard::kOptimizer");
  p.check_session();
  ActorHandle<TrainDriver> driver;
  {
    const std::lock_guard lock(p.driver_mutex);
    driver = p.driver;
  }
  const std::string job = JobRegistry::instance().find(p.plan.job_type).describe(p.plan.job);
  return copy_live_weights(driver, p.session.process(), job, timeout);
}

Workers Run::release() {
  const std::unique_ptr<Parts> p = std::exchange(parts_, nullptr);
  if (p == nullptr || p->paused || p->lost || p->session_life.expired()) return {};
  Future<Workers> left;
  try {
    left = p->driver.call<&TrainDriver::release>();
    const Workers workers = left.get(kEnds);
    p->session.kill(p->driver, "the run is over");
    return workers;
  } catch (const Timeout&) {  // they come yet, and nobody takes them
    left.then([session = Session(p->session), driver = p->driver](const Result<Workers>& late) {
      if (!late) return;
      for (const auto& all : {late->trainers, late->loaders}) {
        for (const ActorAddress& each : all) session.kill(each, "the run is over");
      }
      session.kill(driver, "the run is over");
    });
  } catch (const Error&) {
    // The driver, or the cluster, is gone already.
  }
  return {};
}

void Run::resume() {
  const TrainOptions options = parts().plan.options;
  resume(options);
}

void Run::resume(const TrainOptions& options) {
  Parts& p = parts();
  if (!p.paused) throw BadConfig("cannot resume a run", "it is not paused", "pause it first");
  RunPlan plan = p.plan;
  plan.options = options;
  if (options.threads == 0) plan.options.threads = p.plan.options.threads;  // what was chosen at the start
  plan.from = p.paused;
  plan.from_path.clear();
  plan.clone = false;
  const RunPlan former = std::exchange(p.plan, std::move(plan));
  p.seconds = p.paused_result.seconds;
  p.began_at = now();
  p.ending = false;  // a stop of what was paused stopped nothing
  p.signal = 0;
  try {
    p.begin(TakeUp::kOwn);
  } catch (...) {
    p.plan = former;
    throw;
  }
  p.paused.reset();
  p.waited = false;
}

Run& wait_any(std::span<Run* const> runs) {
  if (runs.empty())
    throw BadConfig("cannot wait for a run", "there is none", "name those that are under way");
  for (;;) {
    for (Run* run : runs) {
      while (run->next_event(Duration(0))) {
      }
      if (run->is_over()) return *run;
    }
    std::this_thread::sleep_for(kLookForEvents);
  }
}

Run Run::start_clone(RunPlan plan) const {
  if (!parts().paused) throw BadConfig("cannot clone a run", "it is not paused", "pause it first");
  plan.from = parts().paused;
  parts().check_session();
  return start_training(parts().session, std::move(plan));
}

}  // namespace troupe::train
