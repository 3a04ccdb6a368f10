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

TEST_CASE("the end is the first member's, and others are compared with who told first") {
  Barrier barrier;
  barrier.begin(BarrierTask::kFinish, {kA, kB});
  CHECK(barrier.finish(kB, "h", {{"w", {2, 2}}}));
  CHECK(barrier.finish(kA, "h", {{"w", {1, 1}}}));
  CHECK(barrier.hash() == "h");
  CHECK(barrier.parts() == std::vector<PartHash>{{"w", {1, 1}}});
  barrier.begin(BarrierTask::kFinish, {kA, kB});
  CHECK(barrier.finish(kA, "one", {}));
  CHECK_FALSE(barrier.finish(kB, "other", {}));
  CHECK(barrier.hash() == "one");
}
