// What hangs, what fails again and again, and how a job ends that cannot go on.

#include "actors/train/driver/first_loader.hpp"
#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;
using Catch::Contains;

namespace {

/// A job in which A and B compute.
Script two_trainers() {
  Script s(config_of(2), {kA, kB});
  return s;
}

/// The newest trainer is gone, and the next one takes its place: A alone holds the state.
void replace(Script& s, ActorId gone, const std::string& how) {
  std::erase(s.alive, gone);
  s.on(TrainerDown{gone, how});
}

}  // namespace

// A step of 65 s, or a leaf of 40 s, opened a generation again and again, and the job never ended.
TEST_CASE("a trainer that computes for long is let be while it comes further, and nobody else is blamed") {
  Script s = two_trainers();
  const Generation g = s.g();
  s.progress[kB] = {5, false, "step 1"};  // waits for A in the collective
  for (std::uint64_t leaf = 1; leaf <= 10; ++leaf) {
    s.progress[kA] = {leaf, true, "step 1, leaf " + std::to_string(leaf)};
    s.wait(seconds(100));
  }
  CHECK(s.g() == g);
  CHECK(s.all<KillActor>().empty());
  CHECK(s.all<DeadlineExpired>().empty());
}

// A trainer whose loss() never came back was not found before others had waited in vain three times (110 s),
// and nobody was told.
TEST_CASE("a trainer that computes without progress is killed, with what it was at") {
  Script s = two_trainers();
  s.progress[kB] = {5, false, "step 1"};
  s.progress[kA] = {1, true, "step 1, leaf 0"};
  s.wait(seconds(119));
  CHECK(s.all<KillActor>().empty());
  s.wait(seconds(2));
  CHECK(s.only<KillActor>().actor == kA);
  CHECK(s.only<KillActor>().reason ==
        "it has shown no progress for 120 s (deadlines.hang) in step 1, leaf 0");
  CHECK(
      s.only<DeadlineExpired>().text ==
      "trainer 1 (rank 0) is killed: it has shown no progress for 120 s (deadlines.hang) in step 1, leaf 0");
  CHECK(s.order<Quiesce>(kB));  // and recovery goes on
}

TEST_CASE("one that waits for others does not hang, though its heartbeats come late") {
  DriverConfig config = config_of(1);
  config.deadlines.hang = seconds(3);
  Script s(config, {kA});
  s.progress[kA] = {1, false, "step 1"};
  s.wait(seconds(1));
  s.alive.clear();  // its heartbeats stay out
  s.last.clear();
  s.wait(seconds(5));
  CHECK(s.all<KillActor>().empty());
}

TEST_CASE("a loader that hangs in get() is killed; one that reads for long is not") {
  Script s = two_trainers();
  for (std::uint64_t sample = 1; sample <= 5; ++sample) {
    s.progress[kLoader] = {sample, true, "the batch of epoch 1, step 1, leaf 0"};
    s.wait(seconds(100));
  }
  CHECK(s.all<DeadlineExpired>().empty());
  s.wait(seconds(30));
  CHECK(s.only<KillActor>().actor == kLoader);
  CHECK_THAT(s.all<DeadlineExpired>().at(0).text,
             Contains("no progress for 120 s (deadlines.hang) in the batch of epoch 1, step 1, leaf 0"));
}

TEST_CASE("when nobody computes and nobody comes further, the next generation opens and says who waited") {
  Script s = two_trainers();
  const Generation g = s.g();
  for (const ActorId a : {kA, kB}) s.progress[a] = {3, false, "step 1"};
  s.wait(seconds(32));
  CHECK(s.g() != g);
  CHECK_THAT(s.only<DeadlineExpired>().text,
             Contains("trainer 1 (rank 0) waits in step 1, trainer 2 (rank 1) waits in step 1"));
}

TEST_CASE("an evaluation without a loader is no standstill: that wait has a deadline of its own") {
  DriverConfig config = config_of(1);
  config.epochs = 1;
  config.steps_per_epoch = 1;
  config.test_pieces = 1;
  Script s(config, {kA});
  s.applied(kA, 0);
  REQUIRE(s.order<Evaluate>(kA));
  s.on(LoaderDown{kLoader, "killed by signal 9 (SIGKILL)"});
  const Generation g = s.g();
  s.wait(seconds(80));
  CHECK(s.g() == g);
  s.wait(seconds(50));
  CHECK_THAT(s.all<JobFailed>().at(0).reason, Contains("no loader could be started in time"));
}

// A SIGSEGV in loss() took 17 tries and 85 s.
TEST_CASE("the third crash at one step ends the job with the reason") {
  Script s(config_of(1), {kA});
  s.applied(kA, 0);
  ActorId trainer = kA;
  for (std::uint64_t crash = 1; crash <= 3; ++crash) {
    INFO("crash " << crash);
    CHECK(s.all<JobFailed>().empty());
    std::erase(s.alive, trainer);
    s.on(TrainerDown{trainer, "killed by signal 11 (SIGSEGV)"});
    if (crash == 3) break;
    trainer = ActorId{10 + crash};
    s.join(trainer);
    REQUIRE(s.order<StartGeneration>(trainer));
    s.begin(trainer, 0);
    s.applied(trainer, 0);
  }
  CHECK(s.only<JobFailed>().reason ==
        "3 failures at step 2, the last one: trainer c (rank 0) died: killed by signal 11 (SIGSEGV)");
  CHECK_FALSE(s.only<JobFailed>().todo.empty());
}

TEST_CASE("trainers that crash of one thing together have failed once, and a later step begins a new count") {
  DriverConfig config = config_of(4);
  config.logical_ranks = 4;
  config.epochs = 20;
  Script s(config);
  const auto step = [](std::int64_t k) {
    return StepReport{k, {{0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {3, 1, 1}}};
  };
  std::vector<ActorId> members{kA, kB, kC, ActorId{4}};
  s.run_from_start(members);
  s.lineage = s.g();
  std::uint64_t next = 20;
  std::int64_t k = 0;
  for (int round = 0; round < 6; ++round) {
    INFO("step " << k);
    for (const ActorId a : members) s.on(StepApplied{a, s.g(), step(k), {}});
    REQUIRE(s.driver.committed() == ++k);
    // Three of four die as soon as all are there.
    for (int dead = 1; dead <= 3; ++dead) replace(s, members[dead], "killed by signal 6 (SIGABRT)");
    REQUIRE(s.driver.state() != DriverMachine::State::kFailed);
    s.quiesced(kA, k);
    s.formed(kA);
    s.wait(seconds(11));  // for the pause before others are started
    members.resize(1);
    for (int i = 0; i < 3; ++i) members.push_back(ActorId{next++}), s.ready(members.back());
    s.follow(kA, members[1], k);  // the first of them; the others came later
    k = s.run_until_joined({kA}, k, step);
    for (const ActorId a : members) s.quiesced(a, a == kA || a == members[1] ? k : kNoState);
    for (const ActorId a : {kA, members[1]}) s.formed(a);
    s.follow(members[1], members[2], k);
    s.on(StateFollowed{members[3], s.g(), k});
    k = s.run_until_joined({kA, members[1]}, k, step);
    for (const ActorId a : members) s.quiesced(a, k);
    for (const ActorId a : members) s.formed(a);
    REQUIRE(s.driver.state() == DriverMachine::State::kRunning);
  }
}

TEST_CASE("kills from outside at one step have the larger budget") {
  Script s(config_of(1), {kA});
  ActorId trainer = kA;
  for (std::uint64_t n = 1; n <= 8; ++n) {
    replace(s, trainer, "killed by signal 9 (SIGKILL)");
    s.wait(seconds(11));
    trainer = ActorId{30 + n};
    s.join(trainer);
    s.begin(trainer, 0);
  }
  CHECK(s.driver.state() == DriverMachine::State::kRunning);
}

// A model() that throws took 17 tries and 85 s.
TEST_CASE("a trainer whose constructor throws is tried three times; a missing CPU is waited for") {
  for (const bool threw : {true, false}) {
    Script s(config_of(1));
    int tries = 0;
    std::size_t notices = 0;
    for (std::uint64_t token = 1; token < 9 && s.driver.state() != DriverMachine::State::kFailed; ++token) {
      s.on(SpawnFailed{token, threw ? "model() threw: no weights" : "no CPU",
                       threw ? ErrorCode::kTaskFailed : ErrorCode::kUnavailable});
      tries += s.driver.ignored().empty() ? 1 : 0;
      notices += s.all<Notice>().size();
      if (s.driver.state() == DriverMachine::State::kFailed) break;
      s.wait(seconds(1));
    }
    CHECK((s.driver.state() == DriverMachine::State::kFailed) == threw);
    CHECK(notices == 1);  // three equal lines stood above the error
    if (threw) {
      CHECK(tries == 3);
      CHECK_THAT(s.all<JobFailed>().at(0).reason,
                 Contains("3 failures before the first step was through") && Contains("no weights"));
    }
  }
}

TEST_CASE("the first loader has its time while it reads on, and is tried again when it dies") {
  const Deadlines deadlines;
  FirstLoader first(deadlines, {});
  Instant now = seconds(5);
  CHECK_FALSE(first.overdue(now + std::chrono::hours(1)));
  first.starts(now);
  CHECK_FALSE(first.overdue(now + seconds(89)));
  CHECK(first.overdue(now + seconds(90)) == "it did not start within 90 s");
  first.reads(now);
  for (std::uint64_t sample = 1; sample <= 4; ++sample) {
    now += seconds(100);
    CHECK_FALSE(first.overdue(now));
    first.heard({sample, true, "the first batch"}, now);
  }
  now += seconds(100);
  first.heard({4, true, "the first batch"}, now);
  CHECK(first.overdue(now + seconds(20)) == "it has shown no progress for 120 s in the first batch");
  first.done();
  CHECK_FALSE(first.overdue(now + seconds(20)));

  CHECK(first.try_again("killed by signal 11 (SIGSEGV)"));
  CHECK(first.try_again("killed by signal 11 (SIGSEGV)"));
  CHECK_FALSE(first.try_again("killed by signal 11 (SIGSEGV)"));
  CHECK(first.try_again("killed by signal 9 (SIGKILL)"));
}

// Ctrl-C.

TEST_CASE("a stop before the first step ends at once") {
  DriverConfig config = config_of(1);
  config.checkpoints = true;
  Script s(config);
  SECTION("no trainer is up") {
    s.on(StopRequested{});
  }
  SECTION("the group forms") {
    s.join(kA);
    s.on(StopRequested{});
  }
  CHECK(s.only<JobDone>().stopped);
  CHECK(s.only<JobDone>().hash.empty());
  CHECK(s.only<JobDone>().steps == 0);
}

// It failed the job: "stopped at once".
TEST_CASE("a stop while a pause is under way ends the job as a stop does, and a second one at once") {
  Script s(config_of(1), {kA});
  s.applied(kA, 0);
  s.on(StopRequested{.hold_state = true});
  s.on(StopRequested{});
  CHECK(s.all<JobFailed>().empty());
  s.on(StopRequested{});
  CHECK(s.all<JobFailed>().size() == 1);
}

// It waited for 32 s.
TEST_CASE("a stop while nobody holds the state ends at once and says what is lost") {
  Script s(saving(1), {kA});
  s.applied(kA, 0);
  s.applied(kA, 1);
  s.written(kA, 2);
  s.applied(kA, 2);
  s.down(kA);
  s.on(StopRequested{});
  CHECK(s.only<JobDone>().saved == 2);
  CHECK_THAT(s.all<Notice>().at(s.all<Notice>().size() - 1).text,
             Contains("without a checkpoint of step 3: the newest is of step 2"));
}

TEST_CASE("a stop without progress ends within its deadline, and one that progresses has its time") {
  DriverConfig config = config_of(1);
  config.checkpoints = true;
  Script s(config, {kA});
  s.applied(kA, 0);
  s.on(StopRequested{});
  for (std::uint64_t n = 1; n <= 5; ++n) {
    s.progress[kA] = {n, true, "step 2, leaf " + std::to_string(n)};
    s.wait(seconds(25));
  }
  CHECK(s.all<JobDone>().empty());
  s.wait(seconds(10));
  CHECK(s.only<JobDone>().stopped);
  CHECK_THAT(s.only<DeadlineExpired>().text,
             Contains("no checkpoint within 30 s (trainer 1 (rank 0) computes in step 2, leaf 5)"));
}

// What a resume says.

namespace {

DriverConfig with_evaluation(std::int64_t newest) {
  DriverConfig config = config_of(1);
  config.checkpoints = true;
  config.test_pieces = 1;
  config.resume = {{"old-4", 4, "h4"}, {"old-" + std::to_string(newest), newest, "h"}};
  return config;
}

/// A alone takes the job up at `step`.
void resume(Script& s, std::int64_t step) {
  s.join(kA);
  s.begin(kA, step);
}

void answer_evaluation(Script& s) {
  REQUIRE(s.order<Evaluate>(kA));
  s.on(EvaluationDone{kA, s.g(), 0, {{0, 0, 1, {{"accuracy", 1, 1}}}}});
}

}  // namespace

TEST_CASE("a resume is told, and a job that was through is evaluated once more") {
  Script s(with_evaluation(8));
  resume(s, 8);
  CHECK(s.only<Resumed>().checkpoint.path == "old-8");
  CHECK(s.all<Notice>().at(0).text ==
        "nothing is left to train: what was resumed has 2 epochs, 2 are asked for");
  answer_evaluation(s);
  CHECK(s.all<EpochDone>().at(0).epoch == 1);
  CHECK(s.order<Finish>(kA));
  s.on(TrainerFinished{kA, s.g(), 8, "h"});
  CHECK(s.all<JobDone>().at(0).begun_at == 8);
}

// Each generation had the same load and the same outcome, and nobody counted them.
TEST_CASE("a snapshot that some trainer of a sharded job never gets in time fails the job, not without end") {
  DriverConfig config = config_of(2);
  config.sharded = true;
  config.resume = {{"the snapshot", 4, "h4", {}, true}};
  Script s(config);
  for (const ActorId a : {kA, kB}) s.ready(a);
  int generations = 0;
  while (s.all<JobFailed>().empty()) {
    REQUIRE(++generations < 100);
    for (const ActorId a : {kA, kB}) s.quiesced(a, kNoState);
    REQUIRE(s.order<StartGeneration>(kB)->plan.origin == StateOrigin::kCheckpoint);
    for (const ActorId a : {kA, kB}) s.formed(a);
    s.on(CheckpointUnreadable{kB, s.g(), "the snapshot", "it came too late"});
    s.installed(kA, 4);
  }
  CHECK(generations == config.restart.budget + 1);
  CHECK_THAT(s.only<JobFailed>().reason, Catch::Contains("it came too late"));
}

// An epoch that was run again after a fall-back was not evaluated, since an earlier run had done it.
TEST_CASE("after a fall-back to an older checkpoint what runs again is evaluated, and told in one line") {
  DriverConfig config = with_evaluation(8);
  config.epochs = 3;
  Script s(config);
  s.join(kA);
  s.on(CheckpointUnreadable{kA, s.g(), "old-8", "torn"});
  s.quiesced(kA, kNoState);
  CHECK(s.only<RewindLedger>().reason == "4 steps run again from step 4");
  CHECK(s.all<Notice>().empty());
  s.begin(kA, 4);
  CHECK(s.all<Resumed>().at(0).checkpoint.path == "old-4");
  for (std::int64_t k = 4; k < 8; ++k) s.applied(kA, k);
  answer_evaluation(s);
  CHECK(s.all<EpochDone>().at(0).epoch == 1);
}

// What was evaluated when the job has to go back.

namespace {

/// Saves each second step; evaluates each fourth, where one evaluation without gain ends the job, the best
/// checkpoint stays, and a schedule looks.
struct Deciding : Script {
  explicit Deciding(std::vector<CheckpointInfo> resume = {}) : Script(config(std::move(resume))) {}
  static DriverConfig config(std::vector<CheckpointInfo> resume) {
    DriverConfig config = saving(1);
    config.epochs = 4;
    config.ahead = 1;
    config.test_pieces = 1;
    config.tells_metrics = true;
    config.stop_early = {.metric = "test/loss", .patience = 1};
    config.keep_best = "test/loss";
    config.resume = std::move(resume);
    return config;
  }
  /// Alone, with the state of so many steps.
  void begin(ActorId a, std::int64_t step) {
    who = a;
    ready(a);
    quiesced(a, kNoState);
    formed(a);
    installed(a, step);
    REQUIRE(driver.committed() == step);
  }
  /// Up to the checkpoint of so many steps, or to these where none is due; `saves`: those before it.
  void run_to(std::int64_t steps, bool saves = true) {
    for (int events = 0;; ++events) {
      REQUIRE(events < 100);
      const std::int64_t at = driver.committed();
      if (order<Evaluate>(who)) {
        on(EvaluationDone{who, g(), 0, {{0, 0, 1, {{"loss", losses.at(at), 1}}}}});
      } else if (at == steps) {
        return;
      } else if (order<WriteCheckpoint>(who) && saves) {
        written(who, at);
      } else if (order<WriteCheckpoint>(who)) {
        on(CheckpointFailed{who, g(), at, "the disk is full"});
      } else {
        applied(who, at);
      }
    }
  }
  void ends() { on(TrainerFinished{who, g(), driver.committed(), "h", parts_after(driver.committed())}); }
  std::string history() const { return order<WriteCheckpoint>(who).value().history; }

  ActorId who = kA;
  std::map<std::int64_t, double> losses{{4, 0.5}, {8, 0.4}, {12, 0.45}};
};

History history_of(std::int64_t step, double loss) {
  return {
      .metrics = {{"test/loss", loss}}, .evaluated = step, .patience = {step, loss}, .kept = {step, loss}};
}

}  // namespace

TEST_CASE("a fall-back has seen what its checkpoint had seen: the state that was the best ends no job") {
  Deciding s({{"old-4", 4, "h4", encode_history(history_of(4, 0.5))},
              {"old-8", 8, "h8", encode_history(history_of(8, 0.4))}});
  s.ready(kA);
  s.quiesced(kA, kNoState);
  s.on(CheckpointUnreadable{kA, s.g(), "old-8", "torn"});
  s.quiesced(kA, kNoState);
  CHECK(s.order<StartGeneration>(kA)->plan.evaluated ==
        std::map<std::int64_t, StepValues>{{4, {{"test/loss", 0.5}}}});
  s.formed(kA);
  s.installed(kA, 4);
  SECTION("what runs again decides as before") {
    s.run_to(8);
    const History at = decode_history(s.history()).value();
    CHECK(at.patience == Best{8, 0.4, 0});
    s.written(kA, 8);
    s.run_to(10);
    CHECK(s.driver.committed() == 10);
  }
  SECTION("the best checkpoint is none that nobody can read") {
    s.on(StopRequested{});
    s.run_to(5);
    s.written(kA, 5);
    s.ends();
    CHECK(s.all<JobDone>().at(0).best_checkpoint == "old-4");
    CHECK(s.all<JobDone>().at(0).best_metric == 0.5);
  }
}

TEST_CASE("a checkpoint of steps that run again says what was evaluated up to it, and not behind it") {
  Deciding s;
  s.begin(kA, 0);
  SECTION("before the evaluation, which a resume comes to for the first time") {
    s.run_to(8);
    s.down(kA);
    s.begin(kB, 6);
    s.on(StopRequested{});
    s.run_to(7);
    const History at = decode_history(s.history()).value();
    CHECK(at.evaluated == 4);
    CHECK(at.patience == Best{4, 0.5, 0});
    Deciding resumed({{"ckpt-7", 7, "h7", s.history()}});
    resumed.begin(kA, 7);
    resumed.run_to(8);
    CHECK(decode_history(resumed.history())->patience == Best{8, 0.4, 0});
  }
  SECTION("at an evaluation, though the job had been at the next, which ends it") {
    s.run_to(6);
    s.written(kA, 6);
    s.run_to(12, false);
    s.down(kA);
    s.begin(kB, 6);
    CHECK(s.order<Committed>(kB)->evaluated.empty());
    s.run_to(8);
    const History at = decode_history(s.history()).value();
    CHECK(at.evaluated == 8);
    CHECK(at.patience == Best{8, 0.4, 0});
    Deciding resumed({{"ckpt-8", 8, "h8", s.history()}});
    resumed.begin(kA, 8);
    CHECK(resumed.order<Committed>(kA)->evaluated == StepValues{{"test/loss", 0.4}, {"train/loss", 2}});
    resumed.run_to(9);
    CHECK(resumed.driver.state() == DriverMachine::State::kRunning);
    // And the job itself ends where it had decided to.
    s.written(kB, 8);
    s.run_to(12);
    s.written(kB, 12);
    s.ends();
    CHECK(s.all<JobDone>().at(0).stopped_early);
    CHECK(s.all<JobDone>().at(0).steps == 12);
    CHECK(decode_history(s.all<JobDone>().at(0).history)->patience == Best{8, 0.4, 1});
  }
}

TEST_CASE("checkpoints that could not be written are counted, and the newest one is named at the end") {
  Script s(with_evaluation(4));
  resume(s, 4);
  for (std::int64_t k = 4; k < 8; ++k) s.applied(kA, k);
  answer_evaluation(s);
  s.on(CheckpointFailed{kA, s.g(), 8, "the disk is full"});
  CHECK_FALSE(s.order<PruneCheckpoints>(kA));
  s.on(TrainerFinished{kA, s.g(), 8, "h8"});
  CHECK(s.only<JobDone>().failed_checkpoints == 1);
  CHECK(s.only<JobDone>().saved == 4);
}

TEST_CASE("who sees the checkpoint folder is rank 0 and writes; with nobody who does a job does not begin") {
  auto config = saving(2);
  config.checkpoint_folder = "ck";
  {
    Script s(config);
    s.join(kA, /*sees_folder=*/false);
    s.join(kB, /*sees_folder=*/false);
    CHECK_THAT(s.only<JobFailed>().reason,
               Catch::Contains("no trainer can write checkpoints: 'ck' is not there"));
  }
  // Was: the job failed 10 s after its start where the one that sees the folder took longer than that.
  {
    DriverConfig late = config;
    late.min_trainers = 1;
    Script s(late);
    s.join(kA, /*sees_folder=*/false);
    s.wait(seconds(20));
    CHECK(s.all<JobFailed>().empty());
    SECTION("it comes") {
      s.join(kB);
      REQUIRE(s.order<StartGeneration>(kA));
    }
    SECTION("it does not") {
      for (int i = 0; i < 200 && s.driver.state() != DriverMachine::State::kFailed; ++i) s.wait(seconds(1));
      CHECK_THAT(s.only<JobFailed>().reason, Catch::Contains("'ck'"));
    }
  }
  Script s(config);
  s.join(kA, /*sees_folder=*/false);
  s.join(kB);
  REQUIRE(s.order<StartGeneration>(kA));
  CHECK(s.order<StartGeneration>(kA)->plan.members.at(0).actor == kB);
  for (const ActorId a : {kA, kB}) s.begin(a, 0);
  s.lineage = s.g();
  for (std::int64_t k = 0; k < 2; ++k) {
    s.applied({kA, kB}, k);
  }
  CHECK(s.order<WriteCheckpoint>(kB));
  s.written(kB, 2);
  s.on(StateProved{kA, s.g(), 2, Script::parts_after(2)});
  // Its death leaves nobody who sees the folder.
  s.down(kB);
  s.quiesced(kA, 2);
  s.begin(kA, 2);
  for (std::int64_t k = 2; k < 4; ++k) s.applied(kA, k);
  CHECK_FALSE(s.order<WriteCheckpoint>(kA));
  REQUIRE(!s.all<Notice>().empty());
  CHECK(s.only<Notice>().text == "no checkpoint of step 4: no trainer that is left sees the folder");
  s.applied(kA, 4);
  CHECK(s.all<CommitStep>().size() == 1);  // it goes on
}
