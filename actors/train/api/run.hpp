/// A training job under way, as the program that started it holds it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/checkpoint/folder_lock.hpp"
#include "actors/report/sink.hpp"
#include "actors/train/api/live_weights.hpp"
#include "actors/train/driver/run_result.hpp"
#include "actors/train/snapshot.hpp"
#include "scheduler/init/init.hpp"

namespace troupe::train {

struct RunPlan;
struct TrainOptions;

/// Movable. Not thread-safe, except stop() and weights(). Events are handed on while somebody waits: in
/// wait(), pause() or next_event(); the newest 100,000 are kept until then.
///
/// When the node that this program is joined to dies, the job's driver dies with it. The run then waits for
/// the program's next node and goes on from the newest checkpoint, or from the beginning where there is none,
/// and says so; the third time in a row without a new highest step ends it.
class Run {
 public:
  /// Who is told of events.
  struct Reporting {
    std::vector<std::unique_ptr<report::Sink>> sinks;
    std::function<void(const report::Event&)> on_event;
  };
  /// For start(). Throws what run_options throws.
  Run(const DriverSession& session, RunPlan plan, Reporting reporting, const report::JobStarted& started);
  Run(Run&& other) noexcept;
  Run& operator=(Run&& other) noexcept;
  /// Ends the job if it is not over: its trainers and loaders are gone within seconds.
  ~Run();

  /// Waits until the job is over, and returns what came of it. Throws TaskFailed with the reason when the job
  /// fails (what the user's code or the dataset threw, or that trainers could not be kept alive), and what
  /// on_event threw. Throws BadConfig when called again.
  RunResult wait();
  /// The next event, after the sinks and on_event have been told of it; none when `timeout` is over first, or
  /// the job is (is_over).
  std::optional<report::Event> next_event(Duration timeout);
  /// Every event was given.
  bool is_over() const;
  /// Ends the job after the current step, with a checkpoint where those are kept; a second call ends it at
  /// once. Thread-safe; from on_event, too.
  void stop() const;
  /// The signal that ends the job, or 0. With TrainOptions::handle_signals whoever waits sees it: in wait(),
  /// next_event(), wait_any(), pause() and pause_at_end().
  int signal() const;

  /// Ends the job after the current step, as stop() does, and takes its state into this program; its trainers
  /// and loaders go, with their CPUs. The state is moved in pieces of 16 MiB; this program and, until it
  /// goes, one trainer hold a copy of it. Throws as wait(), and BadConfig once the result was taken.
  Snapshot pause();
  /// The same when the job has run all its epochs, so that it may get more of them: instead of wait(). A
  /// signal ends it earlier, and the snapshot is of where it ended: see signal().
  Snapshot pause_at_end();
  /// Goes on from where pause() left the job, with the options as they were, or with others, such as more
  /// epochs or trainers: the result is that of a run that was never paused. on_event, files and display stay
  /// those of start(). Throws BadConfig if the job is not paused, or if `options` are of another job.
  void resume();
  void resume(const TrainOptions& options);
  /// With TrainOptions::hold: from the hold after an epoch into the next one. Called early, as soon as the
  /// epoch was told, it spares the hold.
  void go_on() const;
  /// With TrainOptions::hold: a copy of the state, once the job holds, in pieces of 16 MiB. The job is not
  /// disturbed. Throws Unavailable when it is over, and as wait().
  Snapshot snapshot() const;
  /// The same, and a trainer keeps a copy for those that begin from the snapshot: they take the state from
  /// it, not from this program, until the next share() and as long as that trainer is this run's.
  Snapshot share() const;
  /// How its trainers compute (numerics.hpp): what its checkpoints say, too. Empty before the first of them
  /// is there, and once the job's actors are gone.
  std::string numerics() const;
  /// The weights as they are after a committed step, while the job trains on: a trainer copies them between
  /// two steps (a fork's copy on write, on the CPU), and its result stays that of a run that nobody asked.
  /// Waits for the first step that can be told. Thread-safe, but not against resume(). Throws Unavailable
  /// when the job is over or paused, Timeout, and BadConfig where parameters are sharded: no trainer has all
  /// of them.
  RunWeights weights(Duration timeout = std::chrono::minutes(10)) const;
  /// Ends the run, which must not be used any more, but for its trainers and loaders: another one with
  /// RunPlan::workers takes them over, with what they have loaded. None where they are gone.
  Workers release();
  /// A new run that begins with the state of this one, which must be paused: with another struct of the same
  /// type, such as another learning rate, and another seed, on the same data and batches. Parameters,
  /// buffers and what optimizers keep for each parameter are the snapshot's, and so is the step that it goes
  /// on at; options of optimizers and learning rates are those that the new struct sets, where it is another
  /// one: the rates as its scheduler makes them by that step. `options.epochs` count from the beginning.
  /// Include train.hpp.
  ///     Run better = best.clone(Digits{folder, 0.01}, options);
  template <class Job>
  Run clone(const Job& job, const TrainOptions& options) const;

 private:
  struct Parts;
  Parts& parts() const;  ///< throws BadConfig where it was moved away
  Run start_clone(RunPlan plan) const;
  std::unique_ptr<Parts> parts_;
};

/// Hands on the events of all `runs` until one of them is over: that one. wait() or pause_at_end() then
/// return at once. Throws what Run::next_event throws.
Run& wait_any(std::span<Run* const> runs);

}  // namespace troupe::train
