#include "actors/tune/table.hpp"

#include "tests/actors/tune/sweep_world.hpp"

using namespace troupe;
using namespace troupe::tune;

namespace {

struct Screen : report::Output {
  explicit Screen(bool is) : terminal(is) {}
  bool terminal;
  std::string text;
  void write(std::string_view more) override { text += more; }
  bool is_terminal() const override { return terminal; }
  bool has_colour() const override { return false; }
  int columns() const override { return 60; }
};

}  // namespace

TEST_CASE("on a terminal the block is redrawn in place, below the lines that stay; elsewhere there is none") {
  const SweepConfig config{.trials = 3, .max_concurrent = 2, .epochs = 4, .metric = "accuracy"};
  World world(config, Fifo{}, 7);
  world.metric = [](const Trial&, int) { return 0.25; };
  world.advance(0);
  Screen screen(true);
  {
    SweepTable table(screen, {"accuracy", 4});
    table.update(world.machine, Instant(1));
    CHECK(screen.text.find("\x1b") == std::string::npos);
    CHECK(screen.text.find("trial  0  lr=") == 0);
    CHECK(screen.text.find("2 running, 1 waiting, 0 stopped, 0 finished, 0 failed\n") != std::string::npos);
    CHECK(screen.text.find("so far the best: trial 0 with lr=") != std::string::npos);
    table.update(world.machine, Instant(2));  // too soon
    CHECK(screen.text.find("\x1b") == std::string::npos);
    screen.text.clear();
    table.line("it stays");
    CHECK(screen.text == "\x1b[4A\x1b[Jit stays\n");
    table.update(world.machine, Instant(3));
    screen.text.clear();
  }
  CHECK(screen.text == "\x1b[4A\x1b[J");
  Screen file(false);
  SweepTable table(file, {"accuracy", 4});
  table.update(world.machine, Instant(1));
  table.line("it stays");
  CHECK(file.text == "it stays\n");
}

TEST_CASE("how long a sweep takes yet is guessed from the trials that are over") {
  using namespace std::chrono_literals;
  CHECK(time_left(10s, 0, 4) == "");
  CHECK(time_left(10s, 4, 0) == "");
  CHECK(time_left(10s, 2, 4) == "about 20 s left");
  CHECK(time_left(100s, 2, 4) == "about 3 min left");
  CHECK(time_left(5400s, 1, 2) == "about 3.0 h left");

  const SweepConfig config{.trials = 3, .max_concurrent = 1, .epochs = 1, .metric = "accuracy"};
  World world(config, Fifo{}, 7);
  Screen screen(true);
  SweepTable table(screen, {"accuracy", 1, 3});
  table.update(world.machine, Instant(0s));
  CHECK(screen.text.find("left\n") == std::string::npos);
  world.advance(0);
  world.advance(0);
  table.update(world.machine, Instant(30s));
  CHECK(screen.text.find("about 1 min left\n") != std::string::npos);
}

TEST_CASE("a line says that a trial is a clone, and why a loss that is not finite ended it") {
  Trial trial{.number = 3, .config = {{{"lr", 0.5}}}, .state = TrialState::kStopped, .epoch = 1};
  trial.value = std::nan("");
  trial.why = "loss is not finite at step 17";
  trial.clones = {{3, 7, 2, trial.config}};
  CHECK(trial_line(trial, {"accuracy", 4}) ==
        "trial  3  lr=0.5  epoch 1/4  accuracy nan  stopped (clone of trial 7 after epoch 2): loss is not "
        "finite at step 17");
}
