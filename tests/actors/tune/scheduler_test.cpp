// Each scheduler by a hand-written run; the recorded ones are in replay_test.
#include "actors/tune/scheduler.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <deque>

#include "runtime/core/error.hpp"

using namespace troupe;
using namespace troupe::tune;

namespace {

/// Draws that the test wrote down: all numbers in the order they are asked for.
class GivenDraws final : public Draws {
 public:
  std::deque<double> numbers;
  double uniform() override { return take(); }
  std::size_t choice(std::size_t) override { return static_cast<std::size_t>(take()); }
  Value sample(const Parameter&) override { return take(); }

 private:
  double take() {
    REQUIRE(!numbers.empty());
    const double number = numbers.front();
    numbers.pop_front();
    return number;
  }
};

struct Run {
  std::unique_ptr<Scheduler> scheduler;
  explicit Run(const AnyScheduler& options, Mode mode = Mode::kMax, std::vector<Parameter> parameters = {},
               std::shared_ptr<Draws> draws = nullptr)
      : scheduler(make_scheduler(options, {mode, 7, std::move(parameters)}, std::move(draws))) {}

  void add(int count) {
    for (int trial = 0; trial < count; ++trial) scheduler->step(Added{trial});
  }
  std::optional<int> choose() { return scheduler->step(Choose{}).run; }
  Decision report(int trial, double t, double metric) {
    Decision decision = scheduler->step(Reported{trial, t, metric});
    CHECK(!decision.reason.empty());
    return decision;
  }
  Action act(int trial, double t, double metric) { return report(trial, t, metric).action; }
};

const double kNan = std::nan("");

}  // namespace

TEST_CASE("FIFO runs trials in the order they came, a retried one last", "[tune]") {
  Run run(Fifo{});
  run.add(3);
  CHECK(run.choose() == 0);
  CHECK(run.act(0, 1, kNan) == Action::kContinue);
  run.scheduler->step(Failed{0, true});
  run.scheduler->step(Added{0});
  run.scheduler->step(Removed{1});
  CHECK(run.choose() == 2);
  CHECK(run.choose() == 0);
  CHECK(run.choose() == std::nullopt);
}

TEST_CASE("ASHA stops who is below the best third of those before it", "[tune]") {
  Run run(Asha{.max_t = 9, .grace_period = 1, .reduction_factor = 3});
  run.add(5);
  CHECK(run.act(0, 1, 0.5) == Action::kContinue);  // the first at its rung
  CHECK(run.act(1, 1, 0.5) == Action::kContinue);  // a tie
  const Decision stop = run.report(2, 1, 0.4);
  CHECK(stop.action == Action::kStop);
  CHECK(stop.reason == "0.4 is worse than the cutoff 0.5 of the 2 before it at rung 1");
  CHECK(run.act(3, 1, 0.9) == Action::kContinue);
  CHECK(run.act(4, 1, kNan) == Action::kContinue);  // as Ray: recorded, stops nobody
  CHECK(run.act(0, 2, 0.1) == Action::kContinue);   // between two rungs
  CHECK(run.act(0, 9, 1) == Action::kStop);         // max_t
  CHECK(run.scheduler->step(Reported{1, 2, std::nullopt}).action == Action::kContinue);

  Run least(Asha{.max_t = 9, .grace_period = 1, .reduction_factor = 3}, Mode::kMin);
  least.add(2);
  CHECK(least.act(0, 1, 0.5) == Action::kContinue);
  CHECK(least.act(1, 1, 0.6) == Action::kStop);
}

TEST_CASE("HyperBand pauses until a bracket is there, and resumes the best", "[tune]") {
  Run run(HyperBand{.max_t = 3, .reduction_factor = 3});
  run.add(5);  // 2 run to the end at once, 3 are halved to 1
  for (int trial = 0; trial < 5; ++trial) CHECK(run.choose() == trial);
  CHECK(run.act(2, 1, 0.1) == Action::kPause);
  CHECK(run.act(3, 1, kNan) == Action::kPause);
  CHECK(run.choose() == std::nullopt);
  const Decision halved = run.report(4, 1, 0.05);
  CHECK(halved.action == Action::kStop);
  CHECK(halved.stop == std::vector{3});  // NaN is worst
  run.scheduler->step(Completed{4, 1, 0.05, true});
  CHECK(run.choose() == 2);
  CHECK(run.act(2, 2, 0.2) == Action::kContinue);
  CHECK(run.act(2, 3, 0.3) == Action::kStop);
  CHECK(run.act(0, 3, 0.3) == Action::kPause);
  const Decision finished = run.report(1, 3, 0.3);
  CHECK(finished.action == Action::kStop);
  CHECK(finished.stop == std::vector{0});
}

TEST_CASE("median stopping stops whose best is below the others' median", "[tune]") {
  Run run(MedianStopping{.grace_period = 2, .min_samples_required = 2});
  run.add(4);
  for (int trial = 0; trial < 4; ++trial) CHECK(run.choose() == trial);
  CHECK(run.act(0, 1, 0.0) == Action::kContinue);  // the grace period
  CHECK(run.act(0, 2, 0.4) == Action::kContinue);  // no others
  CHECK(run.act(1, 2, 0.6) == Action::kContinue);
  CHECK(run.act(2, 2, 0.5) == Action::kContinue);  // a tie with the median of 0.4 and 0.6
  const Decision stop = run.report(3, 2, 0.3);
  CHECK(stop.action == Action::kStop);
  CHECK(stop.reason == "its best 0.3 is worse than the median 0.5 of the means of 3 others");

  Run soft(MedianStopping{.grace_period = 1, .min_samples_required = 1, .hard_stop = false}, Mode::kMin);
  soft.add(3);
  soft.choose(), soft.choose();
  CHECK(soft.act(0, 1, 0.5) == Action::kPause);  // too few, and trial 2 waits
  CHECK(soft.act(1, 1, 0.6) == Action::kPause);
  CHECK(soft.choose() == 2);
  CHECK(soft.choose() == 0);
  CHECK(soft.choose() == 1);
  CHECK(soft.act(1, 2, 0.9) == Action::kContinue);  // it was paused by the rule before
}

TEST_CASE("PBT copies the best to the worst and changes the copy's config", "[tune]") {
  const auto draws = std::make_shared<GivenDraws>();
  const std::vector<Parameter> parameters{
      {"lr", uniform(0, 1).domain}, {"batch", choice({16, 32, 64}).domain}, {"layers", integer(1, 8).domain}};
  Run run(Pbt{.perturbation_interval = 2, .quantile_fraction = 0.5}, Mode::kMax, parameters, draws);
  const auto config = [](double lr, std::int64_t batch, std::int64_t layers) {
    return Config{{{"lr", lr}, {"batch", batch}, {"layers", layers}}};
  };
  run.scheduler->step(Added{0, config(0.5, 64, 5)});
  draws->numbers = {0.25, 1, 3};  // what its config lacks is drawn
  CHECK(*run.scheduler->step(Added{1}).config ==
        Config{{{"lr", 0.25}, {"batch", std::int64_t{32}}, {"layers", 3.0}}});
  CHECK(run.choose() == 0);
  CHECK(run.choose() == 1);
  CHECK(run.act(0, 1, 0.9) == Action::kContinue);  // before the interval
  CHECK(run.act(0, 2, 0.9) == Action::kContinue);  // alone
  draws->numbers = {0};
  const Decision unsaved = run.report(1, 2, 0.1);
  CHECK(unsaved.reason == "it is among the worst, but trial 0 was not saved");
  CHECK(run.report(0, 4, 0.9).save == std::vector{0});

  draws->numbers = {0, 0.9, 1, 0.9,
                    1, 0.9, 1};  // the donor; each time no resampling, then factor 0.8 or a shift up
  const Decision exploit = run.report(1, 4, 0.1);
  CHECK(draws->numbers.empty());
  CHECK(exploit.action == Action::kExploit);
  REQUIRE(exploit.exploits.size() == 1);
  CHECK(exploit.exploits[0].donor == 0);
  CHECK(exploit.exploits[0].config ==
        config(0.4, 64, 4));  // 64 is the last of its list, integers stay integers
  CHECK(run.choose() == 1);
  CHECK(run.act(1, 5, 0.1) == Action::kContinue);  // the interval counts from the donor's step
  CHECK_THROWS_AS(run.scheduler->step(Reported{1, 6, std::nullopt}), BadConfig);
}

// It perturbed every field, so a width with its layers, too: the clone's state had another shape.
TEST_CASE("PBT changes the fields that are named, by what they name, and no other", "[tune]") {
  struct Net {
    double lr = 0.5;
    int batch = 32;
    int width = 8;
    double drop = 0;
    std::string kind = "relu";
  };
  const std::vector<Parameter> parameters{{"width", integer(1, 8).domain},
                                          {"lr", uniform(0, 1).domain},
                                          {"batch", choice({16, 32, 64}).domain},
                                          {"drop", uniform(0, 1).domain},
                                          {"kind", choice({"relu", "tanh"}).domain}};
  const Config donor{{{"width", std::int64_t{5}},
                      {"lr", 0.5},
                      {"batch", std::int64_t{32}},
                      {"drop", 0.25},
                      {"kind", std::string("relu")}}};
  const auto explored = [&](std::vector<Mutation> mutations, std::deque<double> numbers) {
    Config other = donor;
    other.set("lr", 0.125);
    const auto draws = std::make_shared<GivenDraws>();
    Run run(Pbt{.perturbation_interval = 1, .quantile_fraction = 0.5, .mutations = std::move(mutations)},
            Mode::kMax, parameters, draws);
    run.scheduler->step(Added{0, donor});
    run.scheduler->step(Added{1, other});
    CHECK(run.choose() == 0);
    CHECK(run.choose() == 1);
    run.act(0, 1, 0.9);
    draws->numbers = {0};
    run.act(1, 1, 0.1);  // not saved yet
    run.act(0, 2, 0.9);
    draws->numbers = std::move(numbers);
    const Decision decision = run.report(1, 2, 0.1);
    REQUIRE(decision.exploits.size() == 1);
    CHECK(draws->numbers.empty());
    return decision.exploits[0].config;
  };
  Config wanted = donor;
  wanted.set("lr", 0.4);
  CHECK(explored({&Net::lr}, {0, 0.9, 1}) == wanted);  // the donor, no resampling, the factor 0.8

  wanted.set("batch", std::int64_t{48});
  CHECK(explored({&Net::lr, {&Net::batch, choice({32, 48})}}, {0, 0.9, 1, 0.9, 1}) == wanted);

  const auto drop =
      explored({{&Net::drop, [](Random& random) { return 2 + random.uniform(); }}}, {0, 0.1, 3});
  CHECK(number_of(*drop.find("drop")) >= 2);
  CHECK(*drop.find("lr") == *donor.find("lr"));
  CHECK(explored({{&Net::drop, [](Random&) { return 2.0; }}}, {0, 0.9, 0}).find("drop") != nullptr);
  CHECK(*explored({{&Net::kind, [](Random&) { return "gelu"; }}}, {0, 0.9, 3}).find("kind") ==
        Value(std::string("gelu")));  // a text is multiplied with nothing

  struct Other {
    double decay = 0;
  };
  const auto refused = [&](const Pbt& pbt) {
    try {
      Run run(pbt, Mode::kMax, parameters);
    } catch (const BadConfig& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  CHECK(refused(Pbt{.mutations = {&Other::decay}})
            .find("cannot change 'decay': the space draws no such field: it draws width, lr, batch, drop, "
                  "kind") != std::string::npos);
  CHECK(refused(Pbt{.mutations = {{&Net::lr, uniform(1, 0)}}})
            .find("tune: lr cannot be drawn from uniform(1, 0)") != std::string::npos);
}

TEST_CASE("PBT in step waits for all, and ranks no NaN", "[tune]") {
  Run run(Pbt{.perturbation_interval = 2, .quantile_fraction = 0.5, .synch = true}, Mode::kMin,
          {{"lr", uniform(0, 1).domain}});
  for (int trial = 0; trial < 3; ++trial) run.scheduler->step(Added{trial, {{{"lr", 0.1}}}});
  for (int trial = 0; trial < 3; ++trial) CHECK(run.choose() == trial);
  CHECK(run.act(0, 2, 0.3) == Action::kPause);
  CHECK(run.act(1, 2, 0.2) == Action::kPause);
  CHECK(run.choose() == std::nullopt);
  const Decision all = run.report(2, 2, kNan);
  CHECK(all.action == Action::kPause);
  CHECK(all.save == std::vector{1});
  REQUIRE(all.exploits.size() == 1);
  CHECK(all.exploits[0].trial == 0);
  CHECK(all.exploits[0].donor == 1);
  CHECK(run.choose() == 0);
}

TEST_CASE("Optuna's pruners", "[tune]") {
  Run median(MedianPruner{.n_startup_trials = 1}, Mode::kMin);
  median.add(3);
  CHECK(median.act(0, 1, 0.5) == Action::kContinue);
  CHECK(median.act(1, 1, 0.9) == Action::kContinue);  // nobody is complete
  median.scheduler->step(Completed{0, 1, 0.5});
  CHECK(median.act(2, 1, 0.6) == Action::kStop);

  Run quarter(PercentilePruner{.percentile = 25, .n_startup_trials = 0, .n_warmup_steps = 2}, Mode::kMax);
  quarter.add(2);
  quarter.act(0, 2, 0.5);
  quarter.scheduler->step(Completed{0, 2, 0.5});
  CHECK(quarter.act(1, 1, 0.1) == Action::kContinue);
  CHECK(quarter.act(1, 2, kNan) == Action::kStop);  // its best of 0.1

  Run halving(SuccessiveHalvingPruner{.reduction_factor = 2}, Mode::kMax);
  halving.add(3);
  CHECK(halving.act(0, 1, 0.5) == Action::kContinue);
  CHECK(halving.act(1, 1, 0.4) == Action::kStop);
  CHECK(halving.act(2, 1, kNan) == Action::kStop);

  Run bands(
      HyperbandPruner{.min_resource = 1, .max_resource = 1, .reduction_factor = 3, .bootstrap_count = 1});
  bands.add(1);
  CHECK(bands.act(0, 1, 0.5) == Action::kStop);  // among the first
}

// A sweep that is resumed steps what was recorded again: that must give the scheduler that died.
TEST_CASE("the same events give the same decisions", "[tune]") {
  const std::vector<AnyScheduler> all{Fifo{},
                                      Asha{.max_t = 20, .brackets = 2},
                                      HyperBand{.max_t = 9},
                                      MedianStopping{.grace_period = 2},
                                      Pbt{.perturbation_interval = 2},
                                      MedianPruner{},
                                      HyperbandPruner{}};
  for (const auto& options : all) {
    std::vector<std::string> said[2];
    for (auto& words : said) {
      Run run(options, Mode::kMax, {{"lr", uniform(0, 1).domain}});
      SeededRandom random(3);
      run.add(12);
      for (int event = 0; event < 600; ++event) {
        const auto trial = run.choose();
        if (!trial) break;
        const Decision decision = run.report(*trial, event / 12 + 1, random.uniform());
        words.push_back(std::string(name_of(decision.action)) + decision.reason);
        if (decision.action == Action::kContinue || decision.action == Action::kStop) {
          run.scheduler->step(Completed{*trial, event / 12 + 1, random.uniform()});
        }
      }
    }
    CHECK(!said[0].empty());
    CHECK(said[0] == said[1]);
  }
}

TEST_CASE("options that make no sense are refused", "[tune]") {
  CHECK_THROWS_AS(Run(Asha{.reduction_factor = 1}), BadConfig);
  CHECK_THROWS_AS(Run(Asha{.max_t = 1, .grace_period = 2}), BadConfig);
  CHECK_THROWS_AS(Run(Asha{.brackets = 0}), BadConfig);
  CHECK_THROWS_AS(Run(HyperBand{.max_t = 0}), BadConfig);
  CHECK_THROWS_AS(Run(MedianStopping{.min_samples_required = 0}), BadConfig);
  CHECK_THROWS_AS(Run(Pbt{}), BadConfig);  // no parameters
  CHECK_THROWS_AS(Run(PercentilePruner{.percentile = 101}), BadConfig);
  CHECK_THROWS_AS(Run(SuccessiveHalvingPruner{.reduction_factor = 1}), BadConfig);
  CHECK_THROWS_AS(Run(HyperbandPruner{.min_resource = 9, .max_resource = 3}), BadConfig);
}
