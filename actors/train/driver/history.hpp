/// What a job's driver has seen of its metrics: when to stop early, which checkpoint is the best, and the
/// sums of the epoch under way. It goes into every manifest, so that a resumed run decides as an undisturbed
/// one. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/train/job/figures.hpp"

namespace troupe::train {

/// Which values of a metric are better.
enum class Mode : std::uint8_t {
  kAuto,  ///< smaller ones, if the metric's name ends with "loss"; else larger ones
  kMin,
  kMax,
};

/// Ends a job when a metric has not become better for `patience` evaluations in a row: those of its epochs,
/// and of TrainOptions::evaluate_every.
struct StopEarly {
  std::string metric{};  ///< "test/loss"; empty: the job runs all its epochs
  int patience = 3;
  double min_delta = 0;  ///< what an evaluation must be better by than the best one before it
  Mode mode = Mode::kAuto;
};

/// The best value of a metric so far.
struct Best {
  std::int64_t step = 0;  ///< steps of the state that came to it; 0: there is none
  double value = 0;
  int since = 0;  ///< evaluations that were no better
  bool operator==(const Best&) const = default;
};

/// `best` after the state of `step` steps came to `value`. What is not a number is no better than anything.
Best observe(Best best, const std::string& metric, Mode mode, double min_delta, std::int64_t step,
             double value);

struct History {
  std::map<std::string, double> metrics;  ///< of the last evaluation
  std::int64_t evaluated = 0;             ///< steps of the state that came to them
  Best patience;                          ///< of the metric that may stop the job
  Best kept;                              ///< of the metric whose best checkpoint is kept
  /// Of the steps of the epoch under way up to the checkpoint: what the ledger of a resumed run lacks.
  std::vector<Figure> epoch_figures;
  bool operator==(const History&) const = default;
};

/// Under which a manifest's metadata has it.
inline constexpr const char* kHistoryKey = "driver";

/// As text for a manifest. decode: nothing for what encode_history did not write.
std::string encode_history(const History& history);
std::optional<History> decode_history(const std::string& text);

}  // namespace troupe::train
