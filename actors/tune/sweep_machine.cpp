#include "actors/tune/sweep_machine.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/tune/space.hpp"
#include "runtime/core/assert.hpp"
#include "runtime/core/count.hpp"

namespace troupe::tune {
namespace {

std::string label(const Trial& trial) {
  return "trial " + std::to_string(trial.number);
}

struct SearchThrew : std::runtime_error {
  using std::runtime_error::runtime_error;
};

ErrorInfo error_of(const std::exception& thrown) {
  const bool search = dynamic_cast<const SearchThrew*>(&thrown) != nullptr;
  return {ErrorCode::kTaskFailed, "the sweep failed",
          std::string(search ? "its search threw: " : "its scheduler threw: ") + thrown.what(),
          std::string("the results so far are kept; see the ") +
              (search ? "search's suggest() and tell()" : "scheduler's step()")};
}

/// Asks the search; what it throws ends the sweep.
template <class Ask>
void ask_search(Ask ask) {
  try {
    ask();
  } catch (const std::exception& thrown) {
    throw SearchThrew(thrown.what());
  }
}

}  // namespace

std::string_view name_of(TrialState state) {
  switch (state) {
    case TrialState::kWaiting:
      return "waiting";
    case TrialState::kRunning:
      return "running";
    case TrialState::kEnding:
      return "ending";
    case TrialState::kFinished:
      return "finished";
    case TrialState::kStopped:
      return "stopped";
    case TrialState::kFailed:
      return "failed";
  }
  return "?";
}

std::vector<Repeats> repeats_of(const std::vector<Trial>& trials, int repeats) {
  std::vector<Repeats> all;
  for (std::size_t first = 0; first < trials.size(); first += static_cast<std::size_t>(repeats)) {
    Repeats one{.config = trials[first].config};
    std::vector<double> values;
    for (std::size_t i = first; i < std::min(trials.size(), first + static_cast<std::size_t>(repeats)); ++i) {
      const bool ended = trials[i].state == TrialState::kFinished || trials[i].state == TrialState::kStopped;
      if (ended && trials[i].value) values.push_back(*trials[i].value);
    }
    for (const double value : values) one.mean += value / static_cast<double>(values.size());
    double squares = 0;
    for (const double value : values) squares += (value - one.mean) * (value - one.mean);
    one.trials = static_cast<int>(values.size());
    if (one.trials > 1) one.deviation = std::sqrt(squares / (one.trials - 1));
    all.push_back(std::move(one));
  }
  return all;
}

SweepMachine::SweepMachine(SweepConfig config, std::unique_ptr<Scheduler> scheduler,
                           std::unique_ptr<Search> search, Sample sample, Settle settle)
    : config_(std::move(config)),
      scheduler_(std::move(scheduler)),
      search_(std::move(search)),
      sample_(std::move(sample)),
      settle_(std::move(settle)) {
  TROUPE_ASSERT(config_.trials >= 1 && config_.max_concurrent >= 1 && config_.epochs >= 1,
                "trials, places and epochs are at least 1");
}

SweepStep SweepMachine::start() {
  SweepStep out;
  try {
    // Who shares the places out must know who waits for one.
    while (!config_.ask_late && add_trial(out)) {
    }
    fill(out);
  } catch (const std::exception& thrown) {
    fail(out, error_of(thrown));
  }
  return out;
}

SweepStep SweepMachine::step(const SweepEvent& event) {
  SweepStep out;
  if (over_) return out;
  try {
    std::visit([&](const auto& e) { on(e, out); }, event);
    if (!over_) fill(out);
  } catch (const std::exception& thrown) {
    fail(out, error_of(thrown));
  }
  return out;
}

/// False: there are no more.
bool SweepMachine::add_trial(SweepStep& out) {
  const int number = static_cast<int>(trials_.size());
  if (number == config_.trials) return false;
  trials_.push_back({.number = number});
  plans_.emplace_back();
  Trial& trial = trials_.back();
  const int which = number / config_.repeats;
  if (number % config_.repeats != 0) {
    const std::size_t leader = trials_.size() - 1 - static_cast<std::size_t>(number % config_.repeats);
    trial.config = trials_[leader].config;
    plans_.back().refused = plans_[leader].refused;
  } else {
    ask_search([&] { search_->begin(which); });
    if (static_cast<std::size_t>(which) < config_.first.size()) {
      trial.config = config_.first[static_cast<std::size_t>(which)];
      ask_search([&] { search_->use(which, trial.config); });
    } else {
      set_config(trial, [&] { return sample_(*search_); });
    }
  }
  Decision decision = scheduler_->step(Added{number, trials_.back().config});
  const auto filled = std::exchange(decision.config, std::nullopt);
  if (filled && plans_.back().refused.empty())
    set_config(trials_.back(), [&] { return settle_ ? settle_(*filled) : *filled; });
  carry_out(decision, out);
  return true;
}

/// One that no job can have stays with the trial, which fails when it is its turn.
void SweepMachine::set_config(Trial& trial, const std::function<Config()>& make) {
  plan_of(trial).refused.clear();
  try {
    trial.config = make();
  } catch (const BadTrial& refused) {
    trial.config = refused.config;
    plan_of(trial).refused = refused.what();
  } catch (const std::exception& thrown) {
    throw SearchThrew(thrown.what());
  }
}

Trial* SweepMachine::find(int number) {
  const bool known = number >= 0 && static_cast<std::size_t>(number) < trials_.size();
  return known ? &trials_[static_cast<std::size_t>(number)] : nullptr;
}

// Reports.

void SweepMachine::on(const TrialReported& e, SweepStep& out) {
  Trial* trial = find(e.trial);
  if (trial == nullptr || (trial->state != TrialState::kRunning && trial->state != TrialState::kEnding)) {
    out.reason = "ignored: trial " + std::to_string(e.trial) + " does not run";
    return;
  }
  if (e.epoch <= trial->epoch || trial->state == TrialState::kEnding) {
    // It was started again, and has the same bits. Where it was told to stop before, it is told again.
    out.decision = "again";
    out.reason = "epoch " + std::to_string(e.epoch) + " was reported before";
    if (plan_of(*trial).stops && e.epoch >= trial->epoch)
      out.actions.push_back(StopTrial{e.trial});
    else if (e.epoch < config_.epochs)
      out.actions.push_back(GoOnTrial{e.trial});
    return;
  }
  if (!check_metric(e, out)) return;
  trial->epoch = e.epoch;
  trial->metrics = e.metrics;
  trial->value.reset();
  if (const auto at = e.metrics.find(config_.metric); at != e.metrics.end()) trial->value = at->second;
  if (trial->value && std::isnan(*trial->value) && !std::exchange(told_of_nan_, true))
    out.actions.push_back(
        TellUser{label(*trial) + " reported " + config_.metric +
                 " = nan: not a number counts as the worst value, here and in every trial"});
  if (e.epoch >= config_.epochs) {
    out.decision = "finish";
    out.reason = trial->why = "all epochs done";
    return complete(*trial, TrialState::kFinished, out);
  }
  if (!reached_target(*trial, out)) decide(*trial, out);
}

bool SweepMachine::reached_target(Trial& trial, SweepStep& out) {
  if (!config_.target || !trial.value || std::isnan(*trial.value) || is_better(*config_.target, *trial.value))
    return false;
  out.decision = "finish";
  out.reason = trial.why = "the target is reached";
  out.actions.push_back(StopTrial{trial.number});
  plan_of(trial).stops = true;
  complete(trial, TrialState::kFinished, out);
  take_out(trial, out);  // before its time, as far as those that wait for it know
  return true;
}

/// The first report says which metrics there are.
bool SweepMachine::check_metric(const TrialReported& e, SweepStep& out) {
  if (metric_known_ || e.metrics.contains(config_.metric)) return metric_known_ = true;
  std::string all;
  for (const auto& [name, value] : e.metrics) all += (all.empty() ? "" : ", ") + name;
  fail(out, {ErrorCode::kBadConfig, "cannot tune",
             "there is no metric '" + config_.metric + "': the job reports " + all,
             "name one of them as the sweep's metric, or count it in the job's loss() or evaluate()"});
  return false;
}

void SweepMachine::decide(Trial& trial, SweepStep& out) {
  const Decision decision =
      scheduler_->step(Reported{trial.number, static_cast<double>(trial.epoch), trial.value});
  out.decision = std::string(name_of(decision.action));
  out.reason = trial.why = decision.reason;
  if (decision.action == Action::kPause) {
    // Before what the decision has for others: they may go on from this very state.
    out.actions.push_back(PauseTrial{trial.number, save(trial)});
    trial.state = TrialState::kWaiting;
  }
  carry_out(decision, out);
  if (decision.action == Action::kContinue) out.actions.push_back(GoOnTrial{trial.number});
  if (decision.action == Action::kStop) {
    out.actions.push_back(StopTrial{trial.number});
    plan_of(trial).stops = true;
    complete(trial, TrialState::kStopped, out);
  }
}

/// All of a decision but what it says of the trial that reported.
void SweepMachine::carry_out(const Decision& decision, SweepStep& out) {
  for (const int number : decision.save) {
    Trial* trial = find(number);
    if (trial != nullptr && trial->state == TrialState::kRunning)  // else it was saved when it paused
      out.actions.push_back(SaveState{number, save(*trial)});
  }
  for (const Exploit& exploit : decision.exploits) {
    Trial* trial = find(exploit.trial);
    const Trial* donor = find(exploit.donor);
    if (trial == nullptr || donor == nullptr) continue;
    if (trial->state != TrialState::kRunning && trial->state != TrialState::kWaiting) continue;
    if (trial->state == TrialState::kRunning) out.actions.push_back(DropTrial{trial->number});
    trial->state = TrialState::kWaiting;
    set_config(*trial, [&] { return settle_ ? settle_(exploit.config) : exploit.config; });
    trial->epoch = plan_of(*donor).saved_epoch;
    trial->value.reset();
    trial->metrics.clear();
    trial->why = decision.reason;
    trial->clones.push_back({trial->number, donor->number, trial->epoch, trial->config});
    out.clones.push_back(trial->clones.back());
    plan_of(*trial).from = plan_of(*trial).saved = plan_of(*donor).saved;
    plan_of(*trial).saved_epoch = trial->epoch;
  }
  for (const int number : decision.stop) {
    Trial* trial = find(number);
    if (trial == nullptr || trial->state != TrialState::kWaiting) continue;
    stop_waiting(*trial, decision.reason, out);
    tell_search(*trial, Ended::How::kPruned);
  }
}

void SweepMachine::stop_waiting(Trial& trial, std::string why, SweepStep& out) {
  trial.state = TrialState::kStopped;
  trial.why = std::move(why);
  out.stopped.push_back(trial);
}

StateNumber SweepMachine::save(const Trial& trial) {
  Plan& plan = plan_of(trial);
  plan.from = plan.saved = ++last_state_;
  plan.saved_epoch = trial.epoch;
  return last_state_;
}

std::set<StateNumber> SweepMachine::states_needed() const {
  std::set<StateNumber> needed;
  for (const Trial& trial : trials_) {
    const Plan& plan = plans_[static_cast<std::size_t>(trial.number)];
    if (plan.from && !trial.is_over()) needed.insert(*plan.from);
    if (plan.saved && !over_) needed.insert(*plan.saved);
  }
  return needed;
}

/// The scheduler and the search hear of it at once: what they decide next does not hang on how soon its
/// processes are gone.
void SweepMachine::complete(Trial& trial, TrialState fate, SweepStep& out) {
  const bool stopped = fate == TrialState::kStopped;
  trial.state = TrialState::kEnding;
  plan_of(trial).fate = fate;
  carry_out(scheduler_->step(Completed{trial.number, static_cast<double>(trial.epoch), trial.value, stopped}),
            out);
  tell_search(trial, stopped ? Ended::How::kPruned : Ended::How::kComplete);
}

// Ends.

void SweepMachine::on(const TrialEnded& e, SweepStep& out) {
  Trial* trial = find(e.trial);
  if (trial == nullptr || (trial->state != TrialState::kRunning && trial->state != TrialState::kEnding)) {
    out.reason = "ignored: trial " + std::to_string(e.trial) + " does not run";
    return;
  }
  if (trial->state == TrialState::kRunning) {  // its job's own rule ended it early
    const bool is_finite = e.not_finite_step == 0;
    if (!is_finite) trial->value = std::nan("");
    trial->why = is_finite ? "its job ended by itself"
                           : "loss is not finite at step " + std::to_string(e.not_finite_step);
    complete(*trial, is_finite ? TrialState::kFinished : TrialState::kStopped, out);
    take_out(*trial, out);
  }
  trial->state = plan_of(*trial).fate;
  trial->state_hash = e.state_hash;
  out.decision = std::string(name_of(trial->state));
  out.reason = trial->why;
}

/// A failure that is answered by another try leaves no trace in what is decided: the trial comes to the same
/// reports.
void SweepMachine::on(const TrialFailed& e, SweepStep& out) {
  Trial* trial = find(e.trial);
  if (trial == nullptr || (trial->state != TrialState::kRunning && trial->state != TrialState::kEnding)) {
    out.reason = "ignored: trial " + std::to_string(e.trial) + " does not run";
    return;
  }
  ++trial->failures;
  trial->error = e.error;
  out.reason = e.error;
  if (!e.is_final && trial->failures <= config_.retries) {
    out.decision = "retry";
    out.actions.push_back(TellUser{label(*trial) + " failed and is tried again (" +
                                   std::to_string(trial->failures) + " of " +
                                   std::to_string(config_.retries) + "): " + e.error});
    out.actions.push_back(StartTrial{trial->number, plan_of(*trial).from});
    return;
  }
  if (trial->state == TrialState::kEnding) {
    trial->state = plan_of(*trial).fate;
    out.decision = std::string(name_of(trial->state));
    out.actions.push_back(TellUser{label(*trial) + " failed at its end, its results count: " + e.error});
    return;
  }
  out.decision = "fail";
  trial->state = TrialState::kFailed;
  trial->why = "failed " + count_of(trial->failures, "time");
  out.actions.push_back(TellUser{label(*trial) + " " + trial->why + ", the others go on: " + e.error});
  carry_out(scheduler_->step(Failed{trial->number, false}), out);
  take_out(*trial, out);
  tell_search(*trial, Ended::How::kFailed);
}

/// Of all trials of a config at once.
void SweepMachine::tell_search(const Trial& trial, Ended::How how) {
  plan_of(trial).how = how;
  Ended ended{trial.number / config_.repeats, how, trial.value.value_or(std::nan("")),
              static_cast<double>(trial.epoch)};
  if (config_.repeats > 1) {
    const auto first = static_cast<std::size_t>(ended.trial) * static_cast<std::size_t>(config_.repeats);
    double sum = 0;
    int failed = 0;
    for (std::size_t i = first; i < first + static_cast<std::size_t>(config_.repeats); ++i) {
      if (i >= plans_.size() || !plans_[i].how) return;
      const bool counts = *plans_[i].how != Ended::How::kFailed;
      failed += !counts;
      if (counts) sum += trials_[i].value.value_or(std::nan(""));
    }
    ended.how = failed == config_.repeats ? Ended::How::kFailed : Ended::How::kComplete;
    ended.value = sum / (config_.repeats - failed);
  }
  ask_search([&] { search_->tell(ended); });
}

/// Who waits for it in vain goes on.
void SweepMachine::take_out(const Trial& trial, SweepStep& out) {
  carry_out(scheduler_->step(Removed{trial.number}), out);
}

void SweepMachine::on(const SweepInterrupted&, SweepStep& out) {
  out.reason = "interrupted";
  finish(out);
}

/// Gives free places to whom the scheduler names, and ends the sweep when nothing is left to run.
void SweepMachine::fill(SweepStep& out) {
  while (places_taken() < config_.max_concurrent) {
    const bool waits = std::any_of(trials_.begin(), trials_.end(),
                                   [](const Trial& t) { return t.state == TrialState::kWaiting; });
    if (!waits && !add_trial(out)) break;
    const Decision decision = scheduler_->step(Choose{});
    carry_out(decision, out);
    Trial* trial = decision.run ? find(*decision.run) : nullptr;
    if (trial == nullptr || trial->state != TrialState::kWaiting) {
      if (add_trial(out)) continue;
      break;
    }
    trial->state = TrialState::kRunning;
    out.actions.push_back(StartTrial{trial->number, plan_of(*trial).from});
  }
  if (places_taken() > 0) return;
  for (Trial& trial : trials_) {
    if (trial.state == TrialState::kWaiting)
      stop_waiting(trial, "nothing else runs, and the scheduler does not let it go on", out);
  }
  finish(out);
}

void SweepMachine::finish(SweepStep& out) {
  drop_all(out);
  out.actions.push_back(SweepOver{});
}

void SweepMachine::fail(SweepStep& out, ErrorInfo error) {
  drop_all(out);
  out.actions.push_back(SweepOver{true, std::move(error)});
}

void SweepMachine::drop_all(SweepStep& out) {
  over_ = true;
  for (Trial& trial : trials_) {
    if (trial.state != TrialState::kRunning && trial.state != TrialState::kEnding) continue;
    out.actions.push_back(DropTrial{trial.number});
    trial.state = TrialState::kWaiting;
  }
}

// What came of it.

int SweepMachine::places_taken() const {
  return static_cast<int>(std::count_if(trials_.begin(), trials_.end(), [](const Trial& t) {
    return t.state == TrialState::kRunning || t.state == TrialState::kEnding;
  }));
}

bool SweepMachine::is_better(double a, double b) const {
  if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
  return config_.mode == Mode::kMax ? a > b : a < b;
}

template <class Filter>
const Trial* SweepMachine::best_of(Filter filter) const {
  const Trial* best = nullptr;
  for (const Trial& trial : trials_) {
    if (!trial.value || !filter(trial)) continue;
    if (best == nullptr || is_better(*trial.value, *best->value)) best = &trial;
  }
  return best;
}

const Trial* SweepMachine::best_of_config(int which) const {
  return best_of([&](const Trial& trial) {
    const bool ended_well = trial.state == TrialState::kFinished || trial.state == TrialState::kStopped;
    return ended_well && trial.number / config_.repeats == which;
  });
}

const Trial* SweepMachine::best() const {
  if (config_.repeats == 1) {
    return best_of(
        [](const Trial& t) { return t.state == TrialState::kFinished || t.state == TrialState::kStopped; });
  }
  const auto configs = repeats_of(trials_, config_.repeats);
  const Repeats* best = nullptr;
  for (const Repeats& each : configs) {
    if (each.trials > 0 && (best == nullptr || is_better(each.mean, best->mean))) best = &each;
  }
  return best == nullptr ? nullptr : best_of_config(static_cast<int>(best - configs.data()));
}

const Trial* SweepMachine::best_beside(const Trial& trial) const {
  return config_.repeats == 1 ? best() : best_of_config(trial.number / config_.repeats);
}

const Trial* SweepMachine::best_so_far() const {
  return best_of([](const Trial& t) { return t.state != TrialState::kFailed; });
}

std::vector<StartTrial> SweepMachine::running() const {
  std::vector<StartTrial> all;
  for (const Trial& trial : trials_) {
    if (trial.state != TrialState::kRunning && trial.state != TrialState::kEnding) continue;
    all.push_back({trial.number, plans_[static_cast<std::size_t>(trial.number)].from});
  }
  return all;
}

}  // namespace troupe::tune
