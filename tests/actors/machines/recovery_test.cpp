// What a generation begins from, and with whom.
#include "actors/train/driver/recovery.hpp"

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

namespace {

constexpr Generation kOld{1, 1}, kNew{1, 2}, kNext{1, 3};

/// A member of the last generation.
Holding member(ActorId actor, int rank, std::int64_t steps, Generation lineage = kOld) {
  return {.actor = actor,
          .arrival = actor.value,
          .rank = rank,
          .known = true,
          .steps = steps,
          .lineage = lineage};
}
/// One that is there since, and holds nothing.
Holding newcomer(ActorId actor) {
  return {.actor = actor, .arrival = actor.value, .known = true};
}

/// Three trainers are wanted for four logical ranks, and one is enough.
RecoveryInput input(std::int64_t committed, std::int64_t saved = 0) {
  return {.generation = kNext,
          .committed = committed,
          .saved = saved,
          .trainers = 3,
          .min_trainers = 1,
          .logical_ranks = 4};
}

/// "A* B C": members in rank order, with a star who holds the state.
std::string members_of(const Recovery& plan) {
  std::string text;
  for (const auto& [actor, holds] : plan.members)
    text += (text.empty() ? "" : " ") + std::string(1, static_cast<char>('A' + actor.value - 1)) +
            (holds ? "*" : "");
  return text;
}

}  // namespace

TEST_CASE("the most steps are the authority, and who has fewer gets the state") {
  const Recovery plan = plan_recovery({member(kA, 0, 4), member(kB, 1, 5)}, input(4));
  CHECK(plan.first_step == 5);
  CHECK(plan.lineage == kOld);
  CHECK(members_of(plan) == "A B*");
  CHECK(plan.source == 1);
  CHECK(plan.receivers == std::vector{0});
  CHECK(plan.followers.empty());
}

TEST_CASE("rank 0 sees the checkpoint folder, if anybody does; the others keep their order") {
  auto a = member(kA, 0, 5), b = member(kB, 1, 5), c = newcomer(kC);
  a.has_folder = false;
  CHECK(members_of(plan_recovery({a, b}, input(5))) == "B* A*");
  b.has_folder = false;
  CHECK(members_of(plan_recovery({a, b}, input(5))) == "A* B*");
  // Without a state anywhere a newcomer is a member.
  a.steps = b.steps = kNoState;
  CHECK(members_of(plan_recovery({a, b, c}, input(5))) == "C A B");
}

// Was cut off as the last one where fewer trainers were wanted: nobody wrote another checkpoint.
TEST_CASE("where fewer are wanted the only one that sees the checkpoint folder stays") {
  auto a = member(kA, 0, kNoState), b = member(kB, 1, kNoState), c = member(kC, 2, kNoState);
  a.has_folder = b.has_folder = false;
  RecoveryInput two = input(4, 4);
  two.trainers = 2;
  CHECK(members_of(plan_recovery({a, b, c}, two)) == "C A");
  c.has_folder = false;
  CHECK(members_of(plan_recovery({a, b, c}, two)) == "A B");
  SECTION("the state matters more than the folder") {
    RecoveryInput one = input(4);
    one.trainers = one.logical_ranks = 1;
    c.has_folder = true;
    a.steps = 4;
    CHECK(members_of(plan_recovery({a, c}, one)) == "A*");
  }
}

TEST_CASE("of as many steps those of the newer lineage count: the older one was given up") {
  const Recovery plan = plan_recovery({member(kA, 0, 4, kOld), member(kB, 1, 4, kNew)}, input(4));
  CHECK(plan.lineage == kNew);
  CHECK(members_of(plan) == "A B*");
}

TEST_CASE("nobody holds a state: the checkpoint is it, or the first") {
  const Recovery saved = plan_recovery({member(kA, 0, kNoState), newcomer(kB)}, input(6, 4));
  CHECK(saved.first_step == 4);
  CHECK(saved.lineage == kNext);
  CHECK(members_of(saved) == "A B");
  CHECK(saved.source == -1);
  CHECK(saved.receivers.empty());
  CHECK(plan_recovery({newcomer(kA)}, input(0)).first_step == 0);
}

TEST_CASE(
    "a state that is older than the checkpoint of committed steps does not count; one that is not does") {
  CHECK(plan_recovery({member(kA, 0, 3)}, input(6, 4)).first_step == 4);
  CHECK(plan_recovery({member(kA, 0, 3)}, input(6, 4)).lineage == kNext);
  // Steps 4 and 5 are void, but nothing before them is read from disk.
  CHECK(plan_recovery({member(kA, 0, 4)}, input(6, 4)).lineage == kOld);
  CHECK(plan_recovery({member(kA, 0, 5)}, input(6, 4)).first_step == 5);
}

TEST_CASE("survivors keep their order, newcomers come behind them in the order in which they came") {
  Holding early = newcomer(ActorId{5}), late = newcomer(kA);
  early.arrival = 1;
  late.arrival = 2;
  RecoveryInput all = input(0);
  all.trainers = 4;
  CHECK(members_of(plan_recovery({late, member(kB, 2, kNoState), member(kC, 0, kNoState), early}, all)) ==
        "C B E A");
}

TEST_CASE(
    "a newcomer stays outside where others hold the state, unless they are too few or wait for copies") {
  const std::vector<Holding> all{member(kA, 0, 4), newcomer(kB)};
  CHECK(members_of(plan_recovery(all, input(4))) == "A*");
  RecoveryInput two = input(4);
  two.min_trainers = 2;
  CHECK(members_of(plan_recovery(all, two)) == "A* B");
  RecoveryInput copies = input(4);
  copies.waits_for_copies = true;
  CHECK(plan_recovery(all, copies).receivers == std::vector{1});
  RecoveryInput sharded = input(4);
  sharded.sharded = true;
  CHECK(plan_recovery(all, sharded).receivers == std::vector{1});
}

TEST_CASE("a follower that lacks the last steps takes them from its source, which must be a member") {
  Holding follower = member(kB, -1, 3);
  follower.follows = true;
  RecoveryInput follows = input(4);
  follows.source = kA;
  const Recovery plan = plan_recovery({member(kA, 0, 4), follower, member(kC, 1, 4)}, follows);
  CHECK(members_of(plan) == "A* C* B");
  CHECK(plan.followers == std::vector{2});
  CHECK(plan.source == 0);
  SECTION("the source gives it though another holds the state, too") {
    follows.source = kC;
    CHECK(plan_recovery({member(kA, 0, 4), follower, member(kC, 1, 4)}, follows).source == 1);
  }
  SECTION("not where the source has lost a step") {
    const Recovery behind = plan_recovery({member(kA, 0, 3), follower, member(kC, 1, 4)}, follows);
    CHECK(members_of(behind) == "A C*");
  }
  SECTION("not of another lineage") {
    follower.lineage = kNew;
    CHECK(members_of(plan_recovery({member(kA, 0, 4), follower}, follows)) == "A*");
  }
}

TEST_CASE("who leaves is left out, unless too few others stay or it alone has the state") {
  Holding leaving = member(kA, 0, 4);
  leaving.leaves = true;
  CHECK(members_of(plan_recovery({leaving, member(kB, 1, 4)}, input(4))) == "B*");
  CHECK(members_of(plan_recovery({leaving}, input(4))) == "A*");
  RecoveryInput two = input(4);
  two.min_trainers = 2;
  CHECK(members_of(plan_recovery({leaving, member(kB, 1, 4)}, two)) == "B* A*");
  SECTION("beyond the wanted ones, as it gives the state away") {
    RecoveryInput one = input(4);
    one.trainers = 1;
    const Recovery plan = plan_recovery({leaving, member(kB, 1, 3)}, one);
    CHECK(members_of(plan) == "B A*");
    CHECK(plan.source == 1);
  }
  SECTION("in the place of another where there are no more logical ranks") {
    RecoveryInput one = input(4);
    one.trainers = one.logical_ranks = 1;
    CHECK(members_of(plan_recovery({leaving, member(kB, 1, 3)}, one)) == "A*");
  }
}

TEST_CASE("no more become members than are wanted") {
  CHECK(members_of(plan_recovery({newcomer(kA), newcomer(kB), newcomer(kC), newcomer(ActorId{4})},
                                 input(0))) == "A B C");
}

TEST_CASE("a plan waits for everyone's word, and for the death of who was killed") {
  Holding silent = member(kB, 1, 0);
  silent.known = false;
  CHECK_FALSE(can_plan({member(kA, 0, 4), silent}, input(4)));
  Holding killed = member(kB, 1, 4);
  killed.killed = true;
  CHECK_FALSE(can_plan({member(kA, 0, 4), killed}, input(4)));
  CHECK(can_plan({member(kA, 0, 4), member(kB, 1, 4)}, input(4)));
}

TEST_CASE("a spare that is at a copy is not waited for where enough members hold the state") {
  Holding busy = newcomer(kB);
  busy.known = false;
  CHECK(can_plan({member(kA, 0, 4), busy}, input(4)));
  CHECK(members_of(plan_recovery({member(kA, 0, 4), busy}, input(4))) == "A*");
  CHECK_FALSE(can_plan({member(kA, 0, 3), busy}, input(4)));  // the newest committed state is not there
  RecoveryInput two = input(4);
  two.min_trainers = 2;
  CHECK_FALSE(can_plan({member(kA, 0, 4), busy}, two));
  RecoveryInput sharded = input(4);
  sharded.sharded = true;
  CHECK_FALSE(can_plan({member(kA, 0, 4), busy}, sharded));
  busy.joins = true;
  CHECK_FALSE(can_plan({member(kA, 0, 4), busy}, input(4)));
}
