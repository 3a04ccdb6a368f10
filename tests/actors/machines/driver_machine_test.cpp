// The driver's machine as scripts: trainers A, B, C report, the driver orders.
#include "tests/actors/machines/driver_script.hpp"

using namespace troupe;
using namespace troupe::train;

TEST_CASE(
    "trainers start together, leaves are dealt out, and the first step shows how far others may run ahead") {
  Script s(config_of(2));
  s.join(kA);
  CHECK_FALSE(s.order<StartGeneration>(kA));
  s.join(kB);
  const auto plan = s.order<StartGeneration>(kB);
  REQUIRE(plan);
  CHECK(plan->plan.origin == StateOrigin::kInitial);
  CHECK(plan->plan.members[0].leaves == LeafInterval{0, 1});
  CHECK(plan->plan.members[1].leaves == LeafInterval{1, 2});
  for (const ActorId a : {kA, kB}) s.begin(a, 0);
  CHECK(s.order<Committed>(kA)->limit == 1);
  s.applied({kA, kB}, 0);
  CHECK(s.order<Committed>(kA)->limit == 4);
}

TEST_CASE("the plan says of every trainer whether it has NCCL") {
  Script s(config_of(2));
  s.ready(kA, true);
  s.ready(kB, false);
  for (const ActorId a : {kA, kB}) s.quiesced(a, kNoState);
  const auto plan = s.order<StartGeneration>(kA);
  REQUIRE(plan);
  for (const Member& member : plan->plan.members) CHECK(member.has_nccl == (member.actor == kA));
}

TEST_CASE("a step commits once every member has applied it") {
  Script s(config_of(2), {kA, kB});
  s.applied(kA, 0);
  CHECK(s.all<CommitStep>().empty());
  s.applied(kB, 0);
  CHECK(s.only<CommitStep>().loss == 2.0);
  CHECK(s.order<Committed>(kB)->limit == 4);
}

TEST_CASE("a replacement that the others cannot do without starts at once") {
  auto config = config_of(2);
  config.min_trainers = 2;
  Script s(config, {kA, kB});
  s.down(kB);
  CHECK(s.all<SpawnActor>().size() == 1);
}

TEST_CASE("a replacement waits a second for a recovery that takes longer, and no more") {
  Script s(config_of(2), {kA, kB});
  s.down(kB);
  s.wait(milliseconds(900));
  CHECK(s.all<SpawnActor>().empty());
  s.wait(milliseconds(200));
  CHECK(s.all<SpawnActor>().size() == 1);
}

TEST_CASE("after a death the survivor that applied the step is the authority, and the step commits") {
  Script s(config_of(2), {kA, kB});
  s.applied(kA, 0);
  s.down(kB);
  CHECK(s.order<Quiesce>(kA)->generation == s.g());
  CHECK(s.all<SpawnActor>().empty());  // its start would take CPUs of the recovery
  s.quiesced(kA, 1, {Script::step(0)});
  const auto plan = s.order<StartGeneration>(kA)->plan;
  CHECK(plan.first_step == 1);
  CHECK(plan.members.size() == 1);
  CHECK(plan.members[0].leaves == LeafInterval{0, 2});
  CHECK(s.driver.committed() == 0);
  s.formed(kA);
  CHECK(s.only<CommitStep>().entry.generation == s.g());
  s.applied(kA, 1);
  CHECK(s.only<Recovered>().fault);
  CHECK(s.all<SpawnActor>().size() == 1);

  SECTION("its replacement takes the state beside the steps, then joins by the same way") {
    // The generation began at once, and the survivors stood still for as long as the copy took: 2.3 s with
    // 1 GiB.
    s.ready(kC);
    CHECK_FALSE(s.order<Quiesce>(kA));
    REQUIRE(s.order<ShareState>(kA));
    s.on(StateShared{kA, s.g(), "where A is"});
    REQUIRE(s.order<FollowState>(kC));
    CHECK(s.order<FollowState>(kC)->source == "where A is");
    CHECK(s.order<FollowState>(kC)->lineage == s.lineage);
    s.applied(kA, 2);
    CHECK(s.all<CommitStep>().size() == 1);
    const Generation alone = s.g();
    SECTION("from where it is, a step behind") {
      // The members were called at once: the step under way was thrown away, and they stood still for it.
      s.on(StateFollowed{kC, alone, 2});
      CHECK_FALSE(s.order<Quiesce>(kA));
      const std::int64_t joined_at = s.run_until_joined({kA}, 3);
      CHECK(joined_at <= 3 + DriverConfig().ahead);
      CHECK(s.driver.committed() == joined_at);
      CHECK(s.order<Quiesce>(kA));
      CHECK(s.order<Quiesce>(kC));
      s.quiesced(kC, joined_at - 1);
      s.quiesced(kA, joined_at);
      const auto wide = s.order<StartGeneration>(kC)->plan;
      CHECK(wide.members[0].actor == kA);
      CHECK(wide.source == 0);
      CHECK(wide.followers == std::vector{1});
      CHECK(wide.receivers.empty());
      CHECK(wide.lineage == s.lineage);
      CHECK(wide.first_step == joined_at);
    }
    SECTION("which a recovery does not wait for") {
      s.on(GenerationFailed{kA, alone, "timed out", {}});
      s.quiesced(kA, 3);
      CHECK(s.order<StartGeneration>(kA)->plan.members.size() == 1);
      s.formed(kA);
      CHECK_FALSE(s.order<ShareState>(kA));  // C is still busy
      s.quiesced(kC, kNoState);
      CHECK(s.order<ShareState>(kA));
    }
    SECTION("which is tried again, and then all wait for it") {
      s.on(FollowFailed{kC, alone, "its steps came faster than they were fetched"});
      REQUIRE(s.order<ShareState>(kA));
      CHECK(s.g() == alone);
      s.on(StateShared{kA, alone, "where A is"});
      s.on(FollowFailed{kC, alone, "again"});
      CHECK(s.order<Quiesce>(kA));
      s.quiesced(kC, kNoState);
      s.quiesced(kA, 3);
      CHECK(s.order<StartGeneration>(kC)->plan.receivers == std::vector{1});
    }
    SECTION("and no longer than it comes further") {
      for (int i = 0; i < 5; ++i) {
        ++s.progress[kC].count;
        ++s.progress[kA].count;
        s.wait(seconds(20));
      }
      CHECK(s.g() == alone);
      CHECK(s.all<DeadlineExpired>().empty());
      s.wait(seconds(12));  // 32 s without it
      CHECK(s.all<DeadlineExpired>().size() == 1);
      CHECK(s.g() != alone);
    }
    SECTION("whose source dies with it half taken: there is no other state") {
      s.down(kA);
      s.quiesced(kC, kNoState);
      CHECK(s.order<StartGeneration>(kC)->plan.origin == StateOrigin::kInitial);
    }
    SECTION("whose source dies when it has all: it is the authority") {
      s.down(kA);
      s.quiesced(kC, 3);
      const auto taken = s.order<StartGeneration>(kC)->plan;
      CHECK(taken.origin == StateOrigin::kMembers);
      CHECK(taken.first_step == 3);
    }
  }
}

// The end of a node was told as "trainer 0 left generation 1.1: the process group was aborted".
TEST_CASE("a fault is told as the death that it was, also if the others noticed first") {
  Script s(config_of(2), {kA, kB});
  s.applied(kA, 0);
  s.on(GenerationFailed{kA, s.g(), "the process group was aborted", {}});
  s.down(kB);
  s.quiesced(kA, 1, {Script::step(0)});
  s.formed(kA);
  s.applied(kA, 1);
  CHECK(s.only<Recovered>().cause == "trainer 2 (rank 1) died: signal 9");
}

TEST_CASE("a death during recovery opens one more generation") {
  Script s(config_of(2), {kA, kB});
  s.applied(kA, 0);
  s.on(GenerationFailed{kB, s.g(), "timed out", {}});
  s.quiesced(kA, 1, {Script::step(0)});
  s.quiesced(kB, 0);
  CHECK(s.order<StartGeneration>(kB)->plan.receivers == std::vector{1});
  const Generation forming = s.g();
  s.down(kA);
  CHECK(s.g().counter == forming.counter + 1);
  // B was to receive: it counts as having none. Nobody has the state, and there is no checkpoint.
  s.quiesced(kB, kNoState);
  CHECK(s.order<StartGeneration>(kB)->plan.origin == StateOrigin::kInitial);
}

TEST_CASE("when nobody has the state the last checkpoint is it, and later steps are void") {
  Script s(saving(1), {kA});
  s.applied(kA, 0);
  s.applied(kA, 1);
  CHECK(s.order<WriteCheckpoint>(kA)->step == 2);
  CHECK(s.order<Committed>(kA)->limit == 2);
  s.written(kA, 2);
  CHECK(s.order<Committed>(kA)->limit == 4);
  s.applied(kA, 2);
  s.down(kA);
  s.join(kB);
  CHECK(s.only<RewindLedger>().from == 3);
  CHECK(s.only<RewindLedger>().to == 2);
  CHECK(s.order<StartGeneration>(kB)->plan.checkpoint == "ckpt-2");
  CHECK(s.order<StartGeneration>(kB)->plan.state_hash == "h2");
}

TEST_CASE("whoever does not leave in time is killed, and counts as dead once that is known or too late") {
  Script s(config_of(2), {kA, kB});
  s.on(GenerationFailed{kA, s.g(), "timed out waiting for 2", {kB}});
  s.quiesced(kA, 0);
  s.wait(seconds(7));
  CHECK(s.only<KillActor>().actor == kB);
  CHECK_FALSE(s.order<StartGeneration>(kA));

  SECTION("its death is seen") {
    s.down(kB);
    CHECK(s.order<StartGeneration>(kA));
  }
  SECTION("nobody answers, and it is refused from then on") {
    s.last.clear();
    s.wait(seconds(7));
    CHECK(s.order<StartGeneration>(kA));
    s.on(TrainerReport(TrainerHeartbeat{kB, {}}));
    CHECK(s.all<KillActor>().size() == 1);
    CHECK_FALSE(s.driver.ignored().empty());
  }
}

TEST_CASE("a driver that was stopped itself kills nobody for their silence") {
  Script s(config_of(1), {kA});
  s.now += seconds(300);
  s.on(DriverTick{});
  CHECK(s.all<KillActor>().empty());
}

TEST_CASE("reports of an old generation are ignored, with a reason") {
  Script s(config_of(2), {kA, kB});
  const Generation old = s.g();
  s.down(kB);
  s.on(StepApplied{kA, old, Script::step(0)});
  CHECK(s.last.empty());
  CHECK(s.driver.ignored() == "of generation 1.1, not 1.2");
}

namespace {

/// What a trainer says of pieces [begin, end): a sample each, the even ones correct.
std::vector<PieceReport> pieces(std::int64_t begin, std::int64_t end) {
  std::vector<PieceReport> list;
  for (auto p = begin; p < end; ++p) {
    list.push_back(
        {p,
         std::uint64_t(100 + p),
         1,
         {{"accuracy", p % 2 == 0 ? 1.0 : 0.0, 1}, {"loss", 1.0 / static_cast<double>(p + 1), 1}}});
  }
  return list;
}

/// A job of one step that is about to evaluate five pieces.
DriverConfig evaluating(int trainers) {
  DriverConfig config = config_of(trainers);
  config.epochs = 1;
  config.steps_per_epoch = 1;
  config.test_pieces = 5;
  config.expected_piece = [](std::int64_t p) { return std::uint64_t(100 + p); };
  return config;
}

}  // namespace

TEST_CASE("an evaluation survives a death: it is done again, every piece once") {
  Script s(evaluating(2), {kA, kB});
  s.applied({kA, kB}, 0);
  CHECK(s.order<Evaluate>(kA)->end == 2);
  CHECK(s.order<Evaluate>(kB)->end == 5);
  s.on(EvaluationDone{kA, s.g(), 0, pieces(0, 2)});
  s.down(kB);
  s.quiesced(kA, 1);
  s.formed(kA);
  CHECK(s.order<Evaluate>(kA)->begin == 0);
  CHECK(s.order<Evaluate>(kA)->end == 5);
  s.on(EvaluationDone{kA, s.g(), 0, pieces(0, 5)});
  CHECK(s.only<EpochDone>().count == 5);
  CHECK(s.only<EpochDone>().test.front() == Figure{"accuracy", 3, 5});
  s.on(TrainerFinished{kA, s.g(), 1, "h1"});
  CHECK(s.only<JobDone>().hash == "h1");
}

TEST_CASE("a validation set is evaluated behind the test set, and has metrics of its own") {
  DriverConfig config = evaluating(2);
  config.test_pieces = 2;
  config.validation_pieces = 3;
  config.keep_best = "validation/accuracy";
  Script s(config, {kA, kB});
  s.applied({kA, kB}, 0);
  CHECK(s.order<Evaluate>(kA)->end == 2);
  CHECK(s.order<Evaluate>(kB)->end == 5);
  s.on(EvaluationDone{kA, s.g(), 0, pieces(0, 2)});
  s.on(EvaluationDone{kB, s.g(), 0, pieces(2, 5)});
  const EpochDone done = s.only<EpochDone>();
  CHECK(done.count == 5);
  CHECK(done.test.front() == Figure{"accuracy", 1, 2});
  CHECK(done.validation.front() == Figure{"accuracy", 2, 3});
  CHECK(done.metrics.at("test/accuracy") == 0.5);
  CHECK(done.metrics.at("validation/accuracy") == 2.0 / 3);
  CHECK(s.all<JobFailed>().empty());

  config.validation_pieces = 4;
  config.expected_piece = [](std::int64_t p) { return std::uint64_t(p < 5 ? 100 + p : 0); };
  Script wrong(config, {kA, kB});
  wrong.applied({kA, kB}, 0);
  wrong.on(EvaluationDone{kA, wrong.g(), 0, pieces(0, 3)});
  wrong.on(EvaluationDone{kB, wrong.g(), 0, pieces(3, 6)});
  CHECK(wrong.only<JobFailed>().reason ==
        "piece 3 of the validation set was evaluated with other samples than it has");
}

TEST_CASE("trainers that end with different states are told by the part that differs") {
  DriverConfig config = config_of(2);
  config.epochs = 1;
  config.steps_per_epoch = 1;
  Script s(config, {kA, kB});
  s.applied({kA, kB}, 0);
  s.on(TrainerFinished{kA, s.g(), 1, "h1", {{"w", {1, 1}}, {"b", {2, 2}}}});
  s.on(TrainerFinished{kB, s.g(), 1, "h2", {{"w", {1, 1}}, {"b", {3, 3}}}});
  CHECK_THAT(s.only<JobFailed>().reason, Catch::Contains("'b' differs"));
}

// Sums were added in the order in which trainers answered, so the test loss had other bits from run to run.
TEST_CASE("an evaluation comes to the same bits, whoever answers first") {
  const auto loss = [](bool b_first) {
    Script s(evaluating(2), {kA, kB});
    s.applied({kA, kB}, 0);
    if (b_first) s.on(EvaluationDone{kB, s.g(), 0, pieces(2, 5)});
    s.on(EvaluationDone{kA, s.g(), 0, pieces(0, 2)});
    if (!b_first) s.on(EvaluationDone{kB, s.g(), 0, pieces(2, 5)});
    return s.only<EpochDone>().test.back().value();
  };
  double sum = 0;
  for (const auto& piece : pieces(0, 5)) sum += piece.figures.back().sum;
  CHECK(loss(false) == sum / 5);
  CHECK(loss(true) == sum / 5);
}

TEST_CASE("what leaves count is summed over them and the epoch's steps, in their order") {
  DriverConfig config = config_of(1);
  config.logical_ranks = 2;
  config.epochs = 1;
  config.steps_per_epoch = 2;
  Script s(config, {kA});
  s.on(StepApplied{kA, s.g(), {0, {{0, 10, 1, 1, {{"top5", 3, 4}}}, {1, 11, 2, 3, {{"top5", 1, 4}}}}}});
  CHECK(s.only<CommitStep>().loss == (1 * 1 + 2 * 3) / 4.0);  // by the weights of the leaves
  s.on(StepApplied{kA, s.g(), {1, {{0, 10, 1, 1, {}}, {1, 11, 1, 1, {{"top5", 4, 4}, {"seen", 1, 1}}}}}});
  CHECK(s.only<EpochDone>().train == std::vector<Figure>{{"loss", 9, 6}, {"top5", 8, 12}, {"seen", 1, 1}});
}

TEST_CASE("a step's values are those of its apply, also where only a survivor tells them") {
  Script s(config_of(2), {kA, kB});
  StepReport first = Script::step(0);
  first.values = {{"learning_rate", 0.5}};
  s.on(StepApplied{kA, s.g(), first, {}});
  s.on(StepApplied{kB, s.g(), first, {}});
  CHECK(s.only<CommitStep>().values == first.values);
  StepReport second = Script::step(1);
  second.values = {{"learning_rate", 0.25}, {"gradient_norm", 3}};
  s.down(kB);
  s.quiesced(kA, 2, {second});
  s.formed(kA);
  CHECK(s.only<CommitStep>().values == second.values);
}

TEST_CASE("samples that are not the sampler's stop the job when their step commits") {
  DriverConfig config = config_of(1);
  config.steps_per_epoch = 1;
  config.expected_indices = [](int epoch, std::int64_t, int leaf) {
    return std::uint64_t(10 + leaf + (leaf == 1 ? epoch : 0));
  };
  Script s(config, {kA});
  s.applied(kA, 0);
  CHECK(s.all<JobFailed>().empty());
  s.applied(kA, 1);
  CHECK(s.only<JobFailed>().reason ==
        "epoch 1, step 0, logical rank 1 used other samples than the sampler gave it");
}

TEST_CASE("restarts slow down and end") {
  DriverConfig config = config_of(1);
  config.restart.budget = 3;
  Script s(config);
  std::vector<std::uint64_t> tokens;
  for (std::uint64_t token = 1; token < 99 && s.driver.state() != DriverMachine::State::kFailed; ++token) {
    s.on(SpawnFailed{token, "no CPU"});
    s.wait(seconds(1));
    tokens.push_back(token);
  }
  CHECK(s.driver.state() == DriverMachine::State::kFailed);
  CHECK(s.all<JobFailed>().size() == 1);
}

TEST_CASE("what a trainer waits for is told once, and is what a job says that too few came for") {
  DriverConfig config = config_of(2);
  config.min_trainers = 2;
  Script s(config);
  s.ready(kA);
  const std::uint64_t token = s.take_token(SpawnKind::kTrainer);
  s.on(SpawnWaits{token, "no node has 1 GPU free"});
  CHECK(s.only<Notice>().text == "a trainer waits: no node has 1 GPU free");
  s.on(SpawnWaits{token, "no node has 1 GPU free"});
  CHECK(s.all<Notice>().empty());
  s.on(SpawnWaits{77, "of nobody"});
  CHECK(s.all<Notice>().empty());
  for (int i = 0; i < 1000 && s.driver.state() != DriverMachine::State::kFailed; ++i) s.wait(seconds(1));
  CHECK(s.only<JobFailed>().todo == "one more waits: no node has 1 GPU free");
}

TEST_CASE("the first Ctrl-C ends at a checkpoint, the second at once") {
  DriverConfig config = config_of(1);
  config.checkpoints = true;
  Script s(config, {kA});
  s.applied(kA, 0);
  s.on(StopRequested{});
  for (int k = 1; k < 4; ++k) s.applied(kA, k);
  CHECK(s.order<WriteCheckpoint>(kA)->step == 4);
  SECTION("once") {
    s.written(kA, 4);
    CHECK(s.order<Finish>(kA));
    s.on(TrainerFinished{kA, s.g(), 4, "h4"});
    CHECK(s.only<JobDone>().stopped);
  }
  SECTION("twice") {
    s.on(StopRequested{});
    CHECK(s.only<JobFailed>().reason == "stopped at once");
  }
}

// States and checkpoints.

namespace {

/// A job that resumes: three checkpoints of an earlier run, the newest of step 6.
DriverConfig resuming(int trainers) {
  DriverConfig config = saving(trainers);
  config.keep_checkpoints = 2;
  config.resume = {{"old-2", 2, "h2"}, {"old-4", 4, "h4"}, {"old-6", 6, "h6"}};
  return config;
}

}  // namespace

TEST_CASE("whoever cannot read the checkpoint gets the state from the memory of one who can") {
  // A folder that is not shared between hosts: before, one trainer's failure dropped the checkpoint for all.
  Script s(resuming(2));
  for (const ActorId a : {kA, kB}) s.ready(a), s.quiesced(a, kNoState);
  CHECK(s.order<StartGeneration>(kB)->plan.checkpoint == "old-6");
  for (const ActorId a : {kA, kB}) s.formed(a);
  s.on(CheckpointUnreadable{kB, s.g(), "old-6", "no such file"});
  CHECK(s.last.empty());  // A still reads
  const Generation loaded = s.g();
  s.installed(kA, 6);
  CHECK(s.only<Notice>().text ==
        "not every trainer can read the checkpoint old-6; the others get the state from trainer 1 (rank 0). "
        "trainer 2 "
        "(rank 1): no such file");
  s.lineage = loaded;
  s.quiesced(kA, 6);
  s.quiesced(kB, kNoState);
  const auto plan = s.order<StartGeneration>(kB)->plan;
  CHECK(plan.origin == StateOrigin::kMembers);
  CHECK(plan.first_step == 6);
  CHECK(plan.receivers == std::vector{1});
  CHECK(s.all<KillActor>().empty());
}

TEST_CASE("the next older checkpoint is tried when nobody can read one, and step 0 never") {
  // Before, the driver knew the newest alone: with its tensors gone a resumed job began at step 0 with a
  // warning, and its saves deleted the two that were good.
  Script s(resuming(2));
  for (const ActorId a : {kA, kB}) s.ready(a), s.quiesced(a, kNoState);
  for (const std::string path : {"old-6", "old-4", "old-2"}) {
    CHECK(s.order<StartGeneration>(kA)->plan.checkpoint == path);
    for (const ActorId a : {kA, kB}) {
      s.on(CheckpointUnreadable{a, s.g(), path, "torn"});
    }
    if (path == "old-2") break;
    CHECK(s.all<JobFailed>().empty());
    for (const ActorId a : {kA, kB}) s.quiesced(a, kNoState);
  }
  CHECK(
      s.only<JobFailed>().reason.starts_with("no trainer can read any checkpoint: old-6 (trainer 1 (rank "
                                             "0): torn; trainer 2 (rank 1): torn), old-4 ("));
  CHECK_FALSE(s.only<JobFailed>().todo.empty());
}

TEST_CASE("a newcomer that computes another first step is found before the step commits") {
  // A counter in a member of the user's optimizer: it gave exit code 0 and another hash.
  Script s(config_of(2), {kA, kB});
  s.applied({kA, kB}, 0);
  s.down(kB);
  s.quiesced(kA, 1);
  CHECK_FALSE(s.order<StartGeneration>(kA)->plan.prove);  // nobody to be compared with
  s.formed(kA);
  s.applied(kA, 1);
  s.ready(kC);
  s.follow(kA, kC, 2);
  const std::int64_t k = s.run_until_joined({kA}, 2);
  s.quiesced(kA, k);
  s.quiesced(kC, k);
  CHECK(s.order<StartGeneration>(kC)->plan.prove);
  s.formed(kA);
  s.formed(kC);
  SECTION("another state") {
    s.applied(kA, k);
    s.on(StepApplied{kC, s.g(), Script::step(k), {{"w", {1, 1}}, {"b", {9, 9}}}});
    CHECK(s.all<CommitStep>().empty());
    CHECK(s.only<JobFailed>().reason ==
          "trainer 3 (rank 1) has another state after " + std::to_string(k + 1) +
              " steps than trainer 1 (rank 0), though both began with the same "
              "TrainState: 'b' differs. The job keeps state that its TrainState lacks");
    CHECK_THAT(s.only<JobFailed>().todo, Catch::Contains("StateRegistry") && Catch::Contains("setup()"));
  }
  SECTION("the same, and nobody is asked again") {
    s.applied({kC, kA}, k);
    CHECK(s.all<CommitStep>().size() == 1);
    s.on(GenerationFailed{kA, s.g(), "timed out", {}});
    for (const ActorId a : {kA, kC}) s.quiesced(a, k + 1);
    CHECK_FALSE(s.order<StartGeneration>(kA)->plan.prove);
  }
  SECTION("a death before both have said it leaves the newcomer unproven") {
    s.applied(kC, k);
    s.on(GenerationFailed{kA, s.g(), "timed out", {}});
    for (const ActorId a : {kA, kC}) s.quiesced(a, k + 1, {Script::step(k)});
    CHECK(s.order<StartGeneration>(kA)->plan.prove);
  }
}

TEST_CASE("a checkpoint counts once every trainer holds what was written") {
  Script s(saving(2), {kA, kB});
  for (const int k : {0, 1}) s.applied(kA, k), s.applied(kB, k);
  CHECK(s.order<WriteCheckpoint>(kA)->step == 2);
  CHECK(s.order<ProveState>(kB)->step == 2);
  s.written(kA, 2);
  CHECK(s.all<AcceptCheckpoint>().empty());
  SECTION("it does") {
    s.on(StateProved{kB, s.g(), 2, Script::parts_after(2)});
    CHECK(s.all<AcceptCheckpoint>().size() == 1);
    CHECK(s.order<Committed>(kB)->limit == 4);
  }
  SECTION("it does not") {
    s.on(StateProved{kB, s.g(), 2, {{"w", {1, 1}}, {"b", {0, 0}}}});
    CHECK(s.all<AcceptCheckpoint>().empty());
    CHECK(s.all<JobFailed>().size() == 1);
  }
}

// Was: exact = false let unlike processors in and compared their bits all the same. The job failed after the
// first step, at a checkpoint or at its end, with "the job keeps state that its TrainState lacks".
TEST_CASE("with exact = false trainers of other bits go on, and rank 0's state is written and told") {
  DriverConfig config = config_of(2);
  config.exact = false;
  config.epochs = 1;
  config.checkpoints = true;
  config.checkpoint_every = 2;
  Script s(config);
  for (const ActorId a : {kA, kB}) s.join(a);
  const auto plan = s.order<StartGeneration>(kB)->plan;
  CHECK_FALSE(plan.exact);
  CHECK_FALSE(plan.prove);
  for (const ActorId a : {kA, kB}) s.begin(a, 0);
  const auto step = [&](std::int64_t k) {
    for (const ActorId a : {kA, kB})
      s.on(StepApplied{a, s.g(), Script::step(k), {{"w", {a.value, 0}}}, true});
  };
  step(0);
  CHECK(s.all<CommitStep>().size() == 1);
  step(1);
  CHECK(s.order<WriteCheckpoint>(kA)->step == 2);
  CHECK_FALSE(s.order<ProveState>(kB));
  s.written(kA, 2);
  CHECK(s.all<AcceptCheckpoint>().size() == 1);
  step(2);
  step(3);
  s.written(kA, 4);
  CHECK(s.order<Finish>(kB));
  s.on(TrainerFinished{kB, s.g(), 4, "h2", {{"w", {2, 0}}}});  // who tells first is not asked
  s.on(TrainerFinished{kA, s.g(), 4, "h1", {{"w", {1, 0}}}});
  CHECK(s.all<JobFailed>().empty());
  CHECK(s.only<JobDone>().hash == "h1");
  CHECK(s.only<JobDone>().state.parts == std::vector<PartHash>{{"w", {1, 0}}});
}

TEST_CASE("steps of a run are rehearsed, less and less often") {
  Script s(resuming(1));
  s.join(kA);
  CHECK(s.order<StartGeneration>(kA)->plan.begun_at == 6);
  std::vector<std::int64_t> rehearsed;
  for (std::int64_t step = 0; step < 500; ++step) {
    if (is_rehearsed(step, 6, 400)) rehearsed.push_back(step);
  }
  CHECK(rehearsed == std::vector<std::int64_t>{7, 10, 22, 70, 262, 399});
}

TEST_CASE("whoever computes has the time to end it, and a state on its way keeps the group forming") {
  // A state of some GB, and a leaf of 40 s, took longer than the 6 s in which a trainer must leave: every
  // survivor was killed at every death.
  Script s(config_of(2), {kA, kB});
  s.on(GenerationFailed{kA, s.g(), "timed out", {}});
  s.progress[kB] = {7, true, "step 1, leaf 1"};
  s.quiesced(kA, 0);
  s.wait(seconds(60));
  CHECK(s.all<KillActor>().empty());
  s.progress[kB] = {8, false, "step 1"};
  s.wait(seconds(5));  // from the end of what it computed
  CHECK(s.all<KillActor>().empty());
  s.quiesced(kB, kNoState);
  const Generation forming = s.g();
  REQUIRE(s.order<StartGeneration>(kB)->plan.receivers == std::vector{1});
  for (int i = 0; i < 5; ++i) {
    s.wait(seconds(20));
    ++s.progress[kA].count;
  }
  CHECK(s.g() == forming);
  s.wait(seconds(31));
  CHECK(s.g() != forming);
}

namespace {

/// Two steps an epoch, five epochs, each with an evaluation of one piece.
DriverConfig watching(const std::string& stop_early, const std::string& keep_best) {
  DriverConfig config = config_of(1);
  config.epochs = 5;
  config.steps_per_epoch = 2;
  config.test_pieces = 1;
  config.checkpoints = true;
  config.keep_checkpoints = 1;
  config.stop_early = {.metric = stop_early, .patience = 2};
  config.keep_best = keep_best;
  return config;
}

/// The epoch that begins at `step`: its steps, an evaluation that comes to `loss`, and its checkpoint.
void run_epoch(Script& s, std::int64_t step, double loss) {
  for (auto k = step; k < (step / 2 + 1) * 2; ++k) s.applied(kA, k);
  REQUIRE(s.order<Evaluate>(kA));
  s.on(EvaluationDone{kA, s.g(), s.order<Evaluate>(kA)->epoch, {{0, 0, 1, {{"loss", loss, 1}}}}});
}
/// The same, and the checkpoint is written.
void run_saved_epoch(Script& s, std::int64_t step, double loss) {
  run_epoch(s, step, loss);
  s.written(kA, (step / 2 + 1) * 2);
}

}  // namespace

TEST_CASE("a job ends after the epochs of patience, at a checkpoint; the best one is spared") {
  Script s(watching("test/loss", "test/loss"), {kA});
  run_saved_epoch(s, 0, 0.5);
  run_saved_epoch(s, 2, 0.3);
  CHECK(s.order<PruneCheckpoints>(kA)->oldest_kept == "ckpt-4");
  run_saved_epoch(s, 4, 0.4);
  CHECK(s.order<PruneCheckpoints>(kA)->oldest_kept == "ckpt-6");
  CHECK(s.order<PruneCheckpoints>(kA)->spared == "ckpt-4");
  run_epoch(s, 6, 0.35);
  CHECK_FALSE(s.order<Finish>(kA));  // first the checkpoint
  s.written(kA, 8);
  REQUIRE(s.order<Finish>(kA));
  s.on(TrainerFinished{kA, s.g(), 8, "h8"});
  const JobDone done = s.only<JobDone>();
  CHECK(done.stopped_early);
  CHECK_FALSE(done.stopped);
  CHECK(done.best_checkpoint == "ckpt-4");
  CHECK(done.best_metric == 0.3);
}

// Was: the value of the lost one stood beside the file of the one before it, no later one was ever better,
// and a resume found no file of that step and let the best one go.
TEST_CASE("the best checkpoint and its value are of a file, where that of a better state came to none") {
  Script s(watching("", "test/loss"), {kA});
  run_saved_epoch(s, 0, 0.5);
  run_epoch(s, 2, 0.3);
  s.on(CheckpointFailed{kA, s.g(), 4, "no space left"});
  run_saved_epoch(s, 4, 0.6);
  CHECK(s.order<PruneCheckpoints>(kA)->spared == "ckpt-2");
  run_saved_epoch(s, 6, 0.4);
  CHECK(s.order<PruneCheckpoints>(kA)->spared == "ckpt-8");
  run_epoch(s, 8, 0.1);
  s.on(CheckpointFailed{kA, s.g(), 10, "no space left"});
  s.on(TrainerFinished{kA, s.g(), 10, "h10"});
  CHECK(s.all<JobDone>().at(0).best_checkpoint == "ckpt-8");
  CHECK(s.all<JobDone>().at(0).best_metric == 0.4);
}

// It had been compared with the one that was lost later, and was no best one.
TEST_CASE("what was evaluated while a better state was written is the best when that comes to no file") {
  Script s(watching("", "test/loss"), {kA});
  run_saved_epoch(s, 0, 0.5);
  run_epoch(s, 2, 0.3);
  s.copied(kA, 4);
  run_epoch(s, 4, 0.4);
  s.on(CheckpointFailed{kA, s.g(), 4, "no space left"});
  s.written(kA, 6);
  CHECK(s.order<PruneCheckpoints>(kA)->spared == "ckpt-6");
}

// An epoch that was interrupted had the mean of its last steps as its train/loss, so a resumed run could stop
// elsewhere.
TEST_CASE("a run resumed in the middle of an epoch has seen what the run before it saw") {
  DriverConfig config = watching("train/loss", "test/loss");
  config.checkpoint_every = 1;
  const auto last_epoch = [](const Script& s) {
    return std::pair(s.only<EpochDone>().metrics, s.only<EpochDone>().train);
  };
  Script whole(config, {kA});
  whole.applied(kA, 0);
  whole.written(kA, 1);
  run_saved_epoch(whole, 1, 0.5);
  whole.applied(kA, 2);
  const auto history = whole.order<WriteCheckpoint>(kA)->history;
  whole.written(kA, 3);
  run_epoch(whole, 3, 0.7);

  config.resume = {{"ckpt-2", 2, "h2", {}}, {"memory", 2, "h2", {}, true}, {"ckpt-3", 3, "h3", history}};
  Script resumed(config);
  resumed.join(kA);
  resumed.begin(kA, 3);
  run_epoch(resumed, 3, 0.7);
  CHECK(last_epoch(resumed) == last_epoch(whole));
  CHECK(last_epoch(resumed).second == std::vector<Figure>{{"loss", 8, 4}});
  CHECK(resumed.order<WriteCheckpoint>(kA)->history == whole.order<WriteCheckpoint>(kA)->history);
  // The best is that of the first run's epoch.
  const auto seen = decode_history(resumed.order<WriteCheckpoint>(kA)->history).value();
  CHECK(seen.kept == Best{2, 0.5, 1});
  CHECK(seen.patience.since == 1);
  // A snapshot of its step is no file to keep.
  resumed.written(kA, 4);
  REQUIRE(resumed.order<PruneCheckpoints>(kA));
  CHECK(resumed.order<PruneCheckpoints>(kA)->spared == "ckpt-2");
}

// Was: the job failed before the checkpoint of the epoch, whose work was lost.
TEST_CASE("a metric that the job does not have fails it once the epoch is saved, with those it has") {
  Script s(watching("test/recall", ""), {kA});
  run_epoch(s, 0, 0.5);
  CHECK(s.all<JobFailed>().empty());
  SECTION("written") {
    s.written(kA, 2);
    REQUIRE(s.all<AcceptCheckpoint>().size() == 1);
    CHECK_THAT(s.only<JobFailed>().todo, Catch::Contains("goes on at step 2"));
  }
  SECTION("not written") {
    s.on(CheckpointFailed{kA, s.g(), 2, "disk full"});
    CHECK_THAT(s.only<JobFailed>().todo, !Catch::Contains("goes on"));
  }
  CHECK(s.only<JobFailed>().reason == "there is no metric 'test/recall': the job has test/loss, train/loss");
}

TEST_CASE("without checkpoints a metric that is missing fails the job after the first epoch") {
  DriverConfig config = watching("test/recall", "");
  config.checkpoints = false;
  Script s(config, {kA});
  run_epoch(s, 0, 0.5);
  REQUIRE(s.all<JobFailed>().size() == 1);
}

// Was: whoever wanted the final state asked the first trainer that lived, which could be one that follows.
TEST_CASE("a job's end names the trainers that hold its state, and none that follows") {
  DriverConfig config = config_of(2);
  config.epochs = 1;
  Script s(config, {kB, kC});
  s.applied({kB, kC}, 0);
  s.down(kC);
  s.quiesced(kB, 1);
  s.formed(kB);
  s.ready(kA);
  REQUIRE(s.order<ShareState>(kB));
  for (int k = 1; k < 4; ++k) s.applied(kB, k);
  REQUIRE(s.order<Finish>(kB));
  s.on(TrainerFinished{kB, s.g(), 4, "h4", Script::parts_after(4)});
  const EndState state = s.only<JobDone>().state;
  CHECK(state.holders == std::vector{kB});
  CHECK(state.steps == 4);
  CHECK(state.lineage == s.lineage);
  CHECK(state.parts == Script::parts_after(4));
}

TEST_CASE("a state of no steps may be what a job begins from") {
  DriverConfig config = config_of(1);
  config.resume = {{"a snapshot", 0, "h0", {}}};
  Script s(config);
  s.join(kA);
  REQUIRE(s.order<StartGeneration>(kA));
  CHECK(s.order<StartGeneration>(kA)->plan.origin == StateOrigin::kCheckpoint);
  CHECK(s.order<StartGeneration>(kA)->plan.checkpoint == "a snapshot");
}
