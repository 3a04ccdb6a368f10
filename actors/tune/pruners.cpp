// Optuna's pruners. A trial is judged by what it reported at its largest step.
#include <zlib.h>

#include <algorithm>

#include "actors/tune/statistics.hpp"
#include "actors/tune/trial_scheduler.hpp"
#include "actors/tune/words.hpp"

namespace troupe::tune {
namespace {

struct Studied {
  std::map<double, double> values{};  // by step: the first report of each
  std::vector<double> rungs{};        // its value at every rung that it completed
  bool is_complete = false;

  double last_step() const { return values.rbegin()->first; }
};
using Study = std::map<int, Studied>;

Decision prunes(std::string reason) {
  return Decision::because(Action::kStop, std::move(reason));
}
Decision goes_on(std::string reason) {
  return Decision::because(Action::kContinue, std::move(reason));
}

class Pruner : public TrialScheduler {
 public:
  using TrialScheduler::TrialScheduler;

  Decision added(const Added& event) override {
    study_[event.trial] = {};
    return {};
  }
  Decision reported(const Reported& event) override {
    if (!event.t || !event.metric) return goes_on("no time or no metric was reported");
    Studied& own = study_[event.trial];
    own.values.emplace(*event.t, *event.metric);
    return judge(event.trial, own);
  }
  Decision completed(const Completed& event) override {
    // Optuna counts a NaN as failed.
    study_[event.trial].is_complete = !event.pruned && !(event.metric && std::isnan(*event.metric));
    return {};
  }

 protected:
  virtual Decision judge(int trial, Studied& own) = 0;
  Study& study() { return study_; }
  /// The largest step of any trial that is complete.
  std::optional<double> longest() const {
    std::optional<double> longest;
    for (const auto& [trial, each] : study_) {
      if (each.is_complete && !each.values.empty()) longest = std::max(longest.value_or(0), each.last_step());
    }
    return longest;
  }
  bool is_better(double a, double b) const { return mode() == Mode::kMax ? a > b : a < b; }

 private:
  Study study_;
};

class Percentile final : public Pruner {
 public:
  Percentile(const PercentilePruner& options, Mode mode) : Pruner(mode), options_(options) {}

  Decision judge(int, Studied& own) override {
    const auto complete =
        std::count_if(study().begin(), study().end(), [](auto& each) { return each.second.is_complete; });
    if (complete == 0 || complete < options_.n_startup_trials) return goes_on("too few trials are complete");
    const double step = own.last_step();
    if (step < options_.n_warmup_steps)
      return goes_on(words("the warm-up ends at %d", options_.n_warmup_steps));
    const double start = options_.n_warmup_steps;
    const double check =
        std::floor((step - start) / options_.interval_steps) * options_.interval_steps + start;
    if (own.values.size() > 1 && std::prev(own.values.end(), 2)->first >= check) {
      return goes_on("it was asked in this interval before");
    }
    double best = std::nan("");
    for (const auto& [at, value] : own.values) {
      if (std::isnan(best) || is_better(value, best)) best = value;
    }
    if (std::isnan(best)) {
      Decision decision = prunes("it reported nothing but NaN");
      decision.figures = {{"best", best}};
      return decision;
    }
    return against_others(step, best);
  }

 private:
  Decision against_others(double step, double best) {
    std::vector<double> values;
    for (const auto& [trial, each] : study()) {
      const auto at = each.values.find(step);
      if (each.is_complete && at != each.values.end()) values.push_back(at->second);
    }
    const bool enough = std::ssize(values) >= options_.n_min_trials;
    const double percent = mode() == Mode::kMax ? 100 - options_.percentile : options_.percentile;
    const double cut = enough ? percentile(std::move(values), percent) : std::nan("");
    const bool worse = is_better(cut, best);
    Decision decision;
    decision.action = worse ? Action::kStop : Action::kContinue;
    decision.figures = {{"best", best}, {"cut", cut}};
    decision.reason = !enough ? words("too few were complete at %g", step)
                              : words("its best %g is %s the percentile %g: %g", best,
                                      worse ? "worse than" : "not worse than", options_.percentile, cut);
    return decision;
  }

  PercentilePruner options_;
};

class Halving : public Pruner {
 public:
  Halving(const SuccessiveHalvingPruner& options, Mode mode)
      : Pruner(mode), options_(options), least_(options.min_resource) {}

  Decision judge(int, Studied& own) override {
    if (!least_) {
      const auto steps = longest();
      if (!steps) return goes_on("no trial is complete: the first rung is not known");
      least_ = std::max(static_cast<int>(*steps / 100), 1);
    }
    return halve(own, *least_, options_, [](int) { return true; });
  }

 protected:
  /// Through all rungs that the trial has reached, against the trials that `competes` says.
  template <class Competes>
  Decision halve(Studied& own, int least, const SuccessiveHalvingPruner& options, const Competes& competes) {
    const double value = own.values.rbegin()->second;
    Decision decision = goes_on("between two rungs");
    while (true) {
      const auto rung = own.rungs.size();
      const double milestone = least * std::pow(options.reduction_factor,
                                                options.min_early_stopping_rate + static_cast<int>(rung));
      if (own.last_step() < milestone) return decision;
      if (std::isnan(value)) return prunes("its value is NaN");
      own.rungs.push_back(value);
      std::vector<double> values;
      for (const auto& [trial, each] : study()) {
        if (each.rungs.size() > rung && competes(trial)) values.push_back(each.rungs[rung]);
      }
      const int count = static_cast<int>(values.size());
      if (count <= options.bootstrap_count)
        return prunes(words("among the first %d at %g", count, milestone));
      std::sort(values.begin(), values.end(), [&](double a, double b) { return is_better(a, b); });
      const double cut = values[static_cast<std::size_t>(std::max(count / options.reduction_factor - 1, 0))];
      const bool promoted = !is_better(cut, value);
      decision = Decision::because(promoted ? Action::kContinue : Action::kStop,
                                   words("%g is %s the cut %g of %d at %g", value,
                                         promoted ? "not worse than" : "worse than", cut, count, milestone));
      decision.figures = {{"rung", double(rung)}, {"n", double(count)}, {"cut", cut}};
      if (!promoted) return decision;
    }
  }

 private:
  SuccessiveHalvingPruner options_;
  std::optional<int> least_;
};

class Hyperband final : public Halving {
 public:
  Hyperband(const HyperbandPruner& options, Mode mode)
      : Halving({}, mode), options_(options), most_(options.max_resource) {}

  Decision judge(int trial, Studied& own) override {
    if (!most_) {
      const auto steps = longest();
      if (!steps) return goes_on("no trial is complete: the brackets are not known");
      most_ = static_cast<int>(*steps) + 1;
    }
    if (budgets_.empty()) open_brackets();
    const std::size_t bracket = bracket_of(trial);
    const SuccessiveHalvingPruner options{options_.min_resource, options_.reduction_factor,
                                          static_cast<int>(bracket), options_.bootstrap_count};
    return halve(own, options_.min_resource, options,
                 [&](int other) { return bracket_of(other) == bracket; });
  }

 private:
  void open_brackets() {
    const double levels =
        std::log(double(*most_) / options_.min_resource) / std::log(double(options_.reduction_factor));
    const int count = static_cast<int>(std::floor(levels)) + 1;
    for (int i = 0; i < count; ++i) {
      const int s = count - 1 - i;
      budgets_.push_back(
          static_cast<std::uint32_t>(std::ceil(count * std::pow(options_.reduction_factor, s) / (s + 1))));
    }
  }

  std::size_t bracket_of(int trial) const {
    const std::string name = options_.study_name + "_" + std::to_string(trial);
    std::uint32_t sum = 0;
    for (const std::uint32_t budget : budgets_) sum += budget;
    auto at = static_cast<std::uint32_t>(
                  crc32(0, reinterpret_cast<const Bytef*>(name.data()), static_cast<uInt>(name.size()))) %
              sum;
    std::size_t bracket = 0;
    for (; at >= budgets_[bracket]; ++bracket) at -= budgets_[bracket];
    return bracket;
  }

  HyperbandPruner options_;
  std::optional<int> most_;
  std::vector<std::uint32_t> budgets_;
};

void check(const SuccessiveHalvingPruner& options) {
  require(!options.min_resource || *options.min_resource >= 1, "min_resource", "a rung is at 1 or later");
  require(options.reduction_factor >= 2, "reduction_factor", "1 prunes nobody");
  require(options.min_early_stopping_rate >= 0, "min_early_stopping_rate", "it is negative");
  require(options.bootstrap_count >= 0, "bootstrap_count", "it is negative");
}

}  // namespace

std::unique_ptr<Scheduler> make(const PercentilePruner& options, SchedulerContext context,
                                std::shared_ptr<Draws>) {
  require(options.percentile >= 0 && options.percentile <= 100, "percentile", "it is not in [0, 100]");
  require(options.interval_steps >= 1, "interval_steps", "it is below 1");
  require(options.n_min_trials >= 1, "n_min_trials", "it is below 1");
  return std::make_unique<Percentile>(options, context.mode);
}
std::unique_ptr<Scheduler> make(const MedianPruner& options, SchedulerContext context,
                                std::shared_ptr<Draws> draws) {
  return make(PercentilePruner{50, options.n_startup_trials, options.n_warmup_steps, options.interval_steps,
                               options.n_min_trials},
              std::move(context), std::move(draws));
}
std::unique_ptr<Scheduler> make(const SuccessiveHalvingPruner& options, SchedulerContext context,
                                std::shared_ptr<Draws>) {
  check(options);
  return std::make_unique<Halving>(options, context.mode);
}
std::unique_ptr<Scheduler> make(const HyperbandPruner& options, SchedulerContext context,
                                std::shared_ptr<Draws>) {
  check({options.min_resource, options.reduction_factor, 0, options.bootstrap_count});
  require(!options.max_resource || *options.max_resource >= options.min_resource, "max_resource",
          "it is below min_resource");
  return std::make_unique<Hyperband>(options, context.mode);
}

}  // namespace troupe::tune
