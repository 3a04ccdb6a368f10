#include "actors/report/reporter.hpp"

#include <catch2/catch.hpp>

#include "actors/report/format.hpp"

using namespace troupe;
using namespace troupe::report;
using namespace std::chrono_literals;

namespace {

struct Page final : Output {
  void write(std::string_view more) override { text += more; }
  bool is_terminal() const override { return terminal; }
  bool has_colour() const override { return colour; }
  int columns() const override { return width; }
  /// What was written since the last time.
  std::string take() { return std::exchange(text, ""); }

  std::string text;
  bool terminal = false;
  bool colour = false;
  int width = 60;
};

StepDone at(std::int64_t step) {
  return {1, step, 250, 0.5, 1000, 2};
}

Metrics metrics(double loss, double accuracy) {
  return {{"train/loss", loss}, {"test/accuracy", accuracy}};
}

}  // namespace

TEST_CASE("elsewhere than on a terminal: plain lines") {
  Page page;
  ManualClock clock;
  Reporter reporter(page, clock);
  reporter.show(JobStarted{"ConvNet on rendered digits, 2 trainers", 2});
  for (std::int64_t step = 1; step <= 250; ++step) {
    if (step == 150) reporter.show(Fault{"trainer 1 (pid 9) died: killed by signal 9", 0.3, 2, 14});
    if (step == 160) reporter.show(Resized{2, "trainer 2 joined from the memory of trainer 0"});
    reporter.show(at(step));
  }
  reporter.show(EpochDone{1, 250, metrics(0.5, 0.95), 3});
  reporter.show(Checkpointed{250, "/c/checkpoint-00000001.json"});
  reporter.show(EpochDone{2, 500, metrics(0.25, 0.97), 3});
  reporter.show(EpochDone{3, 500, metrics(0.25, 0.97), 3});
  reporter.show(Warning{"the disk is nearly full"});
  reporter.show(JobDone{"abc", 500, 6, 1});
  CHECK(page.text ==
        "ConvNet on rendered digits, 2 trainers\n"
        "epoch 1/2  step 100/250  loss 0.5000  1,000 samples/s  2 trainers\n"
        "trainer 1 (pid 9) died: killed by signal 9 · detected after 0.3 ms · left the collective after 2 ms "
        "· training "
        "again after 14 ms\n"
        "2 trainers: trainer 2 joined from the memory of trainer 0\n"
        "epoch 1/2  step 200/250  loss 0.5000  1,000 samples/s  2 trainers\n"
        "epoch 1/2  step 250/250  loss 0.5000  1,000 samples/s  2 trainers\n"
        "epoch  train/loss  test/accuracy  seconds\n"
        "    1      0.5000        95.00 %      3.0\n"
        "checkpoint of step 250 saved: /c/checkpoint-00000001.json\n"
        "epoch  train/loss  test/accuracy  seconds\n"
        "    2      0.2500        97.00 %      3.0\n"
        "    3      0.2500        97.00 %      3.0\n"
        "warning: the disk is nearly full\n"
        "500 steps in 6.0 s, 1 fault survived\n"
        "state sha256 abc\n");
}

TEST_CASE("a length in steps, evaluations within epochs, a begin from a file, a log that was lost") {
  Page page;
  ManualClock clock;
  Reporter reporter(page, clock);
  reporter.show(JobStarted{"job", 1});
  reporter.show(Resumed{0, 1, "/c/weights.safetensors"});
  StepDone step = at(250);
  step.total_steps = 600;  // of epochs of 250
  reporter.show(step);
  reporter.show(Evaluated{1, 45, metrics(0.5, 0.95), 3});
  reporter.show(EpochDone{1, 250, metrics(0.5, 0.95), 3});
  JobDone done{"abc", 600, 6, 0};
  done.incomplete_logs = 1;
  reporter.show(done);
  CHECK(page.text ==
        "job\n"
        "begins from /c/weights.safetensors\n"
        "epoch 1/3  step 250/250  loss 0.5000  1,000 samples/s  2 trainers\n"
        "epoch  train/loss  test/accuracy  seconds\n"
        "  @45      0.5000        95.00 %      3.0\n"
        "    1      0.5000        95.00 %      3.0\n"
        "600 steps in 6.0 s\n"
        "A LOG IS INCOMPLETE: see the warnings above\n"
        "state sha256 abc\n");
}

TEST_CASE("on a terminal: a bar that redraws itself ten times a second") {
  Page page;
  page.terminal = true;
  ManualClock clock;
  {
    Reporter reporter(page, clock);
    reporter.show(JobStarted{"job", 1});
    CHECK(page.take() == "job\n");
    reporter.show(at(1));
    CHECK(page.take() == "\r\x1b[K" + progress_bar(at(1), 1, 59));
    clock.advance(99ms);
    reporter.show(at(2));
    CHECK(page.take().empty());
    clock.advance(1ms);
    page.width = 200;  // resized meanwhile
    reporter.show(at(3));
    // Two steps in 100 ms: 247 of them take 12.35 s.
    CHECK(page.take() == "\r\x1b[K" + progress_bar(at(3), 1, 199, 12.35));

    reporter.show(at(4));
    reporter.show(Warning{"w"});
    CHECK(page.take() == "\r\x1b[Kwarning: w\n\r\x1b[K" + progress_bar(at(4), 1, 199, 8.2));

    reporter.show(at(250));
    CHECK(page.take() == "\r\x1b[K" + progress_bar(at(250), 1, 199, 0));
    reporter.show(Evaluating{1});
    CHECK(page.take() == "\r\x1b[Kepoch 1/1  evaluating");
    reporter.show(EpochDone{1, 250, metrics(0.5, 0.95), 3});
    CHECK(page.take() == "\r\x1b[K" + epoch_header(metrics(0.5, 0.95)) + "\n" +
                             metrics_row("1", metrics(0.5, 0.95), 3) + "\n");
    clock.advance(1s);
    reporter.show(at(1));
    page.take();
    reporter.clear();
    CHECK(page.take() == "\r\x1b[K");
    reporter.clear();
    CHECK(page.take().empty());
    clock.advance(1s);
    reporter.show(at(2));
    page.take();
  }
  CHECK(page.take() == "\r\x1b[K");  // a reporter that goes leaves a clean line
}

TEST_CASE("what a user's code says commands no terminal") {
  Page page;
  ManualClock clock;
  Reporter reporter(page, clock);
  reporter.show(Warning{"loss() threw: \x1b]0;mine\x07 \x1b[2J\r\x7fgrün\nnext"});
  CHECK(page.text == "warning: loss() threw: ?]0;mine? ?[2J??grün\nnext\n");
}

TEST_CASE("colour only where it is allowed") {
  Page page;
  page.terminal = true;
  ManualClock clock;
  Reporter reporter(page, clock);
  reporter.show(Fault{"x died", {}, {}, {}});
  CHECK(page.take() == "x died\n");
  page.colour = true;
  reporter.show(Fault{"x died", {}, {}, {}});
  CHECK(page.take() == "\x1b[31mx died\x1b[0m\n");
  reporter.show(JobDone{"abc", 1, 1, 0});
  CHECK(page.take() == "\x1b[32m1 step in 1.0 s\x1b[0m\nstate sha256 abc\n");
}

TEST_CASE("a narrow terminal gets a long line in several") {
  Page page;
  page.terminal = true;
  ManualClock clock;
  Reporter reporter(page, clock);
  reporter.show(Fault{"trainer 1 (pid 9) died: killed by signal 9", 0.3, 2, {}});
  CHECK(page.take() ==
        "trainer 1 (pid 9) died: killed by signal 9\n  \u00b7 detected after 0.3 ms \u00b7 left the "
        "collective after 2 "
        "ms\n");
}
