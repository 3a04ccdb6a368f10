// Population-based training, as Ray Tune's PopulationBasedTraining.
#include <algorithm>
#include <memory>

#include "actors/tune/trial_scheduler.hpp"
#include "actors/tune/words.hpp"
#include "runtime/core/error.hpp"

namespace troupe::tune {
namespace {

/// A saved state: whose, and of when.
struct Saved {
  int trial = 0;
  double t = 0;
};

/// A mutation, with its domain.
struct Change {
  Parameter parameter;
  std::function<Value(Random&)> draw{};
};

struct Member {
  int trial = 0;
  Config config{};
  bool saves = true;
  std::optional<double> score{};
  double last_perturbation = 0;
  double last_train = 0;
  std::optional<Saved> latest{};   // what it goes on from
  std::optional<Saved> offered{};  // what others may copy: it was in the upper quantile at its last step
};

class PbtScheduler final : public TrialScheduler {
 public:
  PbtScheduler(Pbt options, SchedulerContext context, std::vector<Change> changes,
               std::shared_ptr<Draws> draws)
      : TrialScheduler(context.mode),
        options_(std::move(options)),
        parameters_(std::move(context.parameters)),
        changes_(std::move(changes)),
        draws_(std::move(draws)),
        next_sync_(std::max(options_.perturbation_interval, options_.burn_in_period)) {}

  Decision added(const Added& event) override {
    const auto [at, is_new] = places_.try_emplace(event.trial, members_.size());
    if (is_new) members_.emplace_back();
    Member& own = members_[at->second];
    own = {.trial = event.trial, .config = event.config, .saves = event.saves, .latest = own.latest};
    Decision decision;
    for (const Change& change : changes_) {
      if (change.parameter.conditional || own.config.find(change.parameter.name)) continue;
      own.config.set(change.parameter.name, resample(change));
      decision.config = own.config;
    }
    decision.reason = decision.config ? "its config lacked settings: they were drawn" : "";
    return decision;
  }

  Decision choose() override {
    const Member* first = nullptr;
    for (const int trial : trials().in_order()) {
      const Member& each = member(trial);
      if (!trials().waits(trial) || (options_.synch && each.last_train >= next_sync_)) continue;
      if (!first || each.last_train < first->last_train) first = &each;
    }
    if (!first) return Decision::because(Action::kContinue, "no trial waits that may go on");
    Decision decision =
        Decision::because(Action::kContinue, words("the one that trained least, to %g", first->last_train));
    decision.run = first->trial;
    if (first->latest)
      decision.figures = {{"from_trial", double(first->latest->trial)}, {"from_t", first->latest->t}};
    return decision;
  }

  Decision reported(const Reported& event) override {
    if (!event.t || !event.metric) return missing(event);
    const double t = *event.t;
    Member& own = member(event.trial);
    if (t < options_.burn_in_period) {
      return Decision::because(Action::kContinue, words("the burn-in ends at %g", options_.burn_in_period));
    }
    if (t - own.last_perturbation < options_.perturbation_interval) {
      return Decision::because(
          Action::kContinue,
          words("the next step is at %g", own.last_perturbation + options_.perturbation_interval));
    }
    own.score = score(*event.metric);
    own.last_train = t;
    Decision decision = options_.synch ? step_all(&own, t) : step_one(own, t);
    if (decision.action == Action::kPause && own.saves) own.latest = Saved{own.trial, t};
    return decision;
  }

  /// The others may have waited for it alone.
  Decision removed(const Removed&) override {
    if (!options_.synch || is_anyone_behind(-1)) return {};
    double t = -1;
    for (const int trial : trials().in_order()) {
      if (trials().is_live(trial)) t = std::max(t, member(trial).last_train);
    }
    return t < 0 ? Decision() : step_all(nullptr, t);
  }

 private:
  struct Quantiles {
    std::vector<Member*> lower{}, upper{};
    static bool has(const std::vector<Member*>& in, const Member& member) {
      return std::find(in.begin(), in.end(), &member) != in.end();
    }
  };

  Member& member(int trial) { return members_[places_.at(trial)]; }

  Decision missing(const Reported& event) const {
    if (!options_.require_attrs)
      return Decision::because(Action::kContinue, "no time or no metric was reported");
    throw BadConfig(words("tune: trial %d reported no %s", event.trial, event.t ? "metric" : "time"),
                    "population-based training ranks by every report",
                    "report it every time, or set Pbt::require_attrs = false");
  }

  Quantiles quantiles() {
    std::vector<Member*> ranked;
    for (Member& each : members_) {
      const TrialStatus state = trials().state(each.trial);
      if (state == TrialStatus::kEnded || state == TrialStatus::kFailed) continue;
      if (each.score && !std::isnan(*each.score)) ranked.push_back(&each);
    }
    if (ranked.size() <= 1) return {};
    std::stable_sort(ranked.begin(), ranked.end(), [](auto* a, auto* b) { return *a->score < *b->score; });
    auto count =
        static_cast<std::size_t>(std::ceil(static_cast<double>(ranked.size()) * options_.quantile_fraction));
    count = std::min(count, ranked.size() / 2);
    const auto k = static_cast<std::ptrdiff_t>(count);
    return {{ranked.begin(), ranked.begin() + k}, {ranked.end() - k, ranked.end()}};
  }

  Decision step_one(Member& own, double t) {
    own.last_perturbation = t;
    const Quantiles quantile = quantiles();
    Decision decision;
    decision.action = trials().any_waits() ? Action::kPause : Action::kContinue;
    act(own, &own, quantile, decision);
    if (decision.reason.empty()) {
      decision.reason = decision.action == Action::kPause
                            ? "it makes room for those that wait"
                            : "it is neither among the best nor among the worst";
    }
    return decision;
  }

  /// Whether a live trial other than `trial` has not come to the next step.
  bool is_anyone_behind(int trial) const {
    return std::any_of(members_.begin(), members_.end(), [&](const Member& each) {
      return each.trial != trial && trials().is_live(each.trial) && each.last_train < next_sync_;
    });
  }

  /// `own` reported just now; null: nobody did.
  Decision step_all(const Member* own, double t) {
    if (own != nullptr && is_anyone_behind(own->trial))
      return Decision::because(Action::kPause, words("it waits until all are at %g", next_sync_));
    const Quantiles quantile = quantiles();
    std::vector<Member*> order = quantile.upper;
    for (const int trial : trials().in_order()) {
      Member& each = member(trial);
      if (!Quantiles::has(quantile.upper, each) && !Quantiles::has(quantile.lower, each))
        order.push_back(&each);
    }
    order.insert(order.end(), quantile.lower.begin(), quantile.lower.end());
    Decision decision;
    decision.action = Action::kPause;
    for (Member* each : order) {
      each->last_perturbation = t;
      act(*each, own, quantile, decision);
    }
    double furthest = 0;
    for (const Member& each : members_) furthest = std::max(furthest, each.last_train);
    next_sync_ = std::max(next_sync_ + options_.perturbation_interval, furthest);
    decision.reason = words("all have come to it: %zu of the worst copy the best, the next time is %g",
                            decision.exploits.size(), next_sync_);
    return decision;
  }

  /// `running` reported just now.
  void act(Member& own, const Member* running, const Quantiles& quantile, Decision& decision) {
    const bool is_running = &own == running;
    if (Quantiles::has(quantile.upper, own)) {
      decision.save.push_back(own.trial);
      if (own.saves && trials().state(own.trial) != TrialStatus::kPaused) {
        own.latest = Saved{own.trial, own.last_train};
      }
      const bool is_saved = own.saves || trials().state(own.trial) == TrialStatus::kPaused;
      own.offered = is_saved ? own.latest : std::nullopt;
      if (is_running) decision.reason = "it is among the best: its state is saved";
    } else {
      own.offered.reset();
    }
    if (!Quantiles::has(quantile.lower, own)) return;
    Member& donor = *quantile.upper[draws_->choice(quantile.upper.size())];
    if (!donor.offered) {
      if (is_running)
        decision.reason = words("it is among the worst, but trial %d was not saved", donor.trial);
      return;
    }
    own.config = explored(donor.config);
    own.latest = donor.offered;
    own.last_perturbation = donor.last_perturbation;
    own.last_train = donor.last_train;
    decision.exploits.push_back({own.trial, donor.trial, own.config});
    if (!is_running) return;
    decision.action = Action::kExploit;
    decision.reason = words("it is among the worst: it copies trial %d", donor.trial);
  }

  static bool is_list(const Parameter& parameter) {
    return parameter.domain.kind == Domain::Kind::kChoice || parameter.domain.kind == Domain::Kind::kGrid;
  }

  Value resample(const Change& change) {
    if (change.draw) {
      SeededRandom random(draws_->choice(kSeeds));
      return change.draw(random);
    }
    if (!is_list(change.parameter)) return draws_->sample(change.parameter);
    const auto& values = change.parameter.domain.values;
    return values[draws_->choice(values.size())];
  }

  Config explored(Config config) {
    for (const Change& change : changes_) {
      Value* value = config.find(change.parameter.name);
      if (!value) continue;
      const bool draws_anew = draws_->uniform() < options_.resample_probability;
      if (!change.draw && is_list(change.parameter)) {
        const auto& values = change.parameter.domain.values;
        const auto at = std::find_if(values.begin(), values.end(),
                                     [&](const Value& one) { return is_same(one, *value); }) -
                        values.begin();
        const bool is_known = at < std::ssize(values);
        *value = draws_anew || !is_known ? resample(change) : values[shifted(at, std::ssize(values))];
      } else if (draws_anew || std::holds_alternative<std::string>(*value)) {
        *value = as_was(*value, resample(change));
      } else {
        const double factor =
            options_.perturbation_factors[draws_->choice(options_.perturbation_factors.size())];
        *value = as_was(*value, number_of(*value) * factor);
      }
    }
    // A change may turn a condition: then the trial needs a setting that its donor had none of. (One too many
    // does no harm: the space leaves it out.)
    for (const Parameter& parameter : parameters_) {
      if (parameter.conditional && !config.find(parameter.name))
        config.set(parameter.name, resample({parameter}));
    }
    return options_.custom_explore ? options_.custom_explore(std::move(config)) : config;
  }

  /// As Python compares: a list of whole numbers may be a real field's.
  static bool is_same(const Value& a, const Value& b) { return a == b || number_of(a) == number_of(b); }

  std::size_t shifted(std::ptrdiff_t at, std::ptrdiff_t size) {
    at += draws_->choice(2) == 0 ? -1 : 1;
    return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(at, 0, size - 1));
  }

  /// The new value, of the old one's type: integers stay integers.
  static Value as_was(const Value& old, const Value& value) {
    if (std::holds_alternative<std::string>(value)) return value;
    if (std::holds_alternative<bool>(old)) return number_of(value) != 0;
    if (std::holds_alternative<std::int64_t>(old))
      return static_cast<std::int64_t>(std::nearbyint(number_of(value)));
    return value;
  }

  static constexpr std::size_t kSeeds = std::size_t{1} << 53;

  Pbt options_;
  std::vector<Parameter> parameters_;
  std::vector<Change> changes_;
  std::shared_ptr<Draws> draws_;
  double next_sync_;
  std::vector<Member> members_;  // in the order they were added first
  std::map<int, std::size_t> places_;
};

/// Of the space's, those that are named, or all of them.
std::vector<Change> changes_of(const Pbt& options, const std::vector<Parameter>& parameters) {
  std::vector<Change> changes;
  for (const Mutation& mutation : options.mutations) {
    const auto at = std::find_if(parameters.begin(), parameters.end(),
                                 [&](const Parameter& one) { return one.name == mutation.name; });
    if (at == parameters.end()) {
      std::string all;
      for (const Parameter& one : parameters) all += (all.empty() ? "" : ", ") + one.name;
      throw BadConfig("tune: population-based training cannot change '" + mutation.name + "'",
                      "the space draws no such field: it draws " + (all.empty() ? "none" : all),
                      "name fields that the space draws in Pbt::mutations");
    }
    changes.push_back({*at, mutation.draw});
    if (mutation.domain) changes.back().parameter.domain = *mutation.domain;
    if (mutation.domain) check({changes.back().parameter});
  }
  if (options.mutations.empty() && !options.custom_explore) {
    for (const Parameter& parameter : parameters) changes.push_back({parameter, {}});
  }
  return changes;
}

}  // namespace

std::unique_ptr<Scheduler> make(const Pbt& options, SchedulerContext context, std::shared_ptr<Draws> draws) {
  require(options.perturbation_interval > 0, "perturbation_interval", "a step takes time");
  require(options.quantile_fraction >= 0 && options.quantile_fraction <= 0.5, "quantile_fraction",
          "it is not in [0, 0.5]");
  require(options.resample_probability >= 0 && options.resample_probability <= 1, "resample_probability",
          "it is not in [0, 1]");
  require(!options.perturbation_factors.empty(), "perturbation_factors", "there are none to multiply with");
  require(!context.parameters.empty() || options.custom_explore, "space",
          "population-based training changes its parameters, and it has none");
  auto changes = changes_of(options, context.parameters);
  return std::make_unique<PbtScheduler>(options, std::move(context), std::move(changes), std::move(draws));
}

}  // namespace troupe::tune
