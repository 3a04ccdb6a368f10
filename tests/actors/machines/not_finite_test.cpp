// Steps whose loss is no finite number, in the driver's machine.
#include <cmath>
#include <limits>

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

/// Step `k`, whose loss is no number on the second leaf.
StepReport bad_step(std::int64_t k) {
  StepReport report = Script::step(k);
  report.slots[1].loss = std::numeric_limits<double>::quiet_NaN();
  return report;
}

}  // namespace

TEST_CASE("a step without a finite loss counts in no mean where it is left out") {
  for (const NotFinite rule : {NotFinite::kGoOn, NotFinite::kSkip}) {
    DriverConfig config = config_of(1);
    config.not_finite = rule;
    Script s(config, {kA});
    s.applied(kA, 0);
    s.on(StepApplied{kA, s.g(), bad_step(1), Script::parts_after(2), true});
    CHECK(std::isnan(s.only<CommitStep>().loss));
    s.applied(kA, 2);
    s.applied(kA, 3);
    const double mean = s.only<EpochDone>().metrics.at("train/loss");
    CHECK(std::isnan(mean) == (rule == NotFinite::kGoOn));
    if (rule == NotFinite::kSkip) CHECK(mean == 2);
  }
}

TEST_CASE("a job that such a step stops ends behind it, with a checkpoint") {
  DriverConfig config = config_of(2);
  config.not_finite = NotFinite::kStop;
  config.checkpoints = true;
  Script s(config, {kA, kB});
  s.applied({kA, kB}, 0);
  for (const ActorId a : {kA, kB}) s.on(StepApplied{a, s.g(), bad_step(1), Script::parts_after(2), true});
  REQUIRE(s.order<WriteCheckpoint>(kA));
  CHECK(s.order<WriteCheckpoint>(kA)->step == 2);
  s.written(kA, 2);
  s.on(StateProved{kB, s.g(), 2, Script::parts_after(2)});
  for (const ActorId a : {kA, kB}) s.on(TrainerFinished{a, s.g(), 2, "h2"});
  const JobDone done = s.only<JobDone>();
  CHECK(done.stopped_not_finite);
  CHECK_FALSE(done.stopped_early);
  CHECK_FALSE(done.stopped);
  CHECK(done.steps == 2);
  CHECK(done.saved == 2);
}

// The step that stops the job was applied by all, and the generation ended before it was committed.
TEST_CASE("a death behind the step that stops a job does not start it again") {
  DriverConfig config = config_of(2);
  config.not_finite = NotFinite::kStop;
  Script s(config, {kA, kB});
  s.applied({kA, kB}, 0);
  s.on(StepApplied{kA, s.g(), bad_step(1), Script::parts_after(2), true});
  s.on(TrainerDown{kB, "killed by signal 9"});
  s.quiesced(kA, 2, {bad_step(1)});
  s.formed(kA);
  CHECK(s.order<Finish>(kA));
  REQUIRE(s.order<Committed>(kA));
  CHECK(s.order<Committed>(kA)->limit == 2);
}
