#include <nlohmann/json.hpp>

#include "actors/tune/space.hpp"
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

struct Job {
  double lr = 0.1;
  double momentum = 0;
  double decay = 0;
  int width = 8;
};

/// A sweep over a space as tune::run makes it.
SweepMachine machine_over(const Space<Job>& space, const SweepConfig& config, const AnyScheduler& scheduler,
                          std::uint64_t seed) {
  return {config, make_scheduler(scheduler, {config.mode, seed, space.parameters()}),
          make_search(RandomSearch{}, space.parameters(), config.mode, seed),
          [space](Search& search) {
            return space.sample(Job{}, [&](const Parameter& p) { return search.suggest(p); }).config;
          },
          [space](const Config& of) { return space.apply(Job{}, of).config; }};
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
    std::size_t at = 0;
    for (std::size_t i = 0; i < world.events.size(); ++i) {
      const SweepEvent read = read_record(world.records[i]).value();
      const int number = std::visit(
          [](const auto& e) {
            if constexpr (requires { e.trial; }) return e.trial;
            return 0;
          },
          read);
      const Trial before = again.trial(number);
      const SweepStep step = again.machine.step(read);
      for (const std::string& line : record_lines(read, before, step)) {
        REQUIRE(at < world.lines.size());
        REQUIRE(line == world.lines[at++]);
      }
    }
    REQUIRE(at == world.lines.size());
    // Whoever reads the file alone knows of every trial's end.
    std::set<int> ends;
    for (const std::string& text : world.lines) {
      const auto line = nlohmann::json::parse(text);
      if (line["decision"] == "finished" || line["decision"] == "stopped" || line["decision"] == "fail")
        ends.insert(line["trial"].get<int>());
    }
    REQUIRE(static_cast<int>(ends.size()) == config.trials);
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

// A clone's functions and conditions were its donor's in the records, while its job computed them again: the
// records showed trials under fields that they never ran with.
TEST_CASE("every report is written down under the config that the trial ran with") {
  const Space<Job> space{{&Job::lr, log_uniform(1e-4, 1)},
                         {&Job::width, choice({8, 16, 32})},
                         {&Job::momentum, uniform(0, 0.9), [](const Job& job) { return job.lr < 0.03; }},
                         {&Job::decay, [](const Job& job) { return job.lr / 8; }}};
  int clones = 0, conditions_turned = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const SweepConfig config = config_of(8, 4, 9);
    const Pbt pbt{.perturbation_interval = 2, .mutations = {&Job::lr}, .synch = seed % 2 == 0};
    World world(config, machine_over(space, config, pbt, seed));
    SeededRandom random(seed);
    world.run(random);
    REQUIRE_FALSE(world.error);
    std::map<int, nlohmann::json> runs_with;
    for (const std::string& text : world.lines) {
      const auto line = nlohmann::json::parse(text);
      const int trial = line["trial"];
      const auto& fields = line["config"];
      CHECK(fields["decay"] == fields["lr"].get<double>() / 8);
      CHECK(fields.contains("momentum") == (fields["lr"].get<double>() < 0.03));
      if (line["event"] == "clone") {
        ++clones;
        conditions_turned += runs_with[line["from"]].contains("momentum") != fields.contains("momentum");
        CHECK(fields["width"] == runs_with[line["from"]]["width"]);  // a state of that shape
        runs_with[trial] = fields;
      } else if (runs_with.contains(trial)) {
        CHECK(fields == runs_with[trial]);
      }
      runs_with[trial] = fields;
    }
  }
  CHECK(clones > 40);
  CHECK(conditions_turned > 0);
}

TEST_CASE("a clone has no value until it reports: what it had was of another config") {
  const SweepConfig config = config_of(2, 2, 9);
  World world(config, Pbt{.perturbation_interval = 1, .quantile_fraction = 0.5}, 7);
  world.metric = [](const Trial& trial, int) { return trial.number == 0 ? 0.9 : 0.1; };
  world.advance(0);
  world.advance(1);
  world.advance(0);  // is saved
  world.advance(1);
  REQUIRE(world.trial(1).clones.size() == 1);
  CHECK(world.trial(1).clones[0].donor == 0);
  CHECK(world.trial(1).config == world.trial(1).clones[0].config);
  CHECK_FALSE(world.trial(1).value);
  CHECK(world.lines.back().starts_with(R"({"event":"clone","trial":1,"config":{"lr":)"));
  CHECK(world.machine.best_so_far()->number == 0);
}

TEST_CASE("a function of the space that throws fails its trial alone, with its text") {
  const Space<Job> space{{&Job::width, grid({8, 16, 32, 64})},
                         {&Job::lr, uniform(0, 1)},
                         {&Job::decay, [](const Job& job) -> double {
                            if (job.width == 16) throw std::domain_error("no decay for 16");
                            return 1.0 / job.width;
                          }}};
  for (const auto& scheduler : all_schedulers()) {
    const SweepConfig config = config_of(4, 2, 9);
    World world(config, machine_over(space, config, scheduler, 7));
    SeededRandom random(1);
    world.run(random);
    CHECK_FALSE(world.error);
    const Trial& bad = world.trial(1);
    CHECK(bad.state == TrialState::kFailed);
    CHECK(bad.failures == 1);  // it would fail alike
    CHECK(bad.error.find("the trial's decay cannot be set: its function threw: no decay for 16") !=
          std::string::npos);
    CHECK(number_of(*bad.config.find("width")) == 16);
    bool written = false;
    for (const std::string& text : world.lines) {
      const auto line = nlohmann::json::parse(text);
      if (line["trial"] != 1) continue;
      CHECK(line["event"] == "failure");
      CHECK(line["final"] == true);
      written = line["error"] == bad.error;
    }
    CHECK(written);
    for (const int trial : {0, 2, 3}) CHECK(world.trial(trial).is_over());
    CHECK(world.machine.best() != nullptr);
  }
}

TEST_CASE("a clone whose config does not fit its fields fails alone") {
  struct Small {
    std::uint8_t width = 1;
  };
  const Space<Small> space{{&Small::width, choice({200, 250})}};
  const SweepConfig config = config_of(2, 2, 3);
  SweepMachine machine(
      config,
      make_scheduler(Pbt{.perturbation_interval = 1,
                         .quantile_fraction = 0.5,
                         .custom_explore =
                             [](Config of) {
                               of.set("width", std::int64_t{300});
                               return of;
                             }},
                     {config.mode, 7, space.parameters()}),
      make_search(RandomSearch{}, space.parameters(), config.mode, 7),
      [&](Search& search) {
        return space.sample(Small{}, [&](const Parameter& p) { return search.suggest(p); }).config;
      },
      [&](const Config& of) { return space.apply(Small{}, of).config; });
  World world(config, std::move(machine));
  world.metric = [](const Trial& trial, int) { return trial.number == 0 ? 0.9 : 0.1; };
  SeededRandom random(1);
  world.run(random);
  CHECK_FALSE(world.error);
  CHECK(world.trial(0).state == TrialState::kFinished);
  CHECK(world.trial(1).state == TrialState::kFailed);
  CHECK(world.trial(1).error.find("the trial's width cannot be set: it is 300") != std::string::npos);
}

TEST_CASE("a loss that is no finite number stops its trial, which is the worst then") {
  World world(config_of(2, 2, 3), Fifo{}, 7);
  world.metric = [](const Trial& trial, int) { return trial.number == 0 ? 0.9 : 0.1; };
  world.advance(0);
  world.runs.erase(0);
  world.feed(TrialEnded{0, "hash-0", 17}, 0);
  const Trial& ended = world.trial(0);
  CHECK(ended.state == TrialState::kStopped);
  CHECK(ended.why == "loss is not finite at step 17");
  REQUIRE(ended.value);
  CHECK(std::isnan(*ended.value));
  CHECK(world.records.back().find(
            R"("not_finite_step":17,"decision":"stopped","why":"loss is not finite at step 17")") !=
        std::string::npos);
  SeededRandom random(1);
  world.run(random);
  CHECK(world.machine.best()->number == 1);
}

// Ray's synchronous schedulers wait for a trial that failed for ever, and the others stopped for that.
TEST_CASE("whoever waits for a trial that failed for good goes on without it") {
  int failed = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    SweepConfig config = config_of(17, 4, 9);
    config.retries = 0;
    const AnyScheduler pbt = Pbt{.perturbation_interval = 2, .synch = true};
    World world(config, seed % 2 == 0 ? pbt : AnyScheduler(HyperBand{.max_t = 9}), seed);
    SeededRandom random(seed);
    world.run(random, 20);
    REQUIRE_FALSE(world.error);
    for (const Trial& trial : world.machine.trials()) {
      failed += trial.state == TrialState::kFailed;
      REQUIRE(trial.why.find("nothing else runs") == std::string::npos);
    }
  }
  CHECK(failed > 100);
}

TEST_CASE("repeats: the best config is that of the best mean, and a search hears of each config once") {
  struct Hears : Search {
    explicit Hears(std::string& to) : log(to) {}
    std::string& log;
    int current = 0;
    void begin(int config) override { current = config; }
    Value suggest(const Parameter&) override { return 0.1 * (current + 1); }
    void tell(const Ended& ended) override {
      log += std::to_string(ended.trial) + " " + to_text(Value(ended.value)) + " ";
    }
  };
  std::string log;
  SweepConfig config = config_of(6, 1, 1);
  config.repeats = 3;
  config.retries = 0;
  World world(config, SweepMachine(config, make_scheduler(Fifo{}, {}), std::make_unique<Hears>(log),
                                   [](Search& search) {
                                     return Config{{{"lr", search.suggest(parameters().front())}}};
                                   }));
  // The second config has the best single trial, the first the best mean.
  const double values[] = {0.5, 0.625, 0.75, 0.0, 1.0, 0.25};
  world.metric = [&](const Trial& trial, int) { return values[trial.number]; };
  for (const int trial : {0, 1, 2, 3, 4}) {
    world.advance(trial);
    world.advance(trial);
  }
  CHECK(log == "0 0.625 ");
  CHECK(world.trial(4).config == world.trial(3).config);
  CHECK(world.trial(0).config != world.trial(3).config);
  world.fail(5, "it breaks");
  CHECK(log == "0 0.625 1 0.5 ");
  CHECK(world.machine.best()->number == 2);
  const auto all = repeats_of(world.machine.trials(), 3);
  REQUIRE(all.size() == 2);
  CHECK(all[0].mean == 0.625);
  CHECK(all[0].deviation == 0.125);
  CHECK(all[1].trials == 2);
  CHECK(all[1].mean == 0.5);
}

TEST_CASE("a search that throws ends the sweep, and is named") {
  struct Throws : Search {
    void begin(int) override {}
    Value suggest(const Parameter&) override { throw std::runtime_error("no idea"); }
    void tell(const Ended&) override {}
  };
  SweepMachine machine(config_of(1, 1, 4), make_scheduler(Fifo{}, {}), std::make_unique<Throws>(),
                       [](Search& search) {
                         return Config{{{"lr", search.suggest(parameters().front())}}};
                       });
  const SweepStep step = machine.start();
  REQUIRE(step.actions.size() == 1);
  CHECK(std::get<SweepOver>(step.actions[0]).error.why == "its search threw: no idea");
}

TEST_CASE("points to try first come before the search's, and a target ends a trial that is as good") {
  SweepConfig config = config_of(2, 1, 9);
  config.first = {{{{"lr", 0.03}}}};
  config.target = 0.5;
  World world(config, Fifo{}, 7);
  CHECK(lr_of(world.trial(0)) == 0.03);
  CHECK(lr_of(world.trial(1)) != 0.03);
  world.metric = [](const Trial&, int epoch) { return 0.25 * epoch; };
  world.advance(0);
  CHECK_FALSE(world.runs[0].stops);
  world.advance(0);
  CHECK(world.runs[0].stops);
  world.fail(0, "killed");  // begun again, it is told again
  world.advance(0);
  world.advance(0);
  CHECK(world.runs[0].stops);
  world.advance(0);
  CHECK(world.trial(0).state == TrialState::kFinished);
  CHECK(world.trial(0).why == "the target is reached");
  CHECK(world.trial(0).epoch == 2);
}

// Who had paused waited for the one that had reached the target, and stopped when nothing else ran.
TEST_CASE("whoever waits for a trial that reaches the target goes on without it") {
  SweepConfig config = config_of(3, 3, 9);
  config.target = 0.9;
  World world(config, Pbt{.perturbation_interval = 1, .synch = true}, 7);
  world.metric = [](const Trial& trial, int) { return trial.number == 2 ? 1.0 : 0.1 * trial.number; };
  for (const int trial : {0, 1, 2}) world.advance(trial);
  CHECK(world.trial(2).why == "the target is reached");
  CHECK(world.runs.contains(0));
  CHECK(world.runs.contains(1));
  SeededRandom random(1);
  world.run(random);
  for (const int trial : {0, 1}) CHECK(world.trial(trial).state == TrialState::kFinished);

  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    config = config_of(17, 4, 9);
    config.target = 0.87;
    World halved(config, HyperBand{.max_t = 9}, seed);
    SeededRandom any(seed);
    halved.run(any);
    REQUIRE_FALSE(halved.error);
    for (const Trial& trial : halved.machine.trials())
      REQUIRE(trial.why.find("nothing else runs") == std::string::npos);
  }
}
