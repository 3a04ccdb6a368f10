#include "actors/report/format.hpp"

#include <catch2/catch.hpp>
#include <cmath>

using namespace troupe::report;

TEST_CASE("times and counts") {
  CHECK(format_ms(0.26) == "0.3 ms");
  CHECK(format_ms(0) == "0 ms");
  CHECK(format_ms(2.04) == "2 ms");
  CHECK(format_ms(9.94) == "9.9 ms");
  CHECK(format_ms(9.96) == "10 ms");
  CHECK(format_ms(14.4) == "14 ms");
  CHECK(format_ms(2500) == "2.5 s");
  CHECK(format_ms(75'400) == "75 s");
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1000) == "1,000");
  CHECK(format_count(1234567) == "1,234,567");
  CHECK(format_count(-123456) == "-123,456");
}

TEST_CASE("a line a step") {
  CHECK(step_line({1, 100, 600, 0.12344, 12345.4, 2}, 3) ==
        "epoch 1/3  step 100/600  loss 0.1234  12,345 samples/s  2 trainers");
  CHECK(step_line({2, 1, 600, NAN, INFINITY, 1}, 3) ==
        "epoch 2/3  step 1/600  loss nan  ? samples/s  1 trainer");
}

TEST_CASE("a bar fits its terminal") {
  const StepDone step{1, 300, 600, 0.1234, 12345, 2};
  CHECK(
      progress_bar(step, 3, 100) ==
      "epoch 1/3 [==================>                  ] 300/600  loss 0.1234  12,345 samples/s  2 trainers");
  CHECK(progress_bar(step, 3, 100).size() == 100);
  CHECK(progress_bar(step, 3, 200).size() == 103);
  CHECK(progress_bar(step, 3, 40) == "epoch 1/3 [=====>    ] 300/600  loss 0.1");
  CHECK(progress_bar(step, 3, 0).empty());
  CHECK(progress_bar(step, 3, -5).empty());
  CHECK(progress_bar({1, 600, 600, 1, 1, 1}, 1, 60) ==
        "epoch 1/1 [==========] 600/600  loss 1.0000  1 samples/s  1 ");
  CHECK(progress_bar({1, 0, 0, 1, 1, 1}, 1, 30) == "epoch 1/1 [>         ] 0/0  lo");
}

TEST_CASE("one line a fault") {
  CHECK(fault_line({"trainer 1 (pid 123) died: killed by signal 9", 0.3, 2.0, 14.0}) ==
        "trainer 1 (pid 123) died: killed by signal 9 · detected after 0.3 ms · left the collective after 2 "
        "ms · "
        "training again after 14 ms");
  CHECK(fault_line({"loader 0 (pid 5) died: exit code 1", 1.5, {}, 30.0}) ==
        "loader 0 (pid 5) died: exit code 1 · detected after 1.5 ms · training again after 30 ms");
  CHECK(fault_line({"node 2 is silent", {}, {}, {}}) == "node 2 is silent");
}

TEST_CASE("a row an epoch, under its head: training first, accuracies in percent") {
  const Metrics metrics{{"test/accuracy", 0.9861}, {"test/top5", 0.5}, {"train/loss", 0.12344}};
  CHECK(epoch_header(metrics) == "epoch  train/loss  test/accuracy  test/top5  seconds");
  CHECK(metrics_row("1", metrics, 12.34) == "    1      0.1234        98.61 %     0.5000     12.3");
  CHECK(epoch_header({}) == "epoch  seconds");
  CHECK(metrics_row("12", {}, 0) == "   12      0.0");
}

TEST_CASE("the time that is left, as a person reads it") {
  CHECK(format_time(0) == "0:00");
  CHECK(format_time(64.2) == "1:05");
  CHECK(format_time(7207) == "2:00:07");
  CHECK(format_time(-1) == "?");
  CHECK(format_time(NAN) == "?");
  const StepDone step{1, 300, 600, 0.1234, 12345, 2};
  CHECK(progress_bar(step, 3, 200, 65)
            .ends_with("] 300/600  ETA 1:05  loss 0.1234  12,345 samples/s  2 trainers"));
}

TEST_CASE("a long line is broken before a middle dot") {
  CHECK(wrap("one \u00b7 two \u00b7 three", 80) == "one \u00b7 two \u00b7 three");
  CHECK(wrap("one \u00b7 two \u00b7 three", 9) == "one \u00b7 two\n  \u00b7 three");
  CHECK(wrap("one \u00b7 two", 8) == "one\n  \u00b7 two");
  CHECK(wrap("a line without one", 4) == "a line without one");
  CHECK(wrap("", 4).empty());
}

TEST_CASE("a line for the end") {
  CHECK(summary_line({"", 1800, 36.51, 0}) == "1,800 steps in 36.5 s");
  CHECK(summary_line({"", 1, 1, 1}) == "1 step in 1.0 s, 1 fault survived");
  CHECK(summary_line({"", 2, 1, 2}) == "2 steps in 1.0 s, 2 faults survived");
  // It counted the steps of earlier runs as its own.
  JobDone resumed{"", 600, 1, 0, 480, 2};
  CHECK(summary_line(resumed) == "120 steps in 1.0 s, after 480 of earlier runs, 2 deadlines expired");
  JobDone stopped{"", 0, 1, 0};
  stopped.stopped = true;
  CHECK(summary_line(stopped) == "stopped before the first step");
  resumed.lost_after = 480;
  resumed.failed_checkpoints = 2;
  CHECK(unsaved_line(resumed) ==
        "THE FINAL STATE WAS NOT SAVED (2 failures): the newest checkpoint is of step 480");
  resumed.lost_after = 0;
  CHECK(unsaved_line(resumed) == "NO CHECKPOINT WAS WRITTEN (2 failures)");
  CHECK(incomplete_line(1) == "A LOG IS INCOMPLETE: see the warnings above");
  CHECK(incomplete_line(2) == "2 LOGS ARE INCOMPLETE: see the warnings above");
}
