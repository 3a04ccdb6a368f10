#include "tests/actors/tune/sweep_world.hpp"

using namespace troupe;
using namespace troupe::tune;

namespace {

SweepConfig config_of(int trials, int places, int epochs) {
  return {.trials = trials, .max_concurrent = places, .epochs = epochs, .retries = 2, .metric = "accuracy"};
}

std::vector<AnyScheduler> all_schedulers() {
  return {Fifo{},
          Asha{.max_t = 9, .reduction_factor = 3},
          HyperBand{.max_t = 9},
          MedianStopping{.grace_period = 2},
          Pbt{.perturbation_interval = 2},
          Pbt{.perturbation_interval = 3, .synch = true}};
}

}  // namespace

TEST_CASE("as many trials run as there are places, in order, and the best is the best") {
  World world(config_of(5, 2, 3), Fifo{}, 7);
  CHECK(world.runs.size() == 2);
  CHECK(world.runs.contains(1));
  SeededRandom random(1);
  world.run(random);
  CHECK_FALSE(world.error);
  CHECK(world.starts == 5);
  const Trial* best = world.machine.best();
  REQUIRE(best != nullptr);
  for (const Trial& trial : world.machine.trials()) {
    CHECK(trial.state == TrialState::kFinished);
    CHECK(trial.epoch == 3);
    CHECK_FALSE(world.machine.is_better(*trial.value, *best->value));
  }
}

TEST_CASE("a trial that goes on is told so at once; one below the cutoff stops in place") {
  World world(config_of(2, 2, 9), Asha{.max_t = 9, .reduction_factor = 3}, 7);
  world.runs[0].epoch = world.runs[1].epoch = 1;
  world.runs[0].holds = world.runs[1].holds = true;
  world.report(0, 0.9);
  CHECK_FALSE(world.runs[0].holds);
  world.report(1, 0.1);
  CHECK(world.runs[1].stops);
  CHECK(world.trial(1).state == TrialState::kEnding);
  world.advance(1);
  CHECK(world.trial(1).state == TrialState::kStopped);
  CHECK(world.trial(1).state_hash == "hash-1");
  CHECK_FALSE(world.trial(1).why.empty());
}

TEST_CASE("an unknown metric ends the sweep after the first report, with those that exist") {
  SweepConfig config = config_of(4, 2, 3);
  config.metric = "validation/acuracy";
  World world(config, Fifo{}, 7);
  world.advance(1);
  CHECK(world.over);
  CHECK(world.runs.empty());
  REQUIRE(world.error);
  CHECK(world.error->why == "there is no metric 'validation/acuracy': the job reports accuracy, train/loss");
}

TEST_CASE("not a number is the worst value, and is said once") {
  World world(config_of(3, 3, 1), Fifo{}, 7);
  world.metric = [](const Trial& trial, int) { return trial.number == 1 ? -5.0 : std::nan(""); };
  for (const int trial : {0, 1, 2}) world.advance(trial);
  CHECK(world.told == 1);
  for (const int trial : {0, 1, 2}) world.advance(trial);
  REQUIRE(world.machine.best() != nullptr);
  CHECK(world.machine.best()->number == 1);
}

TEST_CASE("a trial that fails again and again fails alone, with its last error") {
  World world(config_of(3, 1, 2), Fifo{}, 7);
  for (const char* why : {"first", "second", "third"}) {
    REQUIRE(world.runs.contains(0));
    world.fail(0, why);
  }
  CHECK(world.trial(0).state == TrialState::kFailed);
  CHECK(world.trial(0).error == "third");
  CHECK(world.runs.contains(1));
  SeededRandom random(1);
  world.run(random);
  CHECK_FALSE(world.error);
  CHECK(world.machine.best()->number != 0);
}

TEST_CASE("a trial that was started again reports its old epochs to nobody") {
  World world(config_of(1, 1, 4), Fifo{}, 7);
  world.advance(0);
  world.advance(0);
  world.fail(0, "killed");
  const std::size_t records = world.records.size();
  world.advance(0);
  world.advance(0);
  CHECK(world.records.size() == records);
  world.advance(0);
  CHECK(world.records.size() == records + 1);
  CHECK(world.trial(0).epoch == 3);
}

TEST_CASE("a scheduler that throws ends the sweep, and the results stay") {
  struct Throws : Scheduler {
    Decision step(const Event& event) override {
      if (std::holds_alternative<Reported>(event)) throw std::runtime_error("no idea");
      Decision decision;
      if (std::holds_alternative<Choose>(event)) decision.run = 0;
      return decision;
    }
  };
  SweepMachine machine(config_of(1, 1, 4), std::make_unique<Throws>(),
                       make_search(RandomSearch{}, parameters(), Mode::kMax, 1),
                       [](Search&) { return Config(); });
  REQUIRE(machine.start().actions.size() == 1);
  const SweepStep step = machine.step(TrialReported{0, 1, {{"accuracy", 0.5}}});
  REQUIRE(step.actions.size() == 2);
  REQUIRE(std::holds_alternative<DropTrial>(step.actions[0]));
  const auto& over = std::get<SweepOver>(step.actions[1]);
  REQUIRE(over.failed);
  CHECK(over.error.why == "its scheduler threw: no idea");
  CHECK(machine.trials()[0].value == 0.5);
}

TEST_CASE("a search that learns is asked for a config when there is a place for it") {
  struct Learns : Search {
    explicit Learns(std::string& to) : log(to) {}
    std::string& log;
    void begin(int trial) override { log += "ask " + std::to_string(trial) + " "; }
    Value suggest(const Parameter&) override { return 0.1; }
    void tell(const Ended& ended) override { log += "tell " + std::to_string(ended.trial) + " "; }
  };
  std::string log;
  SweepConfig config = config_of(3, 2, 1);
  config.ask_late = true;
  SweepMachine machine(config, make_scheduler(Fifo{}, {}), std::make_unique<Learns>(log), [](Search& search) {
    return Config{{{"lr", search.suggest(parameters().front())}}};
  });
  machine.start();
  CHECK(log == "ask 0 ask 1 ");
  machine.step(TrialReported{1, 1, {{"accuracy", 0.5}}});
  machine.step(TrialEnded{1, "h"});
  CHECK(log == "ask 0 ask 1 tell 1 ask 2 ");
  CHECK(machine.trials().size() == 3);
}

TEST_CASE("Ctrl-C drops what runs; the records go on where it was") {
  World world(config_of(4, 2, 3), Fifo{}, 7);
  world.advance(0);
  world.take(world.machine.step(SweepInterrupted{}));
  CHECK(world.over);
  CHECK(world.runs.empty());
  CHECK(world.trial(0).state == TrialState::kWaiting);
  World again(config_of(4, 2, 3), Fifo{}, 7);
  for (const SweepEvent& event : world.events) again.machine.step(event);
  CHECK(again.trial(0).epoch == 1);
  CHECK(again.machine.running().size() == 2);
}

// No trial may be lost or counted twice, whatever happens in whatever order, and what was written down gives
// the same sweep again.
TEST_CASE("sweeps of random order and failures: every trial ends once, and replays to the same") {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    const auto schedulers = all_schedulers();
    const AnyScheduler& scheduler = schedulers[seed % schedulers.size()];
    SweepConfig config =
        config_of(1 + static_cast<int>(random.next() % 12), 1 + static_cast<int>(random.next() % 4), 9);
    World world(config, scheduler, seed);
    world.run(random, seed % 2 == 0 ? 0 : 20);
    REQUIRE_FALSE(world.error);
    REQUIRE(world.runs.empty());
    for (const Trial& trial : world.machine.trials()) {
      REQUIRE(trial.is_over());
      REQUIRE((world.ended[trial.number] == 1 || trial.state == TrialState::kStopped));
      REQUIRE(trial.failures <= config.retries + 1);
    }
    World again(config, scheduler, seed);
    for (std::size_t i = 0; i < world.events.size(); ++i) {
      const SweepEvent read = read_record(world.records[i]).value();
      const int number = std::visit(
          [](const auto& e) {
            if constexpr (requires { e.trial; }) return e.trial;
            return 0;
          },
          read);
      const Trial before = again.trial(number);
      REQUIRE(record_line(read, before, again.machine.step(read)) == world.records[i]);
    }
    REQUIRE(again.machine.is_over());
    const Trial* best = world.machine.best();
    REQUIRE((best == nullptr) == (again.machine.best() == nullptr));
    if (best != nullptr) REQUIRE(best->number == again.machine.best()->number);
  }
}

// A failure that another try answers leaves no trace: the same trials stop at the same rungs.
TEST_CASE("kills that are survived change no decision") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    SweepConfig config = config_of(9, 1, 9);
    config.retries = 1'000;
    const auto schedulers = all_schedulers();
    World calm(config, schedulers[seed % 4], seed);
    World harassed(config, schedulers[seed % 4], seed);
    SeededRandom a(seed), b(seed + 1);
    calm.run(a);
    harassed.run(b, 100);
    const auto kept = [](World& world) {
      std::vector<std::string> all;
      for (const std::string& line : world.records) {
        if (line.find("\"event\":\"failure\"") == std::string::npos) all.push_back(line);
      }
      return all;
    };
    REQUIRE(kept(calm) == kept(harassed));
  }
}
