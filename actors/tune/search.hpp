/// Which config a trial gets. A Space asks it for the values of one trial after another:
///
///   search->begin(trial);
///   auto sample = space.sample(job, [&](const Parameter& p) { return search->suggest(p); });
///   ...
///   search->tell({trial, Ended::How::kComplete, accuracy, last_epoch});
///
/// State is a function of its calls: who repeats them, in order and from the same seed, has the same search.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "actors/tune/domain.hpp"
#include "actors/tune/scheduler.hpp"

namespace troupe::tune {

/// How a trial ended.
struct Ended {
  enum class How : std::uint8_t { kComplete, kPruned, kFailed };
  int trial = 0;
  How how = How::kComplete;
  double value = 0;                   ///< the metric; NaN is worst
  std::optional<double> last_step{};  ///< of a pruned one: how far it came
};

/// A user's own derives from it. Single-threaded.
class Search {
 public:
  virtual ~Search() = default;
  /// The suggestions that follow are this trial's. Trials count from 0.
  virtual void begin(int trial) = 0;
  virtual Value suggest(const Parameter& parameter) = 0;
  virtual void tell(const Ended& ended) = 0;
  /// A begun trial has this config rather than what was suggested: a point to try first, or one of another
  /// search.
  virtual void use(int, const Config&) {}
};

/// Independent draws; grids go through their combinations, again and again. A trial's values are a function
/// of the seed and its number alone. Ray Tune: BasicVariantGenerator; Optuna: RandomSampler, GridSampler.
struct RandomSearch {};

/// Tree-structured Parzen estimator (Bergstra et al. 2011): candidates from where good trials are dense, the
/// one that sets them apart most. Optuna: TPESampler, value for value.
struct Tpe {
  int n_startup_trials = 10;  ///< drawn anywhere, until so many have ended
  int n_ei_candidates = 24;
  bool multivariate = true;   ///< what all trials have is drawn together
  bool group = false;         ///< what always came together is drawn together
  bool constant_liar = true;  ///< running trials count as bad ones
};

using AnySearch = std::variant<RandomSearch, Tpe>;

/// Throws BadConfig for options that make no sense, and for a domain that TPE cannot model: normal.
std::unique_ptr<Search> make_search(const AnySearch& options, std::vector<Parameter> parameters, Mode mode,
                                    std::uint64_t seed);
/// With chance of the caller's own: `startup` before there are enough trials, `model` afterwards.
std::unique_ptr<Search> make_tpe(const Tpe& options, std::vector<Parameter> parameters, Mode mode,
                                 std::unique_ptr<Random> startup, std::unique_ptr<Random> model);

}  // namespace troupe::tune
