#include "actors/tune/scheduler.hpp"

#include "actors/tune/trial_scheduler.hpp"
#include "actors/tune/words.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/error.hpp"

namespace troupe::tune {
namespace {

class SeededDraws final : public Draws {
 public:
  explicit SeededDraws(std::uint64_t seed) : random_(mix(0x73636865, seed)) {}
  double uniform() override { return random_.uniform(); }
  std::size_t choice(std::size_t count) override { return random_.below(count); }
  Value sample(const Parameter& parameter) override { return draw(parameter.domain, random_); }

 private:
  SeededRandom random_;
};

}  // namespace

std::string_view name_of(Action action) {
  static constexpr std::string_view kNames[] = {"continue", "pause", "stop", "exploit"};
  return kNames[static_cast<int>(action)];
}

std::unique_ptr<Draws> seeded_draws(std::uint64_t seed) {
  return std::make_unique<SeededDraws>(seed);
}

void require(bool holds, const char* option, const char* why) {
  if (!holds)
    throw BadConfig(std::string("tune: the scheduler's ") + option + " makes no sense", why, "change it");
}

std::unique_ptr<Scheduler> make_scheduler(const AnyScheduler& options, SchedulerContext context,
                                          std::shared_ptr<Draws> draws) {
  if (!draws) draws = seeded_draws(context.seed);
  return std::visit([&](const auto& each) { return make(each, std::move(context), std::move(draws)); },
                    options);
}

void TrialList::add(int trial) {
  Entry& entry = entries_[trial];
  if (entry.place > 0) {
    set(trial, TrialStatus::kEnded);
    places_.erase(entry.place);
  }
  entry.place = ++next_place_;
  places_[entry.place] = trial;
  set(trial, TrialStatus::kPending);
}

void TrialList::set(int trial, TrialStatus state) {
  const auto at = entries_.find(trial);
  TROUPE_ASSERT(at != entries_.end(), "an event is of a trial that was added");
  pending_.erase(at->second.place);
  paused_.erase(at->second.place);
  at->second.state = state;
  if (state == TrialStatus::kPending) pending_[at->second.place] = trial;
  if (state == TrialStatus::kPaused) paused_[at->second.place] = trial;
}

TrialStatus TrialList::state(int trial) const {
  const auto at = entries_.find(trial);
  TROUPE_ASSERT(at != entries_.end(), "an event is of a trial that was added");
  return at->second.state;
}

bool TrialList::waits(int trial) const {
  return state(trial) == TrialStatus::kPending || state(trial) == TrialStatus::kPaused;
}

std::optional<int> TrialList::first_waiting() const {
  if (!pending_.empty()) return pending_.begin()->second;
  if (!paused_.empty()) return paused_.begin()->second;
  return std::nullopt;
}

std::vector<int> TrialList::in_order() const {
  std::vector<int> trials;
  for (const auto& [place, trial] : places_) trials.push_back(trial);
  return trials;
}

Decision TrialScheduler::choose() {
  Decision decision;
  decision.run = trials_.first_waiting();
  decision.reason = !decision.run                                           ? "no trial waits"
                    : trials_.state(*decision.run) == TrialStatus::kPending ? "the first that waits to begin"
                                                                            : "the first that is paused";
  return decision;
}

Decision TrialScheduler::step(const Event& event) {
  Decision decision;
  if (const auto* e = std::get_if<Added>(&event)) {
    trials_.add(e->trial);
    decision = added(*e);
  } else if (std::holds_alternative<Choose>(event)) {
    decision = choose();
    if (decision.run) trials_.set(*decision.run, TrialStatus::kRunning);
  } else if (const auto* r = std::get_if<Reported>(&event)) {
    trials_.set(r->trial, TrialStatus::kRunning);
    decision = reported(*r);
    if (decision.action == Action::kPause || decision.action == Action::kExploit) {
      trials_.set(r->trial, TrialStatus::kPaused);
    }
  } else if (const auto* c = std::get_if<Completed>(&event)) {
    trials_.set(c->trial, TrialStatus::kEnded);
    decision = completed(*c);
  } else if (const auto* f = std::get_if<Failed>(&event)) {
    trials_.set(f->trial, f->retry ? TrialStatus::kEnded : TrialStatus::kFailed);
    decision = failed(*f);
  } else if (const auto* out = std::get_if<Removed>(&event)) {
    trials_.set(out->trial, TrialStatus::kEnded);
    decision = removed(*out);
  }
  for (const int trial : decision.stop) trials_.set(trial, TrialStatus::kEnded);
  return decision;
}

namespace {

class FifoScheduler final : public TrialScheduler {
 public:
  using TrialScheduler::TrialScheduler;
  Decision reported(const Reported&) override {
    return Decision::because(Action::kContinue, "every trial runs to its end");
  }
};

}  // namespace

std::unique_ptr<Scheduler> make(const Fifo&, SchedulerContext context, std::shared_ptr<Draws>) {
  return std::make_unique<FifoScheduler>(context.mode);
}

}  // namespace troupe::tune
