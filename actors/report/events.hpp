/// What a person is told of a job, as plain values: filled in by the driver's shell, turned into text by
/// reporter.hpp and into lines of JSON by json_log.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

namespace troupe::report {

/// A job begins. Steps are counted from 1 wherever they are shown.
struct JobStarted {
  std::string what;  ///< one line: model, data, trainers, logical ranks, batch, seed
  int epochs = 0;
};

/// A step was committed.
struct StepDone {
  int epoch = 0;          ///< from 1
  std::int64_t step = 0;  ///< within the epoch, from 1
  std::int64_t steps_per_epoch = 0;
  double loss = 0;  ///< mean over all leaves
  double samples_per_s = 0;
  int trainers_alive = 0;
  /// "learning_rate" (with several optimizers "learning_rate/<name>"), "gradient_norm" where it is clipped or
  /// asked for, and what else the job's apply() counts.
  std::map<std::string, double> values{};
  std::int64_t total_steps = 0;  ///< of the job; 0: not known
};

/// Something died, hung or broke, and what came of it. A time that does not apply is empty.
struct Fault {
  std::string what;                   ///< "trainer 1 (pid 123) died: killed by signal 9"
  std::optional<double> detected_ms;  ///< from the fault
  std::optional<double> left_ms;      ///< until the survivors had left the collective
  std::optional<double> resumed_ms;   ///< until a step was committed again
};

/// The number of trainers changed.
struct Resized {
  int trainers = 0;
  std::string why;  ///< "trainer 1 joined from the memory of trainer 0"
};

/// The steps of an epoch are done, and its evaluation begins.
struct Evaluating {
  int epoch = 0;  ///< from 1
};

/// Figures by name: "train/loss", "test/accuracy" (a share of 1).
using Metrics = std::map<std::string, double>;

/// An epoch and its evaluation are over.
struct EpochDone {
  int epoch = 0;                 ///< from 1
  std::int64_t global_step = 0;  ///< steps committed since the start of the job
  Metrics metrics;
  double seconds = 0;  ///< training and evaluation
};

/// An evaluation in the middle of an epoch is over.
struct Evaluated {
  int epoch = 0;  ///< from 1
  std::int64_t global_step = 0;
  Metrics metrics;     ///< "train/..." of the epoch's steps so far
  double seconds = 0;  ///< since the evaluation before, or the epoch's begin
};

/// A checkpoint is durable.
struct Checkpointed {
  std::int64_t global_step = 0;
  std::string path;
};

/// The job goes on from a checkpoint.
struct Resumed {
  std::int64_t global_step = 0;  ///< steps in it
  int epoch = 0;                 ///< of the step that comes next, from 1
  std::string path;
};

/// Anything that should be read, and goes on.
struct Warning {
  std::string text;
};

/// The job is over.
struct JobDone {
  std::string state_hash;  ///< SHA-256 of the TrainState; empty: stopped while no trainer could say it
  std::int64_t steps = 0;
  double seconds = 0;
  int faults = 0;              ///< survived
  std::int64_t begun_at = 0;   ///< of the steps, those of earlier runs
  int expired = 0;             ///< deadlines that ran out
  bool stopped = false;        ///< early, on request
  int failed_checkpoints = 0;  ///< that could not be written
  /// The final state was to be saved and is not: steps in the newest checkpoint, 0 where there is none.
  std::optional<std::int64_t> lost_after{};
  int incomplete_logs = 0;  ///< files of events, figures and TensorBoard's that could not be written whole
};

using Event = std::variant<JobStarted, Resumed, StepDone, Fault, Resized, Evaluating, EpochDone, Checkpointed,
                           Warning, JobDone, Evaluated>;

}  // namespace troupe::report
