// Checkpoints that are written beside the steps, as the driver has them.
#include <memory>

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

/// Two steps of `members`, and both copied.
void run_to(Script& s, const std::vector<ActorId>& members, std::int64_t steps) {
  for (std::int64_t k = s.driver.committed(); k < steps; ++k) {
    for (const ActorId a : members) s.applied(a, k);
  }
}
void copied_by_all(Script& s, const std::vector<ActorId>& members, std::int64_t step) {
  for (std::size_t r = 1; r < members.size(); ++r)
    s.on(StateProved{members[r], s.g(), step, Script::parts_after(step)});
  s.copied(members.front(), step);
}

}  // namespace

TEST_CASE("steps go on while a checkpoint is written, which counts when it is a file") {
  Script s(saving(1), {kA});
  run_to(s, {kA}, 2);
  CHECK(s.order<WriteCheckpoint>(kA)->step == 2);
  CHECK(s.order<Committed>(kA)->limit == 2);
  const Generation ordered = s.g();
  s.copied(kA, 2);
  CHECK(s.order<Committed>(kA)->limit == 4);
  CHECK(s.all<AcceptCheckpoint>().empty());
  s.applied(kA, 2);
  CHECK(s.driver.committed() == 3);
  s.stored(kA, ordered, 2);
  CHECK(s.only<AcceptCheckpoint>().checkpoint.path == "ckpt-2");
  CHECK(s.driver.state() == DriverMachine::State::kRunning);
}

TEST_CASE("the next checkpoint waits for the one that is being written, and so does the job's end") {
  Script s(saving(1), {kA});
  run_to(s, {kA}, 2);
  s.copied(kA, 2);
  run_to(s, {kA}, 4);
  CHECK(s.driver.state() == DriverMachine::State::kBarrier);
  CHECK_FALSE(s.order<WriteCheckpoint>(kA));
  s.stored(kA, s.g(), 2);
  REQUIRE(s.order<WriteCheckpoint>(kA));
  CHECK(s.order<WriteCheckpoint>(kA)->step == 4);
  s.written(kA, 4);
  run_to(s, {kA}, 6);
  s.written(kA, 6);
  run_to(s, {kA}, 8);
  s.copied(kA, 8);
  CHECK_FALSE(s.order<Finish>(kA));
  SECTION("it is written") {
    s.stored(kA, s.g(), 8);
  }
  SECTION("it cannot be written") {
    s.on(CheckpointFailed{kA, s.g(), 8, "the disk is full"});
    CHECK(s.all<Notice>().at(0).text == "no checkpoint of step 8: the disk is full");
  }
  CHECK(s.order<Finish>(kA));
}

TEST_CASE("a checkpoint that is being written outlives its generation, unless its steps are void") {
  Script s(saving(2), {kA, kB});
  run_to(s, {kA, kB}, 2);
  const Generation ordered = s.g();
  copied_by_all(s, {kA, kB}, 2);
  run_to(s, {kA, kB}, 3);
  s.down(kB);
  SECTION("its writer holds the state") {
    s.on(TrainerQuiesced{kA, s.g(), 3, s.lineage, {}, true});
    s.stored(kA, ordered, 2);
    CHECK(s.all<AcceptCheckpoint>().size() == 1);
  }
  SECTION("nobody does: what is written then is of steps that run again") {
    s.on(TrainerQuiesced{kA, s.g(), kNoState, {}, {}, true});
    REQUIRE(s.order<StartGeneration>(kA));
    CHECK(s.order<StartGeneration>(kA)->plan.origin == StateOrigin::kInitial);
    s.stored(kA, ordered, 2);
    CHECK(s.all<AcceptCheckpoint>().empty());
  }
}

TEST_CASE("what was not copied by all is given up, and nothing else is written before its writer has ended") {
  Script s(saving(2), {kA, kB});
  run_to(s, {kA, kB}, 2);
  const Generation ordered = s.g();
  s.copied(kA, 2);
  s.down(kB);
  const auto go_on = [&](bool writes) {
    s.on(TrainerQuiesced{kA, s.g(), 2, s.lineage, {}, writes});
    s.formed(kA);
  };
  SECTION("it writes") {
    go_on(true);
    CHECK(s.driver.state() == DriverMachine::State::kBarrier);
    CHECK_FALSE(s.order<WriteCheckpoint>(kA));
    s.stored(kA, ordered, 2);
    CHECK(s.all<AcceptCheckpoint>().empty());
    CHECK(s.order<WriteCheckpoint>(kA));
  }
  SECTION("it had not begun") {
    go_on(false);
    CHECK(s.order<WriteCheckpoint>(kA));
  }
}

TEST_CASE(
    "a checkpoint whose writer dies is told and counted, and is due again where no step has come since") {
  Script s(saving(2), {kA, kB});
  run_to(s, {kA, kB}, 2);
  copied_by_all(s, {kA, kB}, 2);
  s.down(kA);
  CHECK(s.all<Notice>().at(0).text == "no checkpoint of step 2: trainer 1 (rank 0) died: signal 9");
  s.quiesced(kB, 2);
  s.formed(kB);
  REQUIRE(s.order<WriteCheckpoint>(kB));
  CHECK(s.order<WriteCheckpoint>(kB)->step == 2);
  for (const std::int64_t step : {2, 4, 6, 8}) {
    run_to(s, {kB}, step);
    s.written(kB, step);
  }
  s.on(TrainerFinished{kB, s.g(), 8, "h8"});
  CHECK(s.only<JobDone>().failed_checkpoints == 1);
}

// Nobody of the members computed, and three such standstills in a row failed the job.
TEST_CASE("members wait for a file as long as its writer writes, also one that has left them") {
  DriverConfig config = saving(2);
  config.min_trainers = 1;
  Script s(config, {kA, kB});
  run_to(s, {kA, kB}, 2);
  copied_by_all(s, {kA, kB}, 2);
  s.stored(kA, s.g(), 2);
  s.on(WorkerLeaves{kA, "maintenance"});
  run_to(s, {kA, kB}, 4);
  const Generation ordered = s.g();
  copied_by_all(s, {kA, kB}, 4);
  REQUIRE(s.g() != ordered);
  s.on(TrainerQuiesced{kA, s.g(), 4, s.lineage, {}, true});
  s.quiesced(kB, 4);
  s.formed(kB);
  run_to(s, {kB}, 6);
  REQUIRE(s.driver.state() == DriverMachine::State::kBarrier);
  const Generation waits = s.g();
  s.progress[kA] = {1, true, "the writing of the checkpoint of step 4"};
  s.wait(seconds(40));
  CHECK(s.g() == waits);
  s.stored(kA, ordered, 4);
  CHECK(s.all<AcceptCheckpoint>().size() == 1);
  REQUIRE(s.order<WriteCheckpoint>(kB));
  CHECK(s.order<WriteCheckpoint>(kB)->step == 6);
}

TEST_CASE("what was written is compared with what the others held when it was copied") {
  Script s(saving(2), {kA, kB});
  run_to(s, {kA, kB}, 2);
  copied_by_all(s, {kA, kB}, 2);
  run_to(s, {kA, kB}, 3);
  s.on(CheckpointWritten{kA, s.g(), 2, "ckpt-2", "h2", {{"w", {1, 1}}, {"b", {0, 0}}}});
  CHECK(s.all<AcceptCheckpoint>().empty());
  CHECK(s.all<JobFailed>().size() == 1);
  // Was: it stayed the newest, and a resume went on from it.
  CHECK(s.only<DiscardCheckpoint>().path == "ckpt-2");
}

TEST_CASE("with shards steps wait for the file where somebody is to join there, and not else") {
  DriverConfig config = saving(3);
  config.logical_ranks = 3;
  config.sharded = true;
  Script s(config, {kA, kB, kC});
  s.down(kC);
  for (const ActorId a : {kA, kB}) s.quiesced(a, kNoState);
  for (const ActorId a : {kA, kB}) s.begin(a, 0);
  const auto run_steps = [&](std::int64_t step) {
    for (std::int64_t k = s.driver.committed(); k < step; ++k) {
      StepReport report = Script::step(k);
      report.slots.push_back({2, 12, 5.0F});
      for (const ActorId a : {kA, kB}) s.on(StepApplied{a, s.g(), report, {}});
    }
  };
  const auto run_to_save = [&](std::int64_t step) {
    run_steps(step);
    copied_by_all(s, {kA, kB}, step);
  };
  run_to_save(2);
  CHECK(s.driver.state() == DriverMachine::State::kRunning);
  s.stored(kA, s.g(), 2);
  run_steps(3);
  const Generation before = s.g();
  s.wait(seconds(1));
  s.ready(ActorId{4});
  run_to_save(4);
  CHECK(s.driver.state() == DriverMachine::State::kBarrier);
  CHECK(s.g() == before);
  s.stored(kA, s.g(), 4);
  CHECK(s.g() != before);
}
