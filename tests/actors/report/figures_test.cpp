#include "actors/report/figures.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "actors/report/csv_log.hpp"
#include "actors/report/tensorboard_hparams.hpp"
#include "actors/report/tensorboard_log.hpp"
#include "tests/support/files.hpp"

using namespace troupe;
using namespace troupe::report;
using troupe::test::read_file, troupe::test::TempFolder;

namespace {

std::string hex(const std::string& bytes) {
  std::ostringstream text;
  for (const unsigned char c : bytes) text << "0123456789abcdef"[c >> 4] << "0123456789abcdef"[c & 15];
  return text.str();
}

}  // namespace

TEST_CASE("a step and an epoch have figures, at the job's step; other events have none") {
  const auto step = figures_of(StepDone{2, 100, 600, 0.5, 1000, 2});
  CHECK(step.epoch == 2);
  CHECK(step.global_step == 700);
  REQUIRE(step.figures.size() == 3);
  CHECK(step.figures[0].name == "step/loss");
  CHECK(step.figures[0].value == 0.5);
  const auto more = figures_of(StepDone{1, 1, 1, 0.5, 1000, 2, {{"learning_rate/maker", 0.1}}}).figures;
  REQUIRE(more.size() == 4);
  CHECK(more[3].name == "step/learning_rate/maker");
  CHECK(more[3].value == 0.1);
  CHECK(figures_of(EpochDone{1, 600, {{"test/accuracy", 0.9}}, 3}).figures.size() == 1);
  const auto within = figures_of(Evaluated{2, 700, {{"test/accuracy", 0.9}}, 3});
  CHECK(within.figures.size() == 1);
  CHECK(within.global_step == 700);
  CHECK(figures_of(Warning{"w"}).figures.empty());
}

TEST_CASE("CSV: a row a figure, with all its digits; a name with a comma is quoted") {
  const TempFolder folder;
  ManualClock clock;
  CsvLog log(LogFile::open(folder.path() + "/metrics.csv").value(), clock);
  clock.advance(std::chrono::milliseconds(1250));
  REQUIRE(log.take(JobStarted{"job", 1}).ok());
  REQUIRE(log.take(StepDone{1, 100, 600, 0.1, NAN, 2}).ok());
  REQUIRE(log.take(EpochDone{1, 600, {{"a, \"b\"", 1}}, 3}).ok());
  CHECK(read_file(folder.path() + "/metrics.csv") ==
        "name,epoch,global_step,value,time_s\n"
        "step/loss,1,100,0.10000000000000001,1.250\n"
        "step/trainers,1,100,2,1.250\n"
        "\"a, \"\"b\"\"\",1,600,1,1.250\n");
}

TEST_CASE("CSV: a resumed run adds its rows, and writes no second header") {
  // The rows of the run before were gone.
  const TempFolder folder;
  const ManualClock clock;
  const std::string path = folder.path() + "/metrics.csv";
  for (int epoch = 1; epoch <= 2; ++epoch) {
    CsvLog log(LogFile::open(path, true).value(), clock);
    REQUIRE(log.take(EpochDone{epoch, 600, {{"a", 1}}, 3}).ok());
  }
  CHECK(read_file(path) == "name,epoch,global_step,value,time_s\na,1,600,1,0.000\na,2,600,1,0.000\n");
}

TEST_CASE("TensorBoard: CRC-32C as in RFC 3720, records and messages byte for byte") {
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  // Written by tensorboard.compat.proto.event_pb2 and tensorboard.summary.writer.record_writer.
  CHECK(hex(tensorboard_version(1.5)) == "09000000000000f83f1a0d627261696e2e4576656e743a32");
  CHECK(hex(tensorboard_event(2.0, {1, 300, {{"a", 0.5}}})) ==
        "09000000000000004010ac022a0a0a080a0161150000003f");
  CHECK(hex(tf_record("abc")) ==
        "0300000000000000"
        "b099490e"
        "616263"
        "6e57f121");
}

// Golden strings: written by tensorboard 2.21's plugin_data_pb2 and hparams.metadata.
TEST_CASE("TensorBoard: what its page of hyperparameters reads, byte for byte") {
  const std::vector<Hparam> hparams{{.name = "lr", .low = 0.25, .high = 0.5},
                                    {.name = "net", .values = {std::string("a"), std::string("b")}},
                                    {.name = "on", .values = {true}}};
  CHECK(hex(hparams_experiment(2.0, "s", hparams, {"test/loss"})) ==
        "0900000000000000402a8c010a89010a145f68706172616d735f2f6578706572696d656e7442060801120212004a690a670a"
        "0768"
        "706172616d73125c125a190000000000000040221a0a026c722003321209000000000000d03f11000000000000e03f22130a"
        "036e"
        "657420012a0a0a031a01610a031a0162220c0a026f6e20022a040a0220012a0d0a0b1209746573742f6c6f7373320173");
  CHECK(hex(hparams_session_start(2.0, {{{"lr", 0.25}}, "g"})) ==
        "0900000000000000402a560a540a1c5f68706172616d735f2f73657373696f6e5f73746172745f696e666f42060801120212"
        "004a"
        "2c0a2a0a0768706172616d73121f1a1d0a0f0a026c72120911000000000000d03f220167290000000000000040");
  CHECK(hex(hparams_session_end(2.0, SessionStatus::kFailure)) ==
        "0900000000000000402a420a400a1a5f68706172616d735f2f73657373696f6e5f656e645f696e666f42060801120212004a"
        "1a0a"
        "180a0768706172616d73120d220b0802110000000000000040");
}

TEST_CASE("TensorBoard: a file of records in a folder that is made") {
  const TempFolder folder;
  auto log = TensorBoardLog::open(folder.path() + "/runs/1", [] { return 7.0; }).value();
  REQUIRE(log.take(EpochDone{1, 600, {{"test/accuracy", 0.9}}, 3}).ok());
  REQUIRE(log.take(Warning{"nothing to plot"}).ok());
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/runs/1"))
    files.push_back(entry.path());
  REQUIRE(files.size() == 1);
  CHECK(files[0].filename().string().starts_with("events.out.tfevents.7."));
  CHECK(read_file(files[0]) == tf_record(tensorboard_version(7)) +
                                   tf_record(tensorboard_event(7, {1, 600, {{"test/accuracy", 0.9}}})));
  // It was emptied: a trial that goes on within a second lost what it had written.
  auto again = TensorBoardLog::open(folder.path() + "/runs/1", [] { return 7.0; }).value();
  REQUIRE(again.take(EpochDone{2, 1200, {{"test/accuracy", 0.95}}, 3}).ok());
  CHECK(read_file(files[0]) == tf_record(tensorboard_version(7)) +
                                   tf_record(tensorboard_event(7, {1, 600, {{"test/accuracy", 0.9}}})) +
                                   tf_record(tensorboard_event(7, {2, 1200, {{"test/accuracy", 0.95}}})));
  const auto refused = TensorBoardLog::open("/dev/null/runs", [] { return 7.0; });
  CHECK(refused.error().message().starts_with("cannot make the folder '/dev/null/runs': "));
}
