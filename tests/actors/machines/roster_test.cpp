// Who there is, and what is started again.
#include "actors/train/driver/roster.hpp"

#include <utility>

#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;
using Catch::Contains;

namespace {

/// Two trainers and a loader are wanted; it is second 1.
struct Lists {
  explicit Lists(DriverConfig config = config_of(2)) : roster(shared(config)) { roster.start(seconds(1)); }
  Roster roster;
  DriverActions out;

  template <class A>
  std::vector<A> take() {
    std::vector<A> found;
    for (const DriverAction& action : std::exchange(out, {})) {
      if (const auto* a = std::get_if<A>(&action)) found.push_back(*a);
    }
    return found;
  }
  TrainerSeat& add(ActorId trainer, Instant now = seconds(1)) {
    TrainerSeat* seat = roster.add(TrainerReady{0, trainer, NodeId{1}, "", false}, now);
    REQUIRE(seat != nullptr);
    return *seat;
  }
  void add_loader(ActorId loader, Instant now = seconds(1)) {
    REQUIRE(roster.add(LoaderReady{0, loader, {}, ""}, now, out));
  }
};

}  // namespace

TEST_CASE("what is wanted and not there is started once") {
  Lists s;
  s.roster.spawn_missing(true, seconds(1), s.out);
  const auto spawns = s.take<SpawnActor>();
  REQUIRE(spawns.size() == 3);
  CHECK(spawns[1].reason == "1 of 2 are there");
  CHECK(spawns[2].kind == SpawnKind::kLoader);
  s.roster.spawn_missing(true, seconds(1), s.out);
  CHECK(s.out.empty());
  CHECK(s.roster.take_spawn(spawns[0].token) == SpawnKind::kTrainer);
  CHECK_FALSE(s.roster.take_spawn(spawns[0].token));
  s.roster.spawn_missing(false, seconds(1), s.out);  // not now
  CHECK(s.out.empty());
  s.roster.spawn_missing(true, seconds(1), s.out);
  CHECK(s.take<SpawnActor>().size() == 1);
}

TEST_CASE("a trainer whose node drains is replaced while it is still there") {
  Lists s;
  s.add(kA);
  s.add(kB).leaves = true;
  CHECK(s.roster.staying() == 1);
  s.roster.spawn_missing(true, seconds(1), s.out);
  CHECK(s.take<SpawnActor>().at(0).kind == SpawnKind::kTrainer);
}

TEST_CASE("who is dead never comes back") {
  Lists s;
  s.add(kA);
  CHECK(s.roster.add(TrainerReady{0, kA, {}, "", false}, seconds(1)) == nullptr);
  REQUIRE(s.roster.remove(kA));
  CHECK_FALSE(s.roster.remove(kA));
  CHECK(s.roster.counts_as_dead(kA));
  CHECK(s.roster.add(TrainerReady{0, kA, {}, "", false}, seconds(1)) == nullptr);
  s.roster.mark_dead(kLoader);
  CHECK_FALSE(s.roster.add(LoaderReady{0, kLoader, {}, ""}, seconds(1), s.out));
}

TEST_CASE("a start that fails is tried again after pauses that double, and given up after the budget") {
  DriverConfig config = config_of(1);
  config.restart.budget = 3;
  Lists s(config);
  Instant now = seconds(1);
  for (int failure = 1; failure <= 4; ++failure) {
    CAPTURE(failure);
    const auto gave_up = s.roster.spawn_failed(SpawnKind::kTrainer, "no CPU", now, s.out);
    CHECK(gave_up.has_value() == (failure == 4));
    CHECK(s.take<Notice>().size() == (failure == 1 || failure == 4 ? 1U : 0U));  // the same is said once
    const Duration pause = config.restart.pause_after(failure);
    s.roster.spawn_missing(true, now += pause, s.out);
    const auto spawns = s.take<SpawnActor>();
    const bool tried = std::any_of(spawns.begin(), spawns.end(),
                                   [](const auto& spawn) { return spawn.kind == SpawnKind::kTrainer; });
    CHECK(tried == (failure < 4));
    for (const auto& spawn : spawns) s.roster.take_spawn(spawn.token);
    if (gave_up) CHECK(gave_up->reason == "4 failures without progress, the last one: no CPU");
  }
  CHECK(s.roster.given_up_trainers() == "no CPU");
}

TEST_CASE("a newcomer that helped the job further than ever ends the count of failures, once") {
  DriverConfig config = config_of(2);
  config.restart.budget = 1;
  Lists s(config);
  s.add(kA);
  const auto fails = [&] { return s.roster.spawn_failed(SpawnKind::kTrainer, "x", seconds(1), s.out); };
  fails();
  s.roster.made_progress({kA});
  fails();
  CHECK_FALSE(s.roster.given_up_trainers());
  s.roster.made_progress({kA});
  CHECK_FALSE(fails());  // given up, and with the one that is there the job goes on
  CHECK(s.roster.given_up_trainers());
}

TEST_CASE("a spawn without an answer is cancelled") {
  Lists s(config_of(1));
  s.add_loader(kLoader);
  s.roster.spawn_missing(true, seconds(1), s.out);
  const auto token = s.take<SpawnActor>().at(0).token;
  CHECK_FALSE(s.roster.check_spawns(seconds(90), s.out));
  CHECK(s.out.empty());
  CHECK_FALSE(s.roster.check_spawns(seconds(91), s.out));
  CHECK(s.take<CancelSpawn>().at(0).token == token);
  CHECK_THAT(s.roster.too_few_came().reason, Contains("it did not start within 90 s"));
  CHECK(s.roster.too_few_came().todo.empty());
}

// Was: after the budget of these "failures" nothing was started again, for ever.
TEST_CASE("a spawn that waits for room has its time from when it has that, and has not failed") {
  DriverConfig config = config_of(2);
  config.restart.budget = 1;
  Lists s(config);
  s.add_loader(kLoader);
  s.add(kA);
  s.roster.spawn_missing(true, seconds(1), s.out);
  const auto token = s.take<SpawnActor>().at(0).token;
  Instant now = seconds(1);
  for (; now < seconds(2000); now += seconds(1)) {
    REQUIRE(s.roster.spawn_waits({token, "no node has 1 GPU free"}, now, s.out));
    REQUIRE_FALSE(s.roster.check_spawns(now, s.out));
    s.roster.spawn_missing(true, now, s.out);
  }
  CHECK(s.out.size() == 1);  // said once, and nobody else was started
  CHECK(s.take<Notice>().at(0).text == "a trainer waits: no node has 1 GPU free");
  CHECK_FALSE(s.roster.given_up_trainers());
  CHECK_FALSE(s.roster.check_spawns(now + seconds(88), s.out));
  CHECK(s.out.empty());
  s.roster.check_spawns(now + seconds(89), s.out);  // it has its room, and does not start
  CHECK(s.take<CancelSpawn>().at(0).token == token);
}

TEST_CASE("of two that wait for different things each is told once") {
  Lists s;
  s.add_loader(kLoader);
  s.roster.spawn_missing(true, seconds(1), s.out);
  const auto spawns = s.take<SpawnActor>();
  for (int i = 0; i < 5; ++i) {
    s.roster.spawn_waits({spawns.at(0).token, "no GPU"}, seconds(2), s.out);
    s.roster.spawn_waits({spawns.at(1).token, "no CPU"}, seconds(2), s.out);
  }
  CHECK(s.take<Notice>().size() == 2);
}

TEST_CASE("who says nothing, hangs or does not leave is overdue, one after another") {
  Lists s(config_of(2));
  s.add(kA);
  TrainerSeat& hangs = s.add(kB);
  hangs.life.note({1, true, "step 1, leaf 0"}, seconds(1));
  TrainerSeat& stays = s.add(kC);
  stays.quiesced = false;
  stays.deadline = seconds(7);
  CHECK_FALSE(s.roster.next_overdue({}, seconds(6)));
  const auto silent = s.roster.next_overdue({}, seconds(7));
  REQUIRE(silent);
  CHECK(silent->actor == kA);
  CHECK(silent->what == "trainer 1 gave no sign of life for 6 s");
  for (auto* seat : {&hangs, &stays}) seat->life.last_heard = seconds(121);
  const auto hung = s.roster.next_overdue(kA, seconds(121));
  REQUIRE(hung);
  CHECK(hung->hangs);
  CHECK(hung->what ==
        "trainer 2 is killed: it has shown no progress for 120 s (deadlines.hang) in step 1, leaf 0");
  const auto late = s.roster.next_overdue(kB, seconds(121));
  REQUIRE(late);
  CHECK_FALSE(late->hangs);
  CHECK(late->why == "it did not leave its collective in time");
  CHECK_FALSE(s.roster.next_overdue(kC, seconds(121)));
  stays.killed = true;
  stays.deadline = seconds(130);
  CHECK(s.roster.unconfirmed(seconds(129)).empty());
  CHECK(s.roster.unconfirmed(seconds(130)) == std::vector{kC});
}

TEST_CASE("a driver that stood still blames nobody for it") {
  Lists s;
  s.add(kA);
  s.add_loader(kLoader);
  s.roster.shift(seconds(100));
  CHECK_FALSE(s.roster.next_overdue({}, seconds(106)));
  CHECK(s.roster.overdue_loaders(seconds(106)).empty());
  CHECK(s.roster.overdue_loaders(seconds(107)).size() == 1);
}

TEST_CASE("trainers hear of loaders that come and go; without one for too long the job fails") {
  Lists s;
  s.add(kA);
  s.add(kB).killed = true;
  s.add_loader(kLoader);
  const auto told = s.take<SendOrder>();
  REQUIRE(told.size() == 1);
  CHECK(std::get<SetLoaders>(told[0].order).loaders.size() == 1);
  s.add_loader(kC);
  CHECK(s.take<KillActor>().at(0).actor == kC);  // there are loaders enough
  CHECK_FALSE(s.roster.check_loaderless(seconds(500)));
  CHECK_FALSE(s.roster.lose_loader(kLoader, "signal 9", true, seconds(10), s.out));
  CHECK_FALSE(s.roster.uses_loader(kLoader));
  CHECK(s.take<SendOrder>().size() == 1);
  CHECK_FALSE(s.roster.check_loaderless(seconds(129)));
  CHECK(s.roster.check_loaderless(seconds(130))->reason ==
        "no loader could be started in time: loader 9 died: signal 9");
}

TEST_CASE("loaders without a sign of life come before those that hang") {
  DriverConfig config = config_of(2);
  config.loaders = 2;
  Lists s(config);
  s.add_loader(kA);
  s.add_loader(kB);
  for (const Instant now : {seconds(1), seconds(121)}) s.roster.note({kA, {1, true, "a batch"}}, now);
  const auto overdue = s.roster.overdue_loaders(seconds(121));
  REQUIRE(overdue.size() == 2);
  CHECK(overdue[0].actor == kB);
  CHECK(overdue[1].hangs);
  CHECK_FALSE(s.roster.note({kC, {}}, seconds(121)));
}

TEST_CASE("who waits in what is told of all, and whether anybody computes") {
  Lists s;
  CHECK(s.roster.who_waits() == "no trainer is up");
  s.add(kA).rank = 0;
  s.add(kB).life.progress = {1, true, "step 2, leaf 5"};
  CHECK(s.roster.who_waits() == "trainer 1 (rank 0) waits, trainer 2 computes in step 2, leaf 5");
  CHECK_FALSE(s.roster.somebody_computes({kA}));  // who is no member does not matter
  CHECK(s.roster.somebody_computes({kA, kB}));
}
