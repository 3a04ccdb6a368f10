/// troupe::train::run: data-parallel training of a user's struct on a cluster.
///
///     auto result = troupe::train::run(session, Digits{folder}, {.logical_ranks = 4, .micro_batch = 25,
///     .epochs = 3,
///                                                                .trainers = 2, .loaders = 1, .seed = 7});
///
/// It shows its progress and a summary on standard output, ends after the current step at Ctrl-C, and a
/// second Ctrl-C ends the program. `start` does the same through a handle (run.hpp).
///
/// The struct has model(), optimizer(net), loss(net, batch) and dataset(split); see actors/train/model.hpp.
/// It crosses processes, so its fields are data. The result depends on the struct, the logical ranks, the
/// micro-batch and the seed alone: not on how many trainers ran, which died, or when they were replaced.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "actors/report/events.hpp"
#include "actors/train/job_registry.hpp"
#include "actors/train/run.hpp"
#include "actors/train/weights.hpp"
#include "scheduler/init/init.hpp"

namespace troupe::train {

struct TrainOptions {
  int logical_ranks = 1;          ///< L: part of the job's identity. Global batch = L x micro_batch
  std::int64_t micro_batch = 32;  ///< samples a logical rank a step
  int epochs = 1;
  int trainers = 1;                   ///< processes that compute; at most L
  int loaders = 1;                    ///< processes that read
  std::uint64_t seed = 0;             ///< of weights, order of samples and dropout
  bool evaluate = true;               ///< the test set after every epoch, each sample once
  std::string checkpoint_folder{};    ///< empty: none
  std::int64_t checkpoint_every = 0;  ///< steps; 0: at each epoch's end
  int keep_checkpoints = 3;           ///< older ones go once this run has written so many
  int min_trainers = 1;     ///< fewer do not train: the job waits for more (Deadlines::gather), then fails
  int threads = 1;          ///< intra-op threads of a trainer; other numbers give other bits
  bool exact = true;        ///< refuse a trainer whose processor or LibTorch gives other bits
  Deadlines deadlines{};    ///< how long to wait, from the last progress
  bool resume = false;      ///< take up at the newest checkpoint in the folder: it must have one
  double trainer_cpus = 0;  ///< CPUs that a trainer reserves on its node
  std::vector<ChaosStep> chaos{};  ///< faults on purpose

  /// A parameter that the loss of a leaf does not depend on counts as zeros there; otherwise it is an error
  /// that names it. Costs one small reduction a step. Jobs whose nets train in turns need it.
  bool find_unused_parameters = false;
  bool return_weights = true;  ///< RunResult::load() works; a copy of the weights in this process

  std::string title{};        ///< the first line shown; empty: the struct's name, the ranks and trainers
  bool show_progress = true;  ///< a bar on a terminal, lines elsewhere, a summary: on standard output
  std::string events_json{};  ///< a file for every event as a line of JSON; empty: none
  std::string metrics_csv{};  ///< a file for every figure as a row; empty: none
  std::string tensorboard_folder{};  ///< empty: none
  /// SIGINT and SIGTERM end the job after the current step, with a checkpoint where those are kept; a second
  /// one ends the program. A signal that the program handles itself is left alone.
  bool handle_signals = true;
  /// Told of everything that happens, in the thread that waits for the run. If it throws, the job ends and
  /// the exception goes on to who waits.
  std::function<void(const report::Event&)> on_event{};
};

/// The part of start() that does not depend on the job's type.
Run start_training(const DriverSession& session, std::uint64_t job_type, wire::Bytes job,
                   const TrainOptions& options);

/// Begins to train. Throws BadConfig for options that make no sense, IoError for a file that cannot be
/// written. `session` must outlive the run.
template <class Job>
Run start(const DriverSession& session, const Job& job, const TrainOptions& options) {
  (void)&JobEntry<Job>::registered;
  return start_training(session, JobEntry<Job>::kId, wire::encode(job), options);
}

/// Trains, and returns what came of it. Throws as start() and Run::wait().
template <class Job>
RunResult run(const DriverSession& session, const Job& job, const TrainOptions& options) {
  return start(session, job, options).wait();
}

}  // namespace troupe::train
