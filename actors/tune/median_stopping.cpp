// Google Vizier's median stopping rule, as Ray Tune's MedianStoppingRule.
#include <algorithm>
#include <limits>

#include "actors/tune/statistics.hpp"
#include "actors/tune/trial_scheduler.hpp"
#include "actors/tune/words.hpp"

namespace troupe::tune {
namespace {

struct Record {
  int trial = 0;
  std::vector<std::pair<double, double>> results{};  // (time, metric) as they came
  double best = 0;                                   // a NaN that came first stays
  double paused_at = -std::numeric_limits<double>::infinity();
};

class MedianStoppingScheduler final : public TrialScheduler {
 public:
  MedianStoppingScheduler(const MedianStopping& options, Mode mode)
      : TrialScheduler(mode), options_(options) {}

  Decision reported(const Reported& event) override {
    if (!event.t || !event.metric)
      return Decision::because(Action::kContinue, "no time or no metric was reported");
    const double t = *event.t;
    if (stopped_once_.count(event.trial) > 0)
      return Decision::because(Action::kContinue, "it was paused by the rule before");
    Record& own = record(event.trial, t, *event.metric);
    if (t < options_.grace_period) {
      return Decision::because(Action::kContinue,
                               words("the grace period ends at %g", options_.grace_period));
    }
    const auto means = means_of_others(event.trial, t);
    const double count = static_cast<double>(means.size());
    Decision decision;
    decision.figures = {{"samples", count}};
    if (means.size() < static_cast<std::size_t>(options_.min_samples_required)) {
      const bool pauses = t - own.paused_at > options_.min_time_slice && trials().any_waits();
      if (pauses) own.paused_at = t;
      decision.action = pauses ? Action::kPause : Action::kContinue;
      decision.reason = words("only %g others have come to %g%s", count, t,
                              pauses ? ": it makes room for those that wait" : "");
      return decision;
    }
    const double middle = median(means);
    const bool goes_on = mode() == Mode::kMax ? own.best >= middle : own.best <= middle;
    if (!goes_on) {
      decision.action = options_.hard_stop ? Action::kStop : Action::kPause;
      stopped_once_.insert(event.trial);
    }
    decision.figures.push_back({"median", middle});
    decision.figures.push_back({"best", own.best});
    decision.reason = words("its best %g is %s the median %g of the means of %g others", own.best,
                            goes_on ? "not worse than" : "worse than", middle, count);
    return decision;
  }

  Decision completed(const Completed& event) override {
    if (event.t && event.metric) record(event.trial, *event.t, *event.metric);
    return {};
  }

 private:
  Record& record(int trial, double t, double metric) {
    const auto [at, is_new] = places_.try_emplace(trial, records_.size());
    if (is_new) records_.push_back({trial, {}, metric});
    Record& own = records_[at->second];
    own.results.push_back({t, metric});
    if (mode() == Mode::kMax ? metric > own.best : metric < own.best) own.best = metric;
    return own;
  }

  /// Of all that came as far, those that ended, too. Finite ones.
  std::vector<double> means_of_others(int trial, double t) const {
    std::vector<double> means;
    std::vector<double> metrics;
    for (const Record& each : records_) {
      if (each.trial == trial || each.results.back().first < t) continue;
      metrics.clear();
      for (const auto& [time, metric] : each.results) {
        if (options_.grace_period <= time && time <= t) metrics.push_back(metric);
      }
      if (metrics.empty()) continue;
      const double its_mean = mean(metrics);
      if (std::isfinite(its_mean)) means.push_back(its_mean);
    }
    return means;
  }

  MedianStopping options_;
  std::vector<Record> records_;  // in the order of first reports
  std::map<int, std::size_t> places_;
  std::set<int> stopped_once_;
};

}  // namespace

std::unique_ptr<Scheduler> make(const MedianStopping& options, SchedulerContext context,
                                std::shared_ptr<Draws>) {
  require(options.min_samples_required > 0, "min_samples_required", "a median is of at least 1 trial");
  return std::make_unique<MedianStoppingScheduler>(options, context.mode);
}

}  // namespace troupe::tune
