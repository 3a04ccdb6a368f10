// Trainers and loaders whose nodes drain: they hand over between two steps, and no step is lost.
#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

bool is_killed(const Script& s, ActorId actor) {
  const auto killed = s.all<KillActor>();
  return std::any_of(killed.begin(), killed.end(), [&](const KillActor& k) { return k.actor == actor; });
}
/// `members` run from step `k` until the next generation opens: the steps that they have then.
std::int64_t run_on(Script& s, const std::vector<ActorId>& members, std::int64_t k) {
  return s.run_until_joined(members, k);
}

}  // namespace

TEST_CASE("a trainer whose node drains goes at the end of a step that all may run, and its place is filled") {
  Script s(config_of(2), {kA, kB});
  s.applied({kA, kB}, 0);
  s.on(WorkerLeaves{kB, "by hand"});
  CHECK(s.all<SpawnActor>().size() == 1);  // at once: somebody is to take its place
  CHECK_FALSE(s.order<Quiesce>(kA));
  CHECK(s.all<KillActor>().empty());
  const std::int64_t at = run_on(s, {kA, kB}, 1);
  CHECK(s.driver.committed() == at);
  s.quiesced(kA, at);
  s.quiesced(kB, at);
  const auto plan = s.order<StartGeneration>(kA);
  REQUIRE(plan);
  CHECK(plan->plan.members.size() == 1);
  CHECK(plan->plan.first_step == at);
  CHECK_FALSE(s.order<StartGeneration>(kB));
  CHECK(s.all<RewindLedger>().empty());
  s.formed(kA);
  CHECK(is_killed(s, kB));
  s.down(kB);
  CHECK(s.all<Notice>().empty());  // it is no fault
  s.applied(kA, at);
  CHECK_FALSE(s.only<Recovered>().fault);
  CHECK(s.only<Recovered>().cause.find("leaves: its node drains (by hand)") != std::string::npos);
}

TEST_CASE("where too few would be left another trainer takes the state first") {
  auto config = config_of(1);
  Script s(config, {kA});
  s.applied(kA, 0);
  s.on(WorkerLeaves{kA, "by hand"});
  CHECK(s.all<SpawnActor>().size() == 1);
  s.applied(kA, 1);
  CHECK_FALSE(s.order<Quiesce>(kA));
  s.ready(kC);
  REQUIRE(s.order<ShareState>(kA));
  s.follow(kA, kC, 2);
  std::int64_t at = run_on(s, {kA}, 2);
  // It lacks the last step, which kA passes on as a member.
  s.quiesced(kC, at - 1);
  s.quiesced(kA, at);
  const auto both = s.order<StartGeneration>(kC);
  REQUIRE(both);
  CHECK(both->plan.members.size() == 2);
  s.formed(kA);
  s.begin(kC, at);
  at = run_on(s, {kA, kC}, at);
  s.quiesced(kA, at);
  s.quiesced(kC, at);
  const auto alone = s.order<StartGeneration>(kC);
  REQUIRE(alone);
  CHECK(alone->plan.members.size() == 1);
  CHECK(alone->plan.members[0].actor == kC);
  CHECK(alone->plan.first_step == at);
  CHECK(s.driver.committed() == at);
  s.formed(kC);
  CHECK(is_killed(s, kA));
}

TEST_CASE("a drain that is cancelled in time changes nothing") {
  Script s(config_of(2), {kA, kB});
  s.on(WorkerLeaves{kB, "by hand"});
  s.on(WorkerLeaves{kB, "", true});
  const Generation before = s.g();
  for (std::int64_t k = 0; k < 3; ++k) {
    s.applied({kA, kB}, k);
  }
  CHECK(s.g() == before);
  CHECK(s.driver.members() == 2);
}

TEST_CASE("a loader whose node drains is replaced, and it is no fault") {
  Script s(config_of(2), {kA, kB});
  s.on(WorkerLeaves{kLoader, "by hand"});
  CHECK(is_killed(s, kLoader));
  CHECK(s.all<Notice>().empty());
  CHECK(s.only<SpawnActor>().kind == SpawnKind::kLoader);
}

TEST_CASE("with shards a trainer leaves at a checkpoint that is written for it") {
  auto config = config_of(2);
  config.sharded = true;
  config.checkpoints = true;
  config.steps_per_epoch = 8;
  Script s(config, {kA, kB});
  s.applied({kA, kB}, 0);
  s.on(WorkerLeaves{kB, "by hand"});
  std::int64_t k = 1;
  for (; !s.order<WriteCheckpoint>(kA); ++k) {
    REQUIRE(k < 8);
    s.applied({kA, kB}, k);
  }
  CHECK(k < 8);
  CHECK_FALSE(s.order<Quiesce>(kA));
  const Generation before = s.g();
  s.written(kA, k);
  s.on(StateProved{kB, s.g(), k, Script::parts_after(k)});
  CHECK(s.g() != before);
  CHECK(s.driver.committed() == k);
}
