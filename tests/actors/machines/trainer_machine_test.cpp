/// What one trainer does, as scripts.
#include "actors/train/trainer/trainer_machine.hpp"

#include <catch2/catch.hpp>

using namespace troupe;
using namespace troupe::train;

namespace {

constexpr ActorId kSelf{1};
constexpr ActorId kPeer{2};
constexpr Generation kFirstGeneration{1, 1};
constexpr Generation kSecond{1, 2};

GenerationPlan plan_of(Generation generation, StateOrigin origin, std::int64_t first_step) {
  GenerationPlan plan;
  plan.generation = generation;
  plan.logical_ranks = 2;
  plan.members = {{kSelf, {}, "", {0, 1}}, {kPeer, {}, "", {1, 2}}};
  plan.origin = origin;
  plan.first_step = first_step;
  plan.total_steps = 100;
  return plan;
}

template <class Task>
Task take(TrainerMachine& trainer) {
  const TrainerTask task = trainer.take();
  REQUIRE(std::holds_alternative<Task>(task));
  return std::get<Task>(task);
}

const std::vector<SlotReport> kSlots{{0, 5, 1.0F}, {1, 6, 2.0F}};

/// The plan's generation begins, and its group is formed.
void start(TrainerMachine& trainer, const GenerationPlan& plan) {
  trainer.on(StartGeneration{plan});
  take<FormGroup>(trainer);
  trainer.done(TaskDone{});
}

/// A trainer that runs the plan from the initial state, and may run steps below `limit`.
TrainerMachine running(const GenerationPlan& plan, std::int64_t limit, Mutations mutations = {}) {
  TrainerMachine trainer(kSelf, mutations);
  trainer.on(Quiesce{kFirstGeneration, "welcome"});
  start(trainer, plan);
  take<MakeInitialState>(trainer);
  trainer.done(StateReady{});
  trainer.on(Committed{kFirstGeneration, 0, limit});
  return trainer;
}
/// The same of generation 1.1.
TrainerMachine running(std::int64_t limit, Mutations mutations = {}) {
  return running(plan_of(kFirstGeneration, StateOrigin::kInitial, 0), limit, mutations);
}

/// A step up to where its gradients are applied.
void begin_apply(TrainerMachine& trainer) {
  take<ComputeStep>(trainer);
  trainer.done(Reduced{kSlots});
  take<ApplyStep>(trainer);
}
void run_step(TrainerMachine& trainer) {
  begin_apply(trainer);
  trainer.done(Applied{});
}

}  // namespace

TEST_CASE("a trainer runs up to its limit, then waits for the commit") {
  TrainerMachine trainer = running(2);
  run_step(trainer);
  run_step(trainer);
  CHECK(trainer.steps() == 2);
  take<Wait>(trainer);
  trainer.on(Committed{kFirstGeneration, 1, 3});
  CHECK(take<ComputeStep>(trainer).step == 2);
}

TEST_CASE("a trainer that a step halts runs no more of them, but does what is due at a barrier") {
  TrainerMachine trainer = running(5);
  run_step(trainer);
  begin_apply(trainer);
  Applied halts;
  halts.halts = true;
  trainer.done(halts);
  CHECK(trainer.steps() == 2);
  take<Wait>(trainer);
  trainer.on(Committed{kFirstGeneration, 2, 9});
  take<Wait>(trainer);
  trainer.on(WriteCheckpoint{kFirstGeneration, 2, {}});
  take<RunCheckpoint>(trainer);
  trainer.done(CheckpointStored{});
  trainer.on(Finish{kFirstGeneration});
  take<HashState>(trainer);
}

TEST_CASE("what was reduced but not applied when the call to leave came never happened") {
  TrainerMachine trainer = running(5);
  take<ComputeStep>(trainer);
  CHECK(trainer.on(Quiesce{kSecond, "peer died"}).abort_group);
  const auto out = trainer.done(Reduced{kSlots});
  REQUIRE(out.reports.size() == 1);
  CHECK(std::get<TrainerQuiesced>(out.reports[0]).steps == 0);
}

TEST_CASE(
    "an apply under way is finished, and the slots of uncommitted steps are told to the next generation") {
  TrainerMachine trainer = running(5);
  run_step(trainer);
  trainer.on(Committed{kFirstGeneration, 1, 6});
  run_step(trainer);
  begin_apply(trainer);
  trainer.on(Quiesce{kSecond, "peer died"});
  const auto quiesced = std::get<TrainerQuiesced>(trainer.done(Applied{}).reports.at(0));
  CHECK(quiesced.steps == 3);
  REQUIRE(quiesced.uncommitted.size() == 2);
  CHECK(quiesced.uncommitted[0] == StepReport{1, kSlots});
  CHECK(quiesced.uncommitted[1] == StepReport{2, kSlots});
}

TEST_CASE("a receiver counts as having no state until the new one is in place, whole") {
  TrainerMachine trainer = running(5);
  run_step(trainer);
  trainer.on(Quiesce{kSecond, "peer died"});
  GenerationPlan plan = plan_of(kSecond, StateOrigin::kMembers, 2);
  plan.source = 1;
  plan.receivers = {0};
  plan.lineage = kFirstGeneration;
  start(trainer, plan);
  CHECK(take<TransferState>(trainer).role == TransferState::Role::kReceiver);

  SECTION("the source dies on the way") {
    trainer.on(Quiesce{{1, 3}, "source died"});
    const auto out = trainer.done(TaskAborted{"aborted", {}});
    CHECK(std::get<TrainerQuiesced>(out.reports.at(0)).steps == kNoState);
  }
  SECTION("it arrives") {
    const auto out = trainer.done(StateReady{});
    CHECK(std::get<StateInstalled>(out.reports.at(0)).steps == 2);
    CHECK(trainer.steps() == 2);
  }
  SECTION("it does not arrive whole") {
    const auto out = trainer.done(TaskAborted{"the hash of 'w' does not hold", {}});
    CHECK(std::holds_alternative<GenerationFailed>(out.reports.at(0)));
    CHECK(trainer.steps() == kNoState);
  }
}

TEST_CASE("orders of an old generation are ignored, with a reason") {
  TrainerMachine trainer = running(2);
  trainer.on(Quiesce{kSecond, "joined"});
  CHECK_FALSE(trainer.on(Quiesce{kFirstGeneration, "late"}).reason.empty());
  CHECK_FALSE(trainer.on(Committed{kFirstGeneration, 9, 9}).reason.empty());
  CHECK_FALSE(
      trainer.on(StartGeneration{plan_of(kFirstGeneration, StateOrigin::kInitial, 0)}).reason.empty());
  CHECK_FALSE(trainer.on(Evaluate{kFirstGeneration, 0, 0, 5}).reason.empty());
  CHECK(trainer.limit() == 2);
}

TEST_CASE("an aborted collective is reported once, and then the trainer waits to be called") {
  TrainerMachine trainer = running(2);
  take<ComputeStep>(trainer);
  const auto out = trainer.done(TaskAborted{"no word from 2 for 30 s", {kPeer}});
  CHECK(std::get<GenerationFailed>(out.reports.at(0)).suspects == std::vector{kPeer});
  take<Wait>(trainer);
}

TEST_CASE("a trainer that waits says at once what it holds, however large that is") {
  // It hashed the whole state first, with 6 s for it.
  TrainerMachine trainer = running(1);
  run_step(trainer);
  take<Wait>(trainer);
  const auto out = trainer.on(Quiesce{kSecond, "peer died"});
  const auto quiesced = std::get<TrainerQuiesced>(out.reports.at(0));
  CHECK(quiesced.steps == 1);
  CHECK(quiesced.lineage == Generation{});
  take<Wait>(trainer);
}

TEST_CASE("a heartbeat tells whether the trainer computes, in what, and that it comes further") {
  TrainerMachine trainer = running(5);
  const auto at = [&] { return std::get<TrainerHeartbeat>(trainer.heartbeat()).progress; };
  CHECK_FALSE(at().computes);
  take<ComputeStep>(trainer);
  CHECK_FALSE(at().computes);  // it waits for its batches
  std::uint64_t last = at().count;
  const auto further = [&] { return std::exchange(last, at().count) < at().count; };
  trainer.computes("leaf 1");
  CHECK(at().computes);
  CHECK(at().doing == "step 1, leaf 1");
  CHECK(further());
  CHECK_FALSE(further());
  trainer.waits();
  CHECK_FALSE(at().computes);
  CHECK(further());
  trainer.on(Quiesce{kSecond, "peer died"});
  trainer.done(TaskAborted{"aborted", {}});
  CHECK_FALSE(at().computes);

  TrainerMachine writes = running(5);
  writes.on(WriteCheckpoint{kFirstGeneration, 0});
  take<RunCheckpoint>(writes);
  // No abort ends it: the driver learns from the heartbeat that it is not to be killed for it.
  CHECK(writes.on(Quiesce{kSecond, "peer died"}).reports.empty());
  const auto said = std::get<TrainerHeartbeat>(writes.heartbeat()).progress;
  CHECK(said.computes);
  CHECK(said.doing == "the checkpoint of step 0");
  const auto left = writes.done(CheckpointStored{"path", "h0", {}});
  CHECK(std::get<TrainerQuiesced>(left.reports.at(0)).steps == 0);
}

TEST_CASE("a checkpoint is written beside the steps: what came of it is of its order, in any generation") {
  TrainerMachine trainer = running(5);
  const WriteCheckpoint order{kFirstGeneration, 0, {}};
  trainer.on(order);
  take<RunCheckpoint>(trainer);
  trainer.writes(0);
  const auto copied = trainer.done(StateCopied{});
  REQUIRE(copied.reports.size() == 1);
  CHECK(std::get<CheckpointCopied>(copied.reports[0]).step == 0);
  const auto doing = [&] { return std::get<TrainerHeartbeat>(trainer.heartbeat()).progress; };
  take<ComputeStep>(trainer);
  CHECK(doing().doing == "step 1");
  const auto left = [&] {
    trainer.on(Quiesce{kSecond, "peer died"});
    return trainer.done(TaskAborted{"aborted", {}});
  }();
  CHECK(std::get<TrainerQuiesced>(left.reports.at(0)).writes);
  CHECK(doing().computes);
  CHECK(doing().doing == "the writing of the checkpoint of step 0");
  const auto wrote = trainer.wrote(order, CheckpointStored{"path", "h0", {}});
  REQUIRE(wrote.reports.size() == 1);
  CHECK(std::get<CheckpointWritten>(wrote.reports[0]).generation == kFirstGeneration);
  CHECK_FALSE(doing().computes);
  const auto failed = trainer.wrote(order, TaskAborted{"disk full", {}});
  CHECK(std::get<CheckpointFailed>(failed.reports.at(0)).reason == "disk full");
}

TEST_CASE("a member that has the state and does not send it takes no part in a transfer") {
  TrainerMachine trainer = running(5);
  trainer.on(Quiesce{kSecond, "joined"});
  GenerationPlan plan = plan_of(kSecond, StateOrigin::kMembers, 0);
  plan.members.push_back({ActorId{3}, {}, "", {2, 3}});
  plan.lineage = Generation{};
  plan.source = 1;
  plan.receivers = {2};
  start(trainer, plan);
  take<Wait>(trainer);
  CHECK(trainer.state() == TrainerMachine::State::kRunning);
}

TEST_CASE("a state of another lineage is not taken for the plan's") {
  TrainerMachine trainer = running(5);
  trainer.on(Quiesce{kSecond, "joined"});
  GenerationPlan plan = plan_of(kSecond, StateOrigin::kMembers, 0);
  plan.lineage = {1, 7};
  plan.source = 0;
  const auto out = trainer.on(StartGeneration{plan});
  CHECK(std::holds_alternative<GenerationFailed>(out.reports.at(0)));
}

TEST_CASE("the plan's first steps are proven until the state is through, and the second is rehearsed") {
  GenerationPlan plan = plan_of(kFirstGeneration, StateOrigin::kInitial, 0);
  plan.prove = true;
  TrainerMachine trainer = running(plan, 5);
  CHECK_FALSE(take<ComputeStep>(trainer).rehearse);
  trainer.done(Reduced{kSlots});
  CHECK(take<ApplyStep>(trainer).proves == 0);
  const auto applied = std::get<StepApplied>(trainer.done(Applied{{{"w", {1, 2}}}}).reports.at(0));
  CHECK(applied.parts == std::vector<PartHash>{{"w", {1, 2}}});
  CHECK_FALSE(applied.proven);
  CHECK(take<ComputeStep>(trainer).rehearse);
  trainer.done(Reduced{kSlots});
  CHECK(take<ApplyStep>(trainer).proves == 1);
  const auto last = std::get<StepApplied>(
      trainer.done(Applied{{{"w", {1, 2}}}, true, {{"learning_rate", 0.5}}}).reports.at(0));
  CHECK(last.proven);
  CHECK(last.report.values == StepValues{{"learning_rate", 0.5}});
  take<ComputeStep>(trainer);
  trainer.done(Reduced{kSlots});
  CHECK(take<ApplyStep>(trainer).proves == -1);
}

TEST_CASE("no step is rehearsed where bits may differ") {
  GenerationPlan plan = plan_of(kFirstGeneration, StateOrigin::kInitial, 0);
  plan.exact = false;
  TrainerMachine trainer = running(plan, 5);
  run_step(trainer);
  CHECK_FALSE(take<ComputeStep>(trainer).rehearse);
}

TEST_CASE("a newcomer follows beside the steps, and joins with what it has") {
  TrainerMachine trainer(kSelf);
  trainer.on(FollowState{kFirstGeneration, "where B is", kFirstGeneration, kFirstGeneration});
  CHECK(take<FollowSource>(trainer).until == kNoState);
  CHECK(trainer.steps() == kNoState);

  SECTION("which it has whole") {
    const auto out = trainer.done(Followed{4, {{3, kSlots}}});
    CHECK(std::get<StateFollowed>(out.reports.at(0)).steps == 4);
    // It goes on, and says no more: others may run some steps before it is called.
    CHECK(take<FollowSource>(trainer).goes_on);
    CHECK(trainer.done(Followed{3, {}}).reports.empty());
    CHECK(take<FollowSource>(trainer).goes_on);
    CHECK(trainer.done(Followed{4, {{3, kSlots}}}).reports.empty());
    const auto held = std::get<TrainerQuiesced>(trainer.on(Quiesce{kSecond, "joined"}).reports.at(0));
    CHECK(held.steps == 4);
    CHECK(held.lineage == kFirstGeneration);
    CHECK(held.uncommitted == std::vector<StepReport>{{3, kSlots}});
    GenerationPlan plan = plan_of(kSecond, StateOrigin::kMembers, 6);
    plan.lineage = kFirstGeneration;
    plan.source = 1;
    plan.followers = {0};
    start(trainer, plan);
    CHECK(take<FollowSource>(trainer).until == 6);
    CHECK(trainer.steps() == kNoState);
    const auto joined = trainer.done(Followed{6, {}});
    CHECK(std::get<StateInstalled>(joined.reports.at(0)).steps == 6);
    trainer.on(Committed{kSecond, 6, 8});
    CHECK(take<ComputeStep>(trainer).step == 6);
  }
  SECTION("or not, when a recovery calls") {
    CHECK(trainer.on(Quiesce{kSecond, "peer died"}).abort_group);
    const auto out = trainer.done(TaskAborted{"a newer generation", {}});
    CHECK(std::get<TrainerQuiesced>(out.reports.at(0)).steps == kNoState);
  }
  SECTION("or not at all, and may try again") {
    const auto out = trainer.done(TaskAborted{"the source is gone", {}});
    CHECK(std::get<FollowFailed>(out.reports.at(0)).reason == "the source is gone");
    trainer.on(FollowState{kFirstGeneration, "where C is", kFirstGeneration, kFirstGeneration});
    CHECK(take<FollowSource>(trainer).order.source == "where C is");
  }
}

TEST_CASE("a state is shared between steps") {
  TrainerMachine trainer = running(5);
  take<ComputeStep>(trainer);
  trainer.on(ShareState{kFirstGeneration});
  trainer.done(Reduced{kSlots});
  take<ApplyStep>(trainer);
  trainer.done(Applied{});
  take<ShareOut>(trainer);
  CHECK(std::get<StateShared>(trainer.done(Shared{"here"}).reports.at(0)).address == "here");
  CHECK(take<ComputeStep>(trainer).step == 1);
}

TEST_CASE("a checkpoint that does not load here is reported, and the group stays") {
  TrainerMachine trainer(kSelf);
  trainer.on(Quiesce{kFirstGeneration, "welcome"});
  GenerationPlan plan = plan_of(kFirstGeneration, StateOrigin::kCheckpoint, 4);
  plan.checkpoint = "c";
  plan.state_hash = "h4";
  start(trainer, plan);
  CHECK(take<LoadCheckpoint>(trainer).hash == "h4");
  const auto out = trainer.done(TaskAborted{"no such file", {}});
  CHECK(std::get<CheckpointUnreadable>(out.reports.at(0)).reason == "no such file");
  CHECK_FALSE(out.abort_group);
  CHECK(trainer.steps() == kNoState);
}

// The death of a trainer that was sent the checkpoint counted it as a file that cannot be read: an older one
// was taken, or the job failed.
TEST_CASE("a checkpoint that could not be passed on is no unreadable one: its reader leaves the generation") {
  TrainerMachine trainer(kSelf);
  trainer.on(Quiesce{kFirstGeneration, "welcome"});
  GenerationPlan plan = plan_of(kFirstGeneration, StateOrigin::kCheckpoint, 4);
  plan.checkpoint = "c";
  start(trainer, plan);
  take<LoadCheckpoint>(trainer);
  const auto out = trainer.done(TaskAborted{"a receiver died", {}, true});
  REQUIRE(out.reports.size() == 1);
  CHECK(std::get<GenerationFailed>(out.reports.at(0)).reason == "a receiver died");
  CHECK(out.abort_group);
}

TEST_CASE("with shards a trainer that has applied a step holds no whole state, unless it is alone") {
  const int members = GENERATE(1, 2);
  GenerationPlan plan = plan_of(kFirstGeneration, StateOrigin::kInitial, 0);
  plan.sharded = true;
  plan.members.resize(static_cast<std::size_t>(members));
  TrainerMachine trainer = running(plan, 2);
  run_step(trainer);
  CHECK(trainer.steps() == 1);
  const auto out = trainer.on(Quiesce{kSecond, "a peer died"});
  CHECK(std::get<TrainerQuiesced>(out.reports.at(0)).steps == (members == 1 ? 1 : kNoState));
}

// Until the next generation called, its weights were copied for a deployment as those of the step before.
TEST_CASE("with shards an apply whose group was aborted leaves the generation, and no state") {
  TrainerMachine trainer = running(2);
  CHECK(trainer.has_settled());
  begin_apply(trainer);
  const auto left = trainer.done(TaskAborted{"a peer died", {}});
  CHECK_FALSE(trainer.has_settled());
  REQUIRE(left.reports.size() == 1);
  CHECK(std::holds_alternative<GenerationFailed>(left.reports[0]));
  const auto out = trainer.on(Quiesce{kSecond, "a peer died"});
  CHECK(std::get<TrainerQuiesced>(out.reports.at(0)).steps == kNoState);
}
