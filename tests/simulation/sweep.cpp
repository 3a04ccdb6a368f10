#include "tests/simulation/sweep.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "actors/tune/actor_trial.hpp"
#include "tests/simulation/cluster.hpp"

namespace troupe::sim {
namespace {

const std::vector<tune::Parameter>& space() {
  static const std::vector<tune::Parameter> all{{"lr", tune::log_uniform(1e-4, 1).domain, false}};
  return all;
}

double lr_of(const tune::Config& config) {
  return tune::number_of(*config.find("lr"));
}

std::unique_ptr<tune::SweepMachine> machine_of(const SweepScenario& of) {
  const tune::Mode mode = of.config.mode;
  return std::make_unique<tune::SweepMachine>(
      of.config, tune::make_scheduler(of.scheduler, {mode, of.seed, space()}),
      tune::make_search(tune::RandomSearch{}, space(), mode, of.seed), [](tune::Search& search) {
        return tune::Config{{{"lr", search.suggest(space().front())}}};
      });
}

int trial_of(const tune::SweepEvent& event) {
  return std::visit(
      [](const auto& e) {
        if constexpr (requires { e.trial; }) return e.trial;
        return -1;
      },
      event);
}

/// The same sweep without a cluster, a fault or a pause: its trials by turns.
std::unique_ptr<tune::SweepMachine> undisturbed(const SweepScenario& of) {
  struct Run {
    Walk walk;
    bool stops = false;
  };
  auto machine = machine_of(of);
  std::map<int, Run> runs;
  std::map<tune::StateNumber, Walk> states;
  const auto take = [&](const tune::SweepStep& step) {
    for (const tune::SweepAction& action : step.actions) {
      if (const auto* a = std::get_if<tune::StartTrial>(&action))
        runs[a->trial] = {a->from ? states.at(*a->from) : Walk(), false};
      if (const auto* a = std::get_if<tune::StopTrial>(&action)) runs.at(a->trial).stops = true;
      if (const auto* a = std::get_if<tune::SaveState>(&action)) states[a->state] = runs.at(a->trial).walk;
      if (const auto* a = std::get_if<tune::PauseTrial>(&action)) {
        states[a->state] = runs.at(a->trial).walk;
        runs.erase(a->trial);
      }
      if (const auto* a = std::get_if<tune::DropTrial>(&action)) runs.erase(a->trial);
    }
  };
  take(machine->start());
  while (!machine->is_over()) {
    const int trial = runs.begin()->first;
    Run& run = runs.begin()->second;
    if (run.stops || run.walk.epoch == of.config.epochs) {
      runs.erase(trial);
      take(machine->step(tune::TrialEnded{trial, "hash"}));
      continue;
    }
    run.walk.step(lr_of(machine->trials()[static_cast<std::size_t>(trial)].config));
    take(machine->step(tune::TrialReported{trial, run.walk.epoch, {{"accuracy", run.walk.value()}}}));
  }
  return machine;
}

}  // namespace

struct WalkSettings {
  double lr = 0;
};

/// A trial.
class WalkActor {
 public:
  explicit WalkActor(WalkSettings of) : settings_(of) {}
  report::Metrics step() {
    sleep_for(Hosted::current().cluster.world.between(milliseconds(1), milliseconds(30)));
    walk_.step(settings_.lr);
    return {{"accuracy", walk_.value()}};
  }
  wire::Bytes save() { return wire::encode(walk_); }
  void load(wire::Bytes state) { walk_ = wire::decode<Walk>(state).value(); }

 private:
  const WalkSettings settings_;
  Walk walk_;
};

SweepScenario draw_sweep(std::uint64_t seed, int most_places) {
  SeededRandom random(mix(seed, 11));
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random.below(high - low + 1)); };
  SweepScenario s;
  s.seed = seed;
  s.config = {.trials = pick(1, 8),
              .max_concurrent = pick(1, most_places),
              .epochs = pick(1, 9),
              .metric = "accuracy"};
  // What a fault costs a trial is one of its tries: who is to come to the same best has enough of them.
  s.config.retries = pick(0, 3) == 0 ? 1 : 1'000'000;
  switch (pick(0, 4)) {
    case 0:
      s.scheduler = tune::Fifo{};
      s.any_order = true;
      break;
    case 1:
      s.scheduler = tune::Asha{.max_t = 9, .reduction_factor = 3};
      break;
    case 2:
      s.scheduler = tune::HyperBand{.max_t = 9};
      break;
    case 3:
      s.scheduler = tune::Pbt{.perturbation_interval = 2};
      break;
    default:
      s.scheduler = tune::Pbt{.perturbation_interval = 2, .synch = true};
      s.any_order = true;
  }
  return s;
}

void Walk::step(double lr) {
  ++epoch;
  path = mix(path ^ std::bit_cast<std::uint64_t>(lr), static_cast<std::uint64_t>(epoch));
}
double Walk::value() const {
  return 1 - 0.5 / (epoch + 1) + 1e-3 * static_cast<double>(path % 1000);
}

// The referee.

SweepReferee::SweepReferee(World& world, const SweepScenario& scenario)
    : world_(world), scenario_(scenario) {}

void SweepReferee::decided(const tune::SweepEvent& event, const tune::Trial& before,
                           const tune::SweepStep& step) {
  const std::string who = "trial " + std::to_string(before.number);
  if (const auto* e = std::get_if<tune::TrialReported>(&event)) {
    ++reports;
    if (!told_.emplace(e->trial, before.clones.size(), e->epoch).second)
      world_.violation(who + "'s epoch " + std::to_string(e->epoch) + " counts twice");
    Walk walk = walks_[e->trial][before.epoch];
    if (e->epoch != before.epoch + 1 || walk.epoch != before.epoch)
      return world_.violation(who + " reports epoch " + std::to_string(e->epoch) + " after " +
                              std::to_string(before.epoch));
    walk.step(lr_of(before.config));
    walks_[e->trial][e->epoch] = walk;
    if (e->metrics.at("accuracy") != walk.value())
      world_.violation(who + " reports what its config does not come to after epoch " +
                       std::to_string(e->epoch));
  }
  failures += std::holds_alternative<tune::TrialFailed>(event);
  for (const tune::Clone& clone : step.clones) {
    ++clones;
    walks_[clone.trial][clone.epoch] = walks_[clone.donor][clone.epoch];
  }
  const bool ends = step.decision == "finished" || step.decision == "stopped" || step.decision == "fail";
  if (ends && !ended_.insert(before.number).second) world_.violation(who + " ends twice");
  for (const tune::Trial& stopped : step.stopped) {
    if (!ended_.insert(stopped.number).second)
      world_.violation("trial " + std::to_string(stopped.number) + " ends twice");
  }
}

void SweepReferee::over(const tune::SweepMachine& machine) {
  if (static_cast<int>(ended_.size()) != scenario_.config.trials)
    return world_.violation("of " + std::to_string(scenario_.config.trials) + " trials " +
                            std::to_string(ended_.size()) + " have ended");
  for (const tune::Trial& trial : machine.trials()) {
    if (!trial.is_over())
      return world_.violation("trial " + std::to_string(trial.number) + " is not over, and the sweep is");
  }
  const bool same =
      scenario_.config.retries > 1 && (scenario_.any_order || scenario_.config.max_concurrent == 1);
  if (!same) return;
  const auto other = undisturbed(scenario_);
  const tune::Trial* best = machine.best();
  const tune::Trial* its = other->best();
  if ((best == nullptr) != (its == nullptr) ||
      (best != nullptr && (best->number != its->number || best->value != its->value)))
    return world_.violation("the best is not that of the undisturbed sweep");
  for (std::size_t i = 0; i < machine.trials().size(); ++i) {
    const tune::Trial &one = machine.trials()[i], &two = other->trials()[i];
    if (one.config != two.config || one.state != two.state || one.epoch != two.epoch ||
        one.value != two.value)
      return world_.violation("trial " + std::to_string(i) + " has not come to what it comes to undisturbed");
  }
}

// The program.

SweepProgram::SweepProgram(Driver& driver)
    : driver_(driver),
      disk_(*driver.cluster.sweep),
      scenario_(*driver.cluster.scenario.sweep),
      machine_(machine_of(scenario_)) {}
SweepProgram::~SweepProgram() = default;

bool SweepProgram::goes_on() const {
  return driver_.alive && !driver_.has_lost_node();
}

bool SweepProgram::run() {
  const tune::SweepStep first = machine_->start();
  if (disk_.lines.empty()) {
    carry_out(first);
  } else {
    replay();
    if (!machine_->is_over())
      for (const tune::StartTrial& start : machine_->running()) act(start);
  }
  while (goes_on() && !machine_->is_over()) {
    std::vector<int> running;
    for (const auto& [trial, run] : runs_) running.push_back(trial);
    bool news = !failures_.empty();
    for (const int trial : running) {
      if (!goes_on()) return false;
      if (runs_.contains(trial)) news = look_at(trial) || news;
    }
    while (goes_on() && !failures_.empty() && !machine_->is_over()) {
      const tune::TrialFailed failed = failures_.front();
      failures_.erase(failures_.begin());
      feed(failed);
    }
    if (!news) sleep_for(milliseconds(5));
  }
  if (!goes_on()) return false;
  runs_.clear();
  disk_.over(*machine_);
  return true;
}

void SweepProgram::replay() {
  for (std::size_t at = 0; at < disk_.lines.size();) {
    const auto event = tune::read_record(disk_.lines[at]).value();
    const tune::Trial before = machine_->trials()[static_cast<std::size_t>(trial_of(event))];
    const tune::SweepStep step = machine_->step(event);
    decided_.push_back(event);
    for (const std::string& line : tune::record_lines(event, before, step)) {
      if (at == disk_.lines.size()) disk_.lines.push_back(line);  // it died while it wrote the rest
      if (disk_.lines[at++] != line)
        return driver_.cluster.world.violation("a program that resumes decides otherwise: " + line);
    }
  }
}

/// As Sweep::look_at.
bool SweepProgram::look_at(int trial) {
  try {
    if (const auto event = runs_.at(trial)->next_event()) {
      if (!goes_on()) return true;
      if (const auto* epoch = std::get_if<report::EpochDone>(&*event))
        feed(tune::TrialReported{trial, epoch->epoch, epoch->metrics});
      return true;
    }
    if (!goes_on() || !runs_.at(trial)->is_over()) return false;
    const std::string hash = runs_.at(trial)->wait().state_hash;
    runs_.erase(trial);
    feed(tune::TrialEnded{trial, hash});
  } catch (const Error& error) {
    if (!goes_on()) return true;
    runs_.erase(trial);
    failures_.push_back({trial, error.info().message()});
  }
  return true;
}

/// As Sweep::feed: a state is there before the line that says so, the line before what it decides is done.
void SweepProgram::feed(const tune::SweepEvent& event) {
  const int trial = trial_of(event);
  const tune::Trial before = machine_->trials()[static_cast<std::size_t>(trial)];
  const tune::SweepStep step = machine_->step(event);
  for (const tune::SweepAction& action : step.actions) {
    const auto* saves = std::get_if<tune::SaveState>(&action);
    const auto* pauses = std::get_if<tune::PauseTrial>(&action);
    if (saves == nullptr && pauses == nullptr) continue;
    const int of = saves != nullptr ? saves->trial : pauses->trial;
    if (save(of, saves != nullptr ? saves->state : pauses->state)) continue;
    if (!goes_on()) return;
    forget_last_step();
    const tune::TrialFailed failed = failures_.back();
    std::erase_if(failures_, [&](const tune::TrialFailed& each) { return each.trial == of; });
    feed(failed);
    if (of != trial && goes_on()) feed(event);
    return;
  }
  if (!step.decision.empty() && step.decision != "again") {
    const auto lines = tune::record_lines(event, before, step);
    disk_.decided(event, before, step);
    decided_.push_back(event);
    const bool forgets =
        driver_.cluster.scenario.floor.forget_reports && std::holds_alternative<tune::TrialReported>(event);
    if (!forgets && !write(lines)) return;
  }
  carry_out(step);
  if (!goes_on()) return;
  const auto needed = machine_->states_needed();
  std::erase_if(disk_.states, [&](const auto& state) { return !needed.contains(state.first); });
}

/// Line by line: the program may die in the middle.
bool SweepProgram::write(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    disk_.lines.push_back(line);
    sleep_for(microseconds(50));
    if (!goes_on()) return false;
  }
  return true;
}

bool SweepProgram::save(int trial, tune::StateNumber number) {
  try {
    auto state = runs_.at(trial)->snapshot();
    if (!goes_on()) return false;
    disk_.states.insert_or_assign(number, std::move(state));
    return true;
  } catch (const Error& error) {
    if (!goes_on()) return false;
    runs_.erase(trial);
    failures_.push_back({trial, error.info().message()});
    return false;
  }
}

void SweepProgram::forget_last_step() {
  machine_ = machine_of(scenario_);
  machine_->start();
  for (const tune::SweepEvent& event : decided_) machine_->step(event);
}

void SweepProgram::carry_out(const tune::SweepStep& step) {
  for (const tune::SweepAction& action : step.actions) {
    if (!goes_on()) return;
    std::visit([this](const auto& a) { act(a); }, action);
  }
}

void SweepProgram::act(const tune::StartTrial& a) {
  const tune::Trial& trial = machine_->trials()[static_cast<std::size_t>(a.trial)];
  try {
    runs_.insert_or_assign(a.trial, std::make_unique<tune::ActorTrial<WalkActor, WalkSettings>>(
                                        driver_.session(), WalkSettings{lr_of(trial.config)},
                                        tune::ActorTrialOptions{.epochs = scenario_.config.epochs,
                                                                .cpus = 1,
                                                                .label = "trial " + std::to_string(a.trial)},
                                        a.from ? &disk_.states.at(*a.from) : nullptr));
  } catch (const Error& error) {
    failures_.push_back({a.trial, error.info().message()});
  }
}
void SweepProgram::act(const tune::GoOnTrial& a) {
  if (const auto run = runs_.find(a.trial); run != runs_.end()) run->second->go_on();
}
void SweepProgram::act(const tune::StopTrial& a) {
  if (const auto run = runs_.find(a.trial); run != runs_.end()) run->second->stop();
}

}  // namespace troupe::sim
