// HyperBand, as Ray Tune's HyperBandScheduler: synchronous, by pausing.
#include <algorithm>
#include <limits>

#include "actors/tune/trial_scheduler.hpp"
#include "actors/tune/words.hpp"

namespace troupe::tune {
namespace {

struct Live {
  int trial = 0;
  double t = 0;
  double score = 0;  // NaN is -infinity
};

struct Bracket {
  int n = 0;         // trials that it takes, and that go on at the next halving
  double until = 0;  // the milestone
  int halves = 0;    // halvings to come
  double total_work = 0;
  double progress = 0;
  bool was_halved = false;
  std::vector<Live> live{};  // in the order they were added
  std::set<int> resumable{};

  std::vector<Live>::iterator find(int trial) {
    return std::find_if(live.begin(), live.end(), [&](const Live& each) { return each.trial == trial; });
  }
  bool all_are_there() const {
    return std::all_of(live.begin(), live.end(), [&](const Live& each) { return each.t >= until; });
  }
  bool is_finished(bool stop_last_trials) const { return stop_last_trials && halves == 0 && all_are_there(); }
};

class HyperBandScheduler final : public TrialScheduler {
 public:
  HyperBandScheduler(const HyperBand& options, Mode mode) : TrialScheduler(mode), options_(options) {
    // To the nearest, half to even: as Python rounds.
    levels_ =
        static_cast<int>(std::nearbyint(std::log(options.max_t) / std::log(options.reduction_factor))) + 1;
  }

  Decision added(const Added& event) override {
    if (!current_ || current_->live.size() == static_cast<std::size_t>(current_->n)) open_bracket();
    current_->live.push_back({event.trial, 0, 0});
    bracket_of_[event.trial] = current_;
    const double band = static_cast<double>(bands_.size() - 1);
    const double index = static_cast<double>(bands_.back().size() - 1);
    Decision decision =
        Decision::because(Action::kContinue, words("put into bracket %g of band %g", index, band));
    decision.figures = {{"band", band}, {"bracket", index}};
    return decision;
  }

  Decision choose() override {
    for (const auto& band : bands_) {
      std::vector<const Bracket*> brackets;
      for (const auto& bracket : band) {
        if (bracket) brackets.push_back(bracket.get());
      }
      std::stable_sort(brackets.begin(), brackets.end(),
                       [&](const Bracket* a, const Bracket* b) { return completion(*a) < completion(*b); });
      for (const Bracket* bracket : brackets) {
        for (const Live& each : bracket->live) {
          const TrialStatus state = trials().state(each.trial);
          const bool resumes = state == TrialStatus::kPaused && bracket->resumable.count(each.trial) > 0;
          if (state != TrialStatus::kPending && !resumes) continue;
          Decision decision = Decision::because(
              Action::kContinue,
              words("the first %s in the bracket that is least complete, with %.0f %%",
                    resumes ? "that survived a halving" : "that waits to begin", 100 * completion(*bracket)));
          decision.run = each.trial;
          return decision;
        }
      }
    }
    return Decision::because(Action::kContinue, "no trial may run before others reach their milestone");
  }

  Decision reported(const Reported& event) override {
    if (!event.t || !event.metric)
      return Decision::because(Action::kContinue, "no time or no metric was reported");
    Bracket& bracket = *bracket_of_.at(event.trial);
    const auto own = bracket.find(event.trial);
    if (own == bracket.live.end()) return Decision::because(Action::kStop, "its bracket is finished");
    bracket.progress += *event.t - own->t;
    own->t = *event.t;
    own->score = std::isnan(*event.metric) ? -std::numeric_limits<double>::infinity() : score(*event.metric);
    bracket.resumable.erase(event.trial);
    if (goes_on(bracket, own->t)) {
      return Decision::because(Action::kContinue, words("the milestone %g is not reached", bracket.until));
    }
    return process(bracket, event.trial);
  }

  Decision completed(const Completed& event) override { return left(event.trial); }
  Decision failed(const Failed& event) override { return left(event.trial); }
  /// The others may have waited for it alone: after a halving, too, unlike Ray.
  Decision removed(const Removed& event) override {
    Decision decision = left(event.trial);
    Bracket& bracket = *bracket_of_.at(event.trial);
    if (!bracket.was_halved || bracket.live.empty() || !bracket.all_are_there()) return decision;
    return process(bracket, -1);
  }

 private:
  int first_n(int s) const {
    return static_cast<int>(std::ceil(double(levels_) / (s + 1) * std::pow(options_.reduction_factor, s)));
  }
  double first_r(int s) const { return std::trunc(options_.max_t * std::pow(options_.reduction_factor, -s)); }

  double total_work(int s) const {
    int n = first_n(s);
    const double r0 = first_r(s);
    double r = r0;
    double work = 0;
    for (int round = 0; round <= s; ++round) {
      work += n * r;
      n = static_cast<int>(std::ceil(n / options_.reduction_factor));
      r = std::trunc(std::min(r * options_.reduction_factor, options_.max_t - r0));
    }
    return work;
  }

  void open_bracket() {
    do {
      if (bands_.empty() || bands_.back().size() == static_cast<std::size_t>(levels_)) bands_.emplace_back();
      const int s = static_cast<int>(bands_.back().size());
      std::unique_ptr<Bracket> bracket;
      if (first_r(s) > 0) bracket.reset(new Bracket{first_n(s), first_r(s), s, total_work(s)});
      current_ = bracket.get();
      bands_.back().push_back(std::move(bracket));  // one that is too small takes its place, too
    } while (!current_);
  }

  double completion(const Bracket& bracket) const {
    if (bracket.is_finished(options_.stop_last_trials)) return 1;
    return std::min(bracket.progress / bracket.total_work, 1.0);
  }
  bool goes_on(const Bracket& bracket, double t) const {
    return (!options_.stop_last_trials && bracket.halves == 0) || t < bracket.until;
  }

  /// A trial left its bracket by itself. Once a bracket has been halved, nobody processes it then (so does
  /// Ray: the others may wait for ever).
  Decision left(int trial) {
    Bracket& bracket = *bracket_of_.at(trial);
    const auto own = bracket.find(trial);
    if (own == bracket.live.end()) return {};
    bracket.live.erase(own);
    bracket.resumable.erase(trial);
    if (bracket.was_halved) return Decision::because(Action::kContinue, "its bracket was halved before");
    if (bracket.is_finished(options_.stop_last_trials)) return {};
    return process(bracket, -1);
  }

  Decision process(Bracket& bracket, int running) {
    if (!bracket.all_are_there()) {
      return Decision::because(Action::kPause, words("it waits until its bracket is at %g", bracket.until));
    }
    if (bracket.is_finished(options_.stop_last_trials)) return finish(bracket);
    bracket.was_halved = true;
    auto sorted = bracket.live;
    std::size_t bad = 0;
    if (bracket.halves > 0) {
      bracket.halves -= 1;
      bracket.n = static_cast<int>(std::ceil(bracket.n / options_.reduction_factor));
      bracket.until = std::trunc(std::min(bracket.until * options_.reduction_factor, options_.max_t));
      std::stable_sort(sorted.begin(), sorted.end(),
                       [](const Live& a, const Live& b) { return a.score < b.score; });
      bad = sorted.size() - std::min(sorted.size(), static_cast<std::size_t>(bracket.n));
    }
    Decision decision;
    decision.action = Action::kPause;
    for (std::size_t i = 0; i < bad; ++i) {
      if (trials().state(sorted[i].trial) == TrialStatus::kPaused) {
        stop(bracket, sorted[i].trial, decision);
      } else {
        decision.action = Action::kStop;
      }
    }
    std::size_t resumed = 0;
    for (std::size_t i = bad; i < sorted.size(); ++i) {
      const auto& [trial, t, its_score] = sorted[i];
      if (goes_on(bracket, t)) {
        ++resumed;
        if (trials().state(trial) == TrialStatus::kPaused)
          bracket.resumable.insert(trial);
        else
          decision.action = Action::kContinue;
      } else if (bracket.is_finished(options_.stop_last_trials)) {
        if (trial == running)
          decision.action = Action::kStop;
        else
          stop(bracket, trial, decision);
      }
    }
    decision.reason = words("its bracket was halved: %zu of %zu go on to %g, the worst %zu stop", resumed,
                            sorted.size(), bracket.until, bad);
    decision.figures = {
        {"n", double(bracket.n)}, {"until", bracket.until}, {"halves", double(bracket.halves)}};
    return decision;
  }

  Decision finish(Bracket& bracket) {
    Decision decision =
        Decision::because(Action::kStop, words("its bracket is finished, at %g", bracket.until));
    for (const Live& each : std::vector<Live>(bracket.live)) {
      if (trials().state(each.trial) == TrialStatus::kPaused) stop(bracket, each.trial, decision);
    }
    return decision;
  }

  void stop(Bracket& bracket, int trial, Decision& decision) {
    decision.stop.push_back(trial);
    bracket.live.erase(bracket.find(trial));
    bracket.resumable.erase(trial);
  }

  HyperBand options_;
  int levels_ = 0;  // brackets of a band
  std::vector<std::vector<std::unique_ptr<Bracket>>> bands_;
  Bracket* current_ = nullptr;
  std::map<int, Bracket*> bracket_of_;
};

}  // namespace

std::unique_ptr<Scheduler> make(const HyperBand& options, SchedulerContext context, std::shared_ptr<Draws>) {
  require(options.max_t >= 1, "max_t", "a bracket needs at least 1");
  require(options.reduction_factor > 1, "reduction_factor", "1 or less stops nobody");
  return std::make_unique<HyperBandScheduler>(options, context.mode);
}

}  // namespace troupe::tune
