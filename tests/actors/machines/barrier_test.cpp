// What all members do before the next step.
#include "actors/train/driver/barrier.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

TEST_CASE("a barrier waits for each member once, and for its own task alone") {
  Barrier barrier;
  CHECK_FALSE(barrier.is_on());
  barrier.begin(BarrierTask::kEvaluate, {kA, kB});
  CHECK(barrier.waits_for(BarrierTask::kEvaluate, kB));
  CHECK_FALSE(barrier.waits_for(BarrierTask::kFinish, kB));
  CHECK_FALSE(barrier.waits_for(BarrierTask::kEvaluate, kC));
  CHECK_FALSE(barrier.done(kC));
  CHECK_FALSE(barrier.done(kB));
  CHECK_FALSE(barrier.waits_for(BarrierTask::kEvaluate, kB));
  CHECK_FALSE(barrier.done(kB));
  CHECK(barrier.done(kA));
  CHECK_FALSE(barrier.done(kA));
  barrier.end();
  CHECK_FALSE(barrier.is(BarrierTask::kEvaluate));
}
