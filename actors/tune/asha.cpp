// Asynchronous successive halving, as Ray Tune's AsyncHyperBandScheduler.
#include <algorithm>
#include <unordered_set>

#include "actors/tune/portable_math.hpp"
#include "actors/tune/statistics.hpp"
#include "actors/tune/trial_scheduler.hpp"
#include "actors/tune/words.hpp"

namespace troupe::tune {
namespace {

struct Rung {
  double milestone = 0;
  std::unordered_set<int> recorded{};
  std::vector<double> scores{};  // ascending, without NaN
};

class AshaScheduler final : public TrialScheduler {
 public:
  AshaScheduler(const Asha& options, Mode mode, std::shared_ptr<Draws> draws)
      : TrialScheduler(mode),
        options_(options),
        draws_(std::move(draws)),
        percent_((1 - 1 / options.reduction_factor) * 100) {
    std::size_t most = 0;
    for (int s = 0; s < options.brackets; ++s) {
      brackets_.push_back(rungs_of(s));
      most = std::max(most, brackets_.back().size());
    }
    double sum = 0;
    for (const auto& rungs : brackets_) {
      sum += portable_exp(static_cast<double>(rungs.size()) - static_cast<double>(most));
      cumulative_.push_back(sum);
    }
  }

  Decision added(const Added& event) override {
    const double u = draws_->uniform();
    std::size_t bracket = 0;
    while (bracket + 1 < cumulative_.size() && u >= cumulative_[bracket] / cumulative_.back()) ++bracket;
    bracket_of_[event.trial] = bracket;
    Decision decision = Decision::because(Action::kContinue, words("drawn into bracket %zu", bracket));
    decision.figures = {{"bracket", static_cast<double>(bracket)}};
    return decision;
  }

  Decision reported(const Reported& event) override {
    if (!event.t || !event.metric)
      return Decision::because(Action::kContinue, "no time or no metric was reported");
    if (*event.t >= options_.max_t && options_.stop_last_trials) {
      return Decision::because(Action::kStop, words("it has come to max_t %g", options_.max_t));
    }
    return at_rung(event.trial, *event.t, score(*event.metric));
  }

  Decision completed(const Completed& event) override {
    if (!event.t || !event.metric) return {};
    Decision decision = at_rung(event.trial, *event.t, score(*event.metric));
    decision.action = Action::kContinue;  // it has ended
    return decision;
  }

 private:
  std::vector<Rung> rungs_of(int s) const {
    const double levels =
        std::log(options_.max_t / options_.grace_period) / std::log(options_.reduction_factor);
    std::vector<Rung> rungs;
    for (int k = static_cast<int>(levels - s + 1) - 1; k >= 0; --k) {
      rungs.push_back({options_.grace_period * std::pow(options_.reduction_factor, k + s)});
    }
    return rungs;
  }

  Decision at_rung(int trial, double t, double own) {
    for (Rung& rung : brackets_[bracket_of_.at(trial)]) {
      const bool recorded = rung.recorded.count(trial) > 0;
      if (t >= rung.milestone && recorded && !options_.stop_last_trials) break;
      if (t < rung.milestone || recorded) continue;
      return judge(rung, trial, own);
    }
    return Decision::because(Action::kContinue, "between two rungs");
  }

  Decision judge(Rung& rung, int trial, double own) {
    const double before = static_cast<double>(rung.recorded.size());
    const double cutoff = percentile_of_sorted(rung.scores, percent_);
    const bool stops = own < cutoff;  // a tie goes on, and so does NaN
    rung.recorded.insert(trial);
    if (!std::isnan(own))
      rung.scores.insert(std::upper_bound(rung.scores.begin(), rung.scores.end(), own), own);

    Decision decision;
    decision.action = stops ? Action::kStop : Action::kContinue;
    decision.figures = {{"rung", rung.milestone}, {"n", before}};
    if (before == 0) {
      decision.reason = words("the first at rung %g", rung.milestone);
      return decision;
    }
    decision.figures.push_back({"cutoff", cutoff});
    decision.reason = words("%g is %s the cutoff %g of the %g before it at rung %g", score(own),
                            stops ? "worse than" : "not worse than", score(cutoff), before, rung.milestone);
    return decision;
  }

  Asha options_;
  std::shared_ptr<Draws> draws_;
  double percent_;
  std::vector<std::vector<Rung>> brackets_;  // each from the highest milestone down
  std::vector<double> cumulative_;
  std::map<int, std::size_t> bracket_of_;
};

}  // namespace

std::unique_ptr<Scheduler> make(const Asha& options, SchedulerContext context, std::shared_ptr<Draws> draws) {
  require(options.grace_period > 0, "grace_period", "a rung is above 0");
  require(options.max_t >= options.grace_period, "max_t", "it is below grace_period");
  require(options.reduction_factor > 1, "reduction_factor", "1 or less stops nobody");
  require(options.brackets > 0, "brackets", "a trial is in one of at least 1");
  return std::make_unique<AshaScheduler>(options, context.mode, std::move(draws));
}

}  // namespace troupe::tune
