/// What a run came to, and what else a program gives a run. Every user's program compiles this, and none
/// needs the actors that carry a run out (train_driver.hpp).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/report/events.hpp"
#include "runtime/core/standard_output.hpp"
#include "runtime/wire/address.hpp"
#include "runtime/wire/bytes.hpp"

namespace troupe::train {

/// A fault made on purpose, when `step` has been committed.
struct ChaosStep {
  enum class What : std::uint8_t { kKillTrainer, kStopTrainer, kKillLoader, kKillNode, kKillHead };
  What what = What::kKillTrainer;
  std::int64_t step = 0;  ///< steps committed since the start of the job
  int rank = -1;          ///< of a trainer; -1: the last
};

/// Trainers and loaders of a run that is over, for the next one.
struct Workers {
  std::vector<ActorAddress> trainers;
  std::vector<ActorAddress> loaders;
};

template <class Net>
struct LoadResult;  // weights.hpp, which sees LibTorch

/// What a run came to.
struct RunResult {
  std::string state_hash;
  std::int64_t steps = 0;
  report::Metrics metrics;  ///< of the last evaluation: "train/loss", "test/loss", "test/accuracy"
  /// Of the last evaluation what count_confusion() counted, as "test/" and its name: how often class i was
  /// taken for class j, row by row; scores_of() gives each class's precision, recall and F1.
  std::map<std::string, std::vector<double>> confusion;
  int faults = 0;              ///< survived
  int expired = 0;             ///< deadlines that ran out; each was told as a warning
  bool stopped = false;        ///< ended early, on request
  bool stopped_early = false;  ///< ended early, by stop_early
  std::int64_t not_finite =
      0;  ///< steps of this run whose loss was NaN or infinite: TrainOptions::not_finite
  bool stopped_not_finite = false;  ///< ended early, by the last of them
  double best_metric = 0;           ///< the best value of keep_best; meaningful with best_checkpoint
  std::string best_checkpoint;      ///< its manifest; empty: keep_best names no metric, or no epoch ended
  int signal = 0;                   ///< that asked for it, if one did
  double seconds = 0;
  wire::Bytes weights;  ///< parameters and buffers, as a safetensors file; see load()

  /// The trained weights in a module like the one that was trained; `module`: its name, where setup() gave it
  /// one. Include train.hpp. Throws BadConfig where they do not fit.
  ///     ConvNet trained = result.load(job.model());
  template <class Net>
  Net load(Net net, const std::string& module = {}) const {
    LoadResult<Net>::into(*this, net, module);
    return net;
  }
  /// The same of the averages that a job with ema() keeps.
  template <class Net>
  Net load_averaged(Net net, const std::string& module = {}) const {
    LoadResult<Net>::averages_into(*this, net, module);
    return net;
  }

  /// Writes `weights` to a file, whole or not at all: for load_weights(), TrainOptions::from, serving, and
  /// the safetensors library of Python. Throws BadConfig where there are none, Error where it cannot.
  ///     result.save("digits.safetensors");
  void save(const std::string& path) const;

  int failed_checkpoints = 0;    ///< that could not be written; each was told as a warning
  std::int64_t saved_step = -1;  ///< steps in the newest checkpoint; -1: there is none
  bool unsaved = false;          ///< checkpoints were wanted, and none has the final state

  /// Of events_json, metrics_csv and tensorboard_folder, what could not be written whole, each with the
  /// reason. It was told as a warning, and the job went on.
  std::vector<std::string> incomplete_logs;

  /// What main should return: 128 and the number of the signal that ended the job, 1 where its final state
  /// was to be saved and is not, where a loss that is no number stopped it, or where a log or standard output
  /// could not be written, or 0.
  int exit_code() const {
    if (signal != 0) return 128 + signal;
    return unsaved || stopped_not_finite || !incomplete_logs.empty() || has_output_failed() ? 1 : 0;
  }
};

}  // namespace troupe::train
