// A job that holds after each epoch, until it is told to go on: what a sweep decides at.
#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

/// Three epochs of 4 steps; after the first the job holds.
struct HoldScript : Script {
  HoldScript() : Script(config()) {
    run_from_start({kA, kB});
    for (int k = 0; k < 4; ++k) {
      for (const ActorId a : {kA, kB}) applied(a, k);
    }
  }
  static DriverConfig config() {
    DriverConfig config = config_of(2);
    config.epochs = 3;
    config.hold = true;
    return config;
  }
};

}  // namespace

TEST_CASE("a job holds after an epoch for as long as nobody decides, and goes on from there") {
  HoldScript s;
  REQUIRE(s.all<EpochDone>().size() == 1);
  CHECK(s.only<Held>().state.steps == 4);
  CHECK(s.only<Held>().state.lineage == s.lineage);
  CHECK(s.only<Held>().state.holders == std::vector<ActorId>{kA, kB});
  CHECK(s.order<Committed>(kA)->limit == 4);
  s.last.clear();
  s.wait(seconds(90));  // no standstill: nobody is to come further
  CHECK(s.last.empty());
  s.on(GoOn{});
  CHECK(s.order<Committed>(kB)->limit == 7);
  CHECK(s.driver.state() == DriverMachine::State::kRunning);
  s.on(GoOn{});  // of the same epoch: it holds after the next one
  for (int k = 4; k < 8; ++k) {
    s.applied({kA, kB}, k);
  }
  CHECK(s.all<Held>().size() == 1);
}

TEST_CASE("a job with shards is held, and ends, with its members in rank order: each has its own") {
  DriverConfig config = HoldScript::config();
  config.sharded = true;
  Script s(config, {kA, kB});
  for (int k = 0; k < 4; ++k) {
    s.applied({kA, kB}, k);
  }
  CHECK(s.only<Held>().state.in_shards);
  CHECK(s.only<Held>().state.holders == std::vector<ActorId>{kA, kB});
  s.on(StopRequested{});
  for (const ActorId a : {kA, kB}) s.on(TrainerFinished{a, s.g(), 4, "h4"});
  CHECK(s.only<JobDone>().state.in_shards);
  CHECK(s.only<JobDone>().state.holders == std::vector<ActorId>{kA, kB});
}

TEST_CASE("a word that comes while the epoch's checkpoint is written spares the hold") {
  DriverConfig config = HoldScript::config();
  config.checkpoints = true;
  config.logical_ranks = config.trainers = 1;
  Script s(config, {kA});
  const auto apply = [&](std::int64_t k) {
    s.on(StepApplied{kA, s.g(), {k, {{0, 10, 1.0F}}}, Script::parts_after(k + 1), true});
  };
  for (int k = 0; k < 4; ++k) apply(k);
  REQUIRE(s.all<EpochDone>().size() == 1);
  s.on(GoOn{});
  CHECK(s.driver.state() == DriverMachine::State::kBarrier);
  s.written(kA, 4);
  CHECK(s.all<Held>().empty());
  CHECK(s.driver.state() == DriverMachine::State::kRunning);
}

TEST_CASE("a stop ends a job that holds, with its hash; nothing is held after the last epoch") {
  HoldScript s;
  SECTION("a stop") {
    s.on(StopRequested{});
    CHECK(s.order<Finish>(kA));
    for (const ActorId a : {kA, kB}) s.on(TrainerFinished{a, s.g(), 4, "h4"});
    CHECK(s.only<JobDone>().hash == "h4");
    CHECK(s.only<JobDone>().stopped);
  }
  SECTION("the end") {
    for (int k = 4; k < 12; ++k) {
      if (s.driver.holds()) s.on(GoOn{});
      s.applied({kA, kB}, k);
    }
    CHECK(s.all<Held>().empty());
    CHECK(s.order<Finish>(kA));
  }
}

TEST_CASE("after a death at a hold the survivors hold there again") {
  HoldScript s;
  s.down(kB);
  s.quiesced(kA, 4);
  s.last.clear();
  s.formed(kA);
  CHECK(s.only<Held>().state.holders == std::vector<ActorId>{kA});
  CHECK(s.driver.committed() == 4);
  s.on(GoOn{});
  CHECK(s.driver.state() == DriverMachine::State::kRunning);
}
