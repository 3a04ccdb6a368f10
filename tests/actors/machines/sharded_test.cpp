/// Jobs with shards: no trainer holds a whole state.
#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {
/// Of three logical ranks.
StepReport of_three(std::int64_t k) {
  StepReport step = Script::step(k);
  step.slots.push_back({2, 12, 5.0F});
  return step;
}
}  // namespace

TEST_CASE("with shards a death goes back to the checkpoint, and a newcomer joins at the next") {
  DriverConfig config = config_of(3);
  config.logical_ranks = 3;
  config.sharded = true;
  config.checkpoints = true;
  config.checkpoint_every = 2;
  Script s(config, {kA, kB, kC});
  const auto run = [&](const std::vector<ActorId>& members, std::int64_t k) {
    for (const ActorId a : members) s.on(StepApplied{a, s.g(), of_three(k), {}});
  };
  const auto save = [&](const std::vector<ActorId>& members, std::int64_t k) {
    for (const ActorId a : members) {
      if (a != members.front()) s.on(StateProved{a, s.g(), k, Script::parts_after(k)});
    }
    s.written(members.front(), k);
  };
  for (const std::int64_t k : {0, 1}) run({kA, kB, kC}, k);
  save({kA, kB, kC}, 2);
  run({kA, kB, kC}, 2);
  CHECK(s.driver.committed() == 3);

  s.down(kC);
  s.quiesced(kA, kNoState);
  s.quiesced(kB, kNoState);
  REQUIRE(s.order<StartGeneration>(kA));
  const auto again = s.order<StartGeneration>(kA)->plan;
  CHECK(again.origin == StateOrigin::kCheckpoint);
  CHECK(again.first_step == 2);
  CHECK(again.sharded);
  CHECK_FALSE(again.prove);
  CHECK(s.driver.committed() == 2);
  for (const ActorId a : {kA, kB}) s.begin(a, 2);
  // One that comes amid steps waits: nobody has a whole state to give.
  run({kA, kB}, 2);
  const Generation before = s.g();
  constexpr ActorId kD{4};
  s.wait(seconds(1));
  s.ready(kD);
  CHECK(s.g() == before);
  CHECK_FALSE(s.order<ShareState>(kB));
  run({kA, kB}, 3);
  save({kA, kB}, 4);
  CHECK(s.g() > before);
  for (const ActorId a : {kA, kB, kD}) s.quiesced(a, kNoState);
  REQUIRE(s.order<StartGeneration>(kD));
  const auto wide = s.order<StartGeneration>(kD)->plan;
  CHECK(wide.members.size() == 3);
  CHECK(wide.origin == StateOrigin::kCheckpoint);
  CHECK(wide.first_step == 4);
  CHECK(s.driver.committed() == 4);
}

TEST_CASE("with shards a trainer that is alone gives its whole state to who joins") {
  DriverConfig config = config_of(2);
  config.sharded = true;
  Script s(config, {kA, kB});
  s.applied({kA, kB}, 0);
  s.down(kB);
  s.quiesced(kA, kNoState);
  REQUIRE(s.order<StartGeneration>(kA));
  CHECK(s.order<StartGeneration>(kA)->plan.origin == StateOrigin::kInitial);
  s.begin(kA, 0);
  s.lineage = s.g();
  s.applied(kA, 0);
  s.wait(seconds(1));
  s.ready(kC);
  s.quiesced(kA, 1);
  CHECK_FALSE(s.order<StartGeneration>(kA));  // not without the one for whom it is
  s.quiesced(kC, kNoState);
  REQUIRE(s.order<StartGeneration>(kC));
  const auto wide = s.order<StartGeneration>(kC)->plan;
  CHECK(wide.origin == StateOrigin::kMembers);
  CHECK(wide.receivers == std::vector{1});
  CHECK(wide.first_step == 1);
}

TEST_CASE("with shards who cannot read the checkpoint gets it from one that can, for which all wait") {
  DriverConfig config = config_of(2);
  config.sharded = true;
  config.checkpoints = true;
  config.min_trainers = 1;
  config.resume = {{"old-4", 4, "h4"}};
  Script s(config);
  s.join(kA, /*sees_folder=*/false);
  s.wait(seconds(20));
  CHECK_FALSE(s.order<StartGeneration>(kA));
  s.join(kB);
  REQUIRE(s.order<StartGeneration>(kA));
  const auto plan = s.order<StartGeneration>(kA)->plan;
  CHECK(plan.members.at(0).actor == kB);
  CHECK(plan.origin == StateOrigin::kCheckpoint);
  CHECK(plan.source == 0);
  CHECK(plan.receivers == std::vector{1});
  SECTION("it finds the file torn: nobody has it, and nobody could read another") {
    for (const ActorId a : {kA, kB}) s.formed(a), s.on(CheckpointUnreadable{a, s.g(), "old-4", "torn"});
    CHECK_THAT(s.only<JobFailed>().reason, Catch::Contains("no trainer can read any checkpoint"));
  }
}

TEST_CASE("with shards one that sees the folder and cannot read the file gets it from another one") {
  DriverConfig config = config_of(2);
  config.sharded = true;
  config.checkpoints = true;
  config.resume = {{"old-4", 4, "h4"}};
  Script s(config);
  for (const ActorId a : {kA, kB}) s.join(a);
  CHECK(s.order<StartGeneration>(kA)->plan.receivers.empty());
  for (const ActorId a : {kA, kB}) s.formed(a);
  s.on(CheckpointUnreadable{kA, s.g(), "old-4", "its disk is broken"});
  s.installed(kB, 4);
  for (const ActorId a : {kA, kB}) s.quiesced(a, kNoState);
  REQUIRE(s.order<StartGeneration>(kA));
  const auto plan = s.order<StartGeneration>(kA)->plan;
  CHECK(plan.origin == StateOrigin::kCheckpoint);
  CHECK(plan.source == 1);
  CHECK(plan.receivers == std::vector{0});
}

// Who once could not read a file was never its reader again: with the other one gone the job formed
// generation after generation, for good.
TEST_CASE("with shards one that could not read a checkpoint and then does passes it on") {
  DriverConfig config = config_of(2);
  config.sharded = true;
  config.checkpoints = true;
  config.min_trainers = 2;
  config.resume = {{"old-4", 4, "h4"}};
  Script s(config);
  for (const ActorId a : {kA, kB}) s.join(a);
  for (const ActorId a : {kA, kB}) s.formed(a);
  s.on(CheckpointUnreadable{kA, s.g(), "old-4", "its disk is away"});
  s.installed(kB, 4);
  for (const ActorId a : {kA, kB}) s.quiesced(a, kNoState);
  s.down(kB);
  s.quiesced(kA, kNoState);
  s.alive.push_back(kC);
  s.on(TrainerReady{s.take_token(SpawnKind::kTrainer), kC, NodeId{2}, "addr", false, false});
  s.quiesced(kC, kNoState);
  REQUIRE(s.order<StartGeneration>(kA));
  const auto each = s.order<StartGeneration>(kA)->plan;
  CHECK(each.origin == StateOrigin::kCheckpoint);
  CHECK(each.members.at(0).actor == kA);
  CHECK(each.source == -1);
  CHECK(each.receivers.empty());
  for (const ActorId a : {kA, kC}) s.formed(a);
  s.on(CheckpointUnreadable{kC, s.g(), "old-4", "no such file"});
  s.installed(kA, 4);
  for (const ActorId a : {kA, kC}) s.quiesced(a, kNoState);
  REQUIRE(s.order<StartGeneration>(kA));
  const auto plan = s.order<StartGeneration>(kA)->plan;
  CHECK(plan.source == 0);
  CHECK(plan.receivers == std::vector{1});
}
