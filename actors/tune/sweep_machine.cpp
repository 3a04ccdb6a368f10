#include "actors/tune/sweep_machine.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/core/assert.hpp"

namespace troupe::tune {
namespace {

std::string label(const Trial& trial) {
  return "trial " + std::to_string(trial.number);
}

ErrorInfo error_of_scheduler(const std::exception& thrown) {
  return {ErrorCode::kTaskFailed, "the sweep failed", std::string("its scheduler threw: ") + thrown.what(),
          "the results so far are kept; see the scheduler's step()"};
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

SweepMachine::SweepMachine(SweepConfig config, std::unique_ptr<Scheduler> scheduler,
                           std::unique_ptr<Search> search, Sample sample)
    : config_(std::move(config)),
      scheduler_(std::move(scheduler)),
      search_(std::move(search)),
      sample_(std::move(sample)) {
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
    fail(out, error_of_scheduler(thrown));
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
    fail(out, error_of_scheduler(thrown));
  }
  return out;
}

/// False: there are no more.
bool SweepMachine::add_trial(SweepStep& out) {
  const int number = static_cast<int>(trials_.size());
  if (number == config_.trials) return false;
  search_->begin(number);
  trials_.push_back({.number = number, .config = sample_(*search_)});
  plans_.emplace_back();
  Decision decision = scheduler_->step(Added{number, trials_.back().config});
  if (decision.config) trials_.back().config = *std::exchange(decision.config, std::nullopt);
  carry_out(decision, out);
  return true;
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
    const bool stops = trial->state == TrialState::kEnding && plan_of(*trial).fate == TrialState::kStopped;
    if (stops && e.epoch >= trial->epoch)
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
  decide(*trial, out);
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
    trial->config = exploit.config;
    trial->epoch = plan_of(*donor).saved_epoch;
    trial->why = decision.reason;
    plan_of(*trial).from = plan_of(*trial).saved = plan_of(*donor).saved;
    plan_of(*trial).saved_epoch = trial->epoch;
  }
  for (const int number : decision.stop) {
    Trial* trial = find(number);
    if (trial == nullptr || trial->state != TrialState::kWaiting) continue;
    trial->state = TrialState::kStopped;
    trial->why = decision.reason;
    search_->tell({number, Ended::How::kPruned, trial->value.value_or(std::nan("")),
                   static_cast<double>(trial->epoch)});
  }
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
  search_->tell({trial.number, stopped ? Ended::How::kPruned : Ended::How::kComplete,
                 trial.value.value_or(std::nan("")), static_cast<double>(trial.epoch)});
}

// Ends.

void SweepMachine::on(const TrialEnded& e, SweepStep& out) {
  Trial* trial = find(e.trial);
  if (trial == nullptr || (trial->state != TrialState::kRunning && trial->state != TrialState::kEnding)) {
    out.reason = "ignored: trial " + std::to_string(e.trial) + " does not run";
    return;
  }
  if (trial->state == TrialState::kRunning) {  // its job's own rule ended it early
    trial->why = "its job ended by itself";
    complete(*trial, TrialState::kFinished, out);
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
  if (trial->failures <= config_.retries) {
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
  trial->why = "failed " + std::to_string(trial->failures) + (trial->failures == 1 ? " time" : " times");
  out.actions.push_back(TellUser{label(*trial) + " " + trial->why + ", the others go on: " + e.error});
  carry_out(scheduler_->step(Failed{trial->number, false}), out);
  search_->tell({trial->number, Ended::How::kFailed, std::nan(""), static_cast<double>(trial->epoch)});
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
    if (trial.state != TrialState::kWaiting) continue;
    trial.state = TrialState::kStopped;
    trial.why = "nothing else runs, and the scheduler does not let it go on";
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

const Trial* SweepMachine::best() const {
  return best_of(
      [](const Trial& t) { return t.state == TrialState::kFinished || t.state == TrialState::kStopped; });
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
