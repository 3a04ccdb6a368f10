// A job whose length, or whose evaluations, are counted in steps.
#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

/// One trainer; epochs of 4 steps, of which each evaluation comes to the next of `losses`.
struct BySteps : Script {
  BySteps(DriverConfig config, std::vector<double> losses) : Script(std::move(config)), values(losses) {
    run_from_start({kA});
  }
  static DriverConfig config() {
    DriverConfig config = config_of(1);
    config.test_pieces = 1;
    return config;
  }
  /// Runs until the driver waits for something else than steps, or is done; says all that was told.
  void run() {
    std::vector<DriverAction> all;
    const auto keep = [&] { all.insert(all.end(), last.begin(), last.end()); };
    for (; driver.state() != DriverMachine::State::kDone; keep()) {
      if (driver.state() == DriverMachine::State::kRunning) {
        applied(kA, driver.committed());
      } else if (const auto evaluation = order<Evaluate>(kA)) {
        const double loss = values.at(at++);
        on(EvaluationDone{kA, g(), 0, {{0, 1, 10, {{"loss", loss, 1}}}}});
      } else if (order<WriteCheckpoint>(kA)) {
        written(kA, driver.committed());
      } else {
        on(TrainerFinished{kA, g(), driver.committed(), "h", parts_after(driver.committed())});
      }
    }
    last = all;
  }
  std::vector<double> values;
  std::size_t at = 0;
};

/// "4, ended: 0.5; 6: 0.4"
std::string told(const Script& s) {
  std::string text;
  for (const EpochDone& done : s.all<EpochDone>()) {
    const auto loss = done.metrics.find("test/loss");
    text += (text.empty() ? "" : "; ") + std::to_string(done.step) + (done.ended ? ", ended" : "") +
            (loss == done.metrics.end() ? "" : ": " + std::to_string(loss->second).substr(0, 3));
  }
  return text;
}

}  // namespace

TEST_CASE("max_steps ends a job in the middle of an epoch, behind its epochs or before, and evaluates it") {
  DriverConfig config = BySteps::config();
  config.max_steps = 6;
  BySteps within(config, {0.5, 0.4});
  within.run();
  CHECK(told(within) == "4, ended: 0.5; 6: 0.4");
  CHECK(within.only<JobDone>().steps == 6);
  CHECK_FALSE(within.only<JobDone>().stopped);
  CHECK_FALSE(within.only<JobDone>().stopped_early);

  config.max_steps = 14;  // two epochs are 8
  config.test_pieces = 0;
  BySteps behind(config, {});
  behind.run();
  CHECK(told(behind) == "4, ended; 8, ended; 12, ended; 14");
  CHECK(behind.all<EpochDone>()[3].train == std::vector<Figure>{{"loss", 8, 4}});  // of the last two steps
}

TEST_CASE("evaluate_every evaluates within epochs; nothing is run ahead of it, and epochs end as ever") {
  DriverConfig config = BySteps::config();
  config.evaluate_every = 3;
  BySteps s(config, {0.9, 0.8, 0.7, 0.6});
  s.run();
  for (const SendOrder& send : s.all<SendOrder>()) {
    const auto* word = std::get_if<Committed>(&send.order);
    if (word != nullptr && word->committed < 3) CHECK(word->limit <= 3);
  }
  CHECK(told(s) == "3: 0.9; 4, ended: 0.8; 6: 0.7; 8, ended: 0.6");
}

TEST_CASE("early stopping and the best checkpoint see evaluations within an epoch") {
  DriverConfig config = BySteps::config();
  config.evaluate_every = 1;
  config.checkpoints = true;
  config.keep_checkpoints = 1;
  config.keep_best = "test/loss";
  config.stop_early = {.metric = "test/loss", .patience = 3};
  BySteps s(config, {0.9, 0.2, 0.5, 0.5, 0.5});
  s.run();
  const JobDone done = s.all<JobDone>().at(0);
  CHECK(done.stopped_early);
  CHECK(done.steps == 5);
  CHECK(done.best_checkpoint == "ckpt-2");
  CHECK(done.best_metric == 0.2);
  CHECK(s.all<Notice>().at(0).text ==
        "stopping early: test/loss has not become better for 3 evaluations, the best was 0.200000 after step "
        "2");
}

TEST_CASE("what was resumed at max_steps has nothing left to train") {
  DriverConfig config = BySteps::config();
  config.max_steps = 6;
  config.resume = {{"ckpt-6", 6, "h6", encode_history({.metrics = {{"test/loss", 0.5}}})}};
  Script s(config);
  s.join(kA);
  s.begin(kA, 6);
  CHECK(s.all<Notice>().at(0).text ==
        "nothing is left to train: what was resumed has 6 steps, 6 are asked for");
  CHECK(s.order<Finish>(kA));
}
