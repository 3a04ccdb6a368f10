#include "actors/report/json_log.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::report;

TEST_CASE("one object a line for every event") {
  CHECK(json_line(JobStarted{"job", 3}, 0) ==
        R"({"event":"job_started","what":"job","epochs":3,"time_s":0.0})");
  CHECK(json_line(StepDone{1, 100, 600, 0.5, 1000, 2}, 1.25) ==
        R"({"event":"step","epoch":1,"step":100,"steps_per_epoch":600,"loss":0.5,"samples_per_s":1000.0,)"
        R"("trainers_alive":2,"time_s":1.25})");
  CHECK(json_line(StepDone{1, 1, 1, NAN, INFINITY, 2}, 0) ==
        R"({"event":"step","epoch":1,"step":1,"steps_per_epoch":1,"loss":null,"samples_per_s":null,)"
        R"("trainers_alive":2,"time_s":0.0})");
  CHECK(json_line(StepDone{1, 1, 1, 1, 1, 2, {{"gradient_norm", NAN}, {"learning_rate", 0.5}}}, 0)
            .find(R"("trainers_alive":2,"values":{"gradient_norm":null,"learning_rate":0.5},"time_s")") !=
        std::string::npos);
  CHECK(
      json_line(Fault{"a \"b\"\n", 0.5, {}, 14}, 2) ==
      R"({"event":"fault","what":"a \"b\"\n","detected_ms":0.5,"left_ms":null,"resumed_ms":14.0,"time_s":2.0})");
  CHECK(json_line(Resized{2, "why"}, 0) == R"({"event":"resized","trainers":2,"why":"why","time_s":0.0})");
  CHECK(json_line(Evaluating{2}, 0) == R"({"event":"evaluating","epoch":2,"time_s":0.0})");
  CHECK(json_line(EpochDone{1, 600, {{"train/loss", 0.5}, {"test/accuracy", NAN}}, 3}, 0) ==
        R"({"event":"epoch","epoch":1,"global_step":600,"metrics":{"test/accuracy":null,"train/loss":0.5},)"
        R"("seconds":3.0,"time_s":0.0})");
  CHECK(json_line(Evaluated{1, 45, {{"test/loss", 0.5}}, 3}, 0) ==
        R"({"event":"evaluation","epoch":1,"global_step":45,"metrics":{"test/loss":0.5},"seconds":3.0,)"
        R"("time_s":0.0})");
  CHECK(json_line(Checkpointed{7, "/c/x"}, 0) ==
        R"({"event":"checkpoint","global_step":7,"path":"/c/x","time_s":0.0})");
  CHECK(json_line(Warning{"\xff"}, 0) == "{\"event\":\"warning\",\"text\":\"\xef\xbf\xbd\",\"time_s\":0.0}");
  CHECK(
      json_line(JobDone{"abc", 9, 1.5, 1}, 0) ==
      R"({"event":"job_done","parameters_sha256":"abc","steps":9,"seconds":1.5,"faults":1,)"
      R"("begun_at":0,"expired_deadlines":0,"stopped":false,"failed_checkpoints":0,"saved":true,"incomplete_logs":0,"time_s":0.0})");
  CHECK(json_line(Resumed{480, 2, "/c/x"}, 0) ==
        R"({"event":"resumed","global_step":480,"epoch":2,"path":"/c/x","time_s":0.0})");
}

TEST_CASE("lines are in the file as soon as they are written") {
  const test::TempFolder folder;
  const std::string path = folder / "events";
  std::ofstream(path) << "old";
  ManualClock clock;
  clock.set(std::chrono::seconds(5));
  {
    JsonLog log(LogFile::open(path).value(), clock);
    clock.advance(std::chrono::seconds(2));
    REQUIRE(log.take(Warning{"a"}).ok());
    CHECK(test::read_file(path) == "{\"event\":\"warning\",\"text\":\"a\",\"time_s\":2.0}\n");
  }
}

TEST_CASE("a file that cannot be written is one clear error") {
  ManualClock clock;
  const auto none = LogFile::open("/no/such/folder/events.json");
  CHECK(none.error().message() ==
        "cannot write '/no/such/folder/events.json': No such file or directory (name a file that can be "
        "written, in "
        "a folder that is there)");
  JsonLog full(LogFile::open("/dev/full").value(), clock);
  CHECK(full.take(Warning{"a"}).error().message() ==
        "cannot write '/dev/full': No space left on device (the file is incomplete from here on; training "
        "goes on)");
  CHECK(full.take(Warning{"b"}).ok());
}
