/// troupe::train::run: data-parallel training of a user's struct on a cluster.
///
///     auto result = troupe::train::run(session, Digits{folder}, {.logical_ranks = 4, .micro_batch = 25,
///     .epochs = 3,
///                                                                .trainers = 2, .loaders = 1, .seed = 7});
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
#include "actors/train/train_driver.hpp"
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
  int keep_checkpoints = 3;      ///< older ones go once this run has written so many
  bool resume = false;           ///< take up at the newest checkpoint in the folder: it must have one
  double trainer_cpus = 0;       ///< CPUs that a trainer reserves on its node
  std::vector<ChaosStep> chaos{};  ///< faults on purpose
  /// Told of everything that happens, in this thread.
  std::function<void(const report::Event&)> on_event{};
  /// Asked ten times a second: how often the user wants to stop (Ctrl-C). The first time the job ends after
  /// the current step.
  std::function<int()> stops_wanted{};
};

/// The part of run() that does not depend on the job's type. Blocks until the job is over.
RunResult run_training(const DriverSession& session, std::uint64_t job_type, wire::Bytes job,
                       const TrainOptions& options);

/// Trains, and returns what came of it. Throws BadConfig for options that make no sense, and TaskFailed with
/// the reason when the job fails: what the user's code or the dataset threw, or that trainers could not be
/// kept alive.
template <class Job>
RunResult run(const DriverSession& session, const Job& job, const TrainOptions& options) {
  (void)&JobEntry<Job>::registered;
  return run_training(session, JobEntry<Job>::kId, wire::encode(job), options);
}

}  // namespace troupe::train
