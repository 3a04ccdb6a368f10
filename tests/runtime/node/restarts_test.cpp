// The node's part of actors that are started again: where they are, what they are constructed with, their
// lives.
#include "tests/runtime/node/machine_fixture.hpp"

using namespace troupe;
using namespace troupe::node;
using F = Fixture;

namespace {

const ActorId kActor = placed_actor_id(77, true);

cluster::ActorSpec restartable() {
  cluster::ActorSpec spec = F::spec(true);
  spec.max_restarts = 2;
  return spec;
}
cluster::ActorPlaced place(cluster::ActorLife life, std::uint32_t incarnation) {
  return {F::kNode, {kActor, incarnation, life, {F::kPeer, {5}}, "signal 9"}};
}

}  // namespace

TEST_CASE("what an actor is constructed with is kept while it has lives, and whoever spawned it") {
  F f;
  const ProcessId driver = f.driver();
  const auto spawned = f.said(driver, wire::SpawnAsk{2, restartable()});
  const cluster::SpawnRequested request = *F::told<cluster::SpawnRequested>(spawned);
  const auto asked = [&] {
    return *F::told<cluster::ActorArguments>(f.head(cluster::ArgumentsWanted{request.requester, kActor}));
  };
  CHECK(asked().payload == request.spec.payload);  // not answered yet: it is there
  const auto answered =
      f.head(cluster::SpawnAnswered{request.requester, true, kActor, {F::kPeer, {5}}, {}, ""});
  CHECK(F::told<cluster::ResolveActor>(answered)->actor == kActor);  // its end is to be heard
  CHECK(asked().kept);
  CHECK(asked().payload == request.spec.payload);
  SECTION("it has no other life") {
    f.head(place(cluster::ActorLife::kEnded, 1));
  }
  SECTION("who spawned it is gone") {
    f.on(ProcessEnded{driver, "signal 9"});
  }
  CHECK_FALSE(asked().kept);
}

TEST_CASE("the head is asked once where an actor is, and all who call it are told") {
  F f;
  const ProcessId first = f.worker({1}), second = f.worker({2});
  CHECK(F::told<cluster::ResolveActor>(f.said(first, wire::ResolveAsk{kActor}))->job == F::kJob);
  const auto told = f.head(place(cluster::ActorLife::kLives, 1));
  CHECK(F::sent<wire::ActorAt>(told, first)->place.process == ProcessAddress{F::kPeer, {5}});
  const auto again = f.said(second, wire::ResolveAsk{kActor});
  CHECK(F::told<cluster::ResolveActor>(again) == nullptr);
  CHECK(F::sent<wire::ActorAt>(again, second) != nullptr);
  f.on(HeadLost{});
  CHECK(F::told<cluster::ResolveActor>(f.on(HeadConnected{})) !=
        nullptr);  // the head has forgotten who asked
  const auto ended = f.head(place(cluster::ActorLife::kEnded, 1));
  CHECK(F::sent<wire::ActorAt>(ended, first) != nullptr);
  CHECK(F::sent<wire::ActorAt>(ended, second) != nullptr);
  f.on(HeadLost{});
  CHECK(F::told<cluster::ResolveActor>(f.on(HeadConnected{})) == nullptr);
}

TEST_CASE("a life that was told to be up is not told to start by a head that forgot it") {
  F f;
  const ProcessId caller = f.worker({1});
  f.said(caller, wire::ResolveAsk{kActor});
  f.head(place(cluster::ActorLife::kLives, 2));
  CHECK(F::sent<wire::ActorAt>(f.head(place(cluster::ActorLife::kRestarts, 2)), caller) == nullptr);
  const ProcessId later = f.worker({2});
  const auto told = f.said(later, wire::ResolveAsk{kActor});
  CHECK(F::sent<wire::ActorAt>(told, later)->place.life == cluster::ActorLife::kLives);
  CHECK(F::sent<wire::ActorAt>(f.head(place(cluster::ActorLife::kRestarts, 3)), caller) != nullptr);
}

TEST_CASE("two lives of an actor on a node are two, and what is said of each names it") {
  F f;
  const auto start = [&](std::uint32_t life) {
    const auto started = f.head(cluster::StartActor{F::kNode, kActor, restartable(), "", {}, life});
    const ProcessId process = F::find<StartWorker>(started)->process;
    f.said(process, wire::Hello{}, 1);
    CHECK(F::told<cluster::ActorStarted>(f.said(process, wire::ActorUp{kActor}))->incarnation == life);
    return process;
  };
  const ProcessId first = start(1), second = start(2);
  CHECK(F::find<KillProcess>(f.head(cluster::KillActor{F::kNode, kActor, "old", 1}))->process == first);
  const auto died = f.on(ProcessEnded{first, "signal 9"});
  CHECK(F::told<cluster::ActorDown>(died)->incarnation == 1);
  CHECK_FALSE(F::told<cluster::ActorDown>(died)->on_purpose);
  const auto ended = f.said(second, wire::ActorEnded{kActor, "it has done its work", true});
  CHECK(F::told<cluster::ActorDown>(ended)->incarnation == 2);
  CHECK(F::told<cluster::ActorDown>(ended)->on_purpose);
}

TEST_CASE("the head alone has an actor killed that starts again: it must hear of the kill before the death") {
  F f;
  const auto start = f.head(cluster::StartActor{F::kNode, kActor, restartable(), ""});
  const ProcessId process = F::find<StartWorker>(start)->process;
  f.said(process, wire::Hello{}, 1);
  f.said(process, wire::ActorUp{kActor});
  const ProcessId other = f.worker({1});
  const auto killed = f.said(other, wire::KillAsk{{F::kNode, process, kActor}, "enough"});
  CHECK(F::told<cluster::KillRequested>(killed) != nullptr);
  CHECK(F::find<KillProcess>(killed) == nullptr);
}

TEST_CASE("a kill of an actor with other lives is repeated until the head has written it down") {
  // Was: said while the head died it was lost, and the next life went on.
  F f;
  const ProcessId other = f.worker({1});
  const auto killed = f.said(other, wire::KillAsk{{F::kNode, {}, kActor}, "enough", 5});
  REQUIRE(F::told<cluster::KillRequested>(killed) != nullptr);
  f.on(HeadLost{});
  const auto repeated = [&] { return F::told<cluster::KillRequested>(f.on(HeadConnected{})); };
  REQUIRE(repeated() != nullptr);
  CHECK(repeated()->request == 5);
  CHECK(repeated()->process == other);
  const cluster::Requester by{{F::kNode, other}, 5};
  SECTION("who asked is told once") {
    const auto told = f.head(cluster::Acknowledged{by, true, {}});
    REQUIRE(F::sent<wire::Answer>(told, other) != nullptr);
    CHECK(F::sent<wire::Answer>(told, other)->ok);
    CHECK(F::sent<wire::Answer>(f.head(cluster::Acknowledged{by, true, {}}), other) == nullptr);
  }
  SECTION("who asked has ended, and the head refuses it: nobody else can be told") {
    f.on(ProcessEnded{other, "exit code 0"});
    const ErrorInfo refused{ErrorCode::kRefused, "cannot kill it", "its program is gone", ""};
    const auto told = f.head(cluster::Acknowledged{by, false, refused});
    REQUIRE(F::find<Log>(told) != nullptr);
    CHECK(F::find<Log>(told)->text.find("its program is gone") != std::string::npos);
  }
  SECTION("who asked has ended: it stands") {
    f.on(ProcessEnded{other, "exit code 0"});
    CHECK(repeated() != nullptr);
    // Was: by what had joined no process of that job was there any more, and the head refused it.
    std::vector<bool> kills;
    for (const auto& action : f.on(HeadConnected{})) {
      const auto* told = std::get_if<TellHead>(&action);
      if (told != nullptr && std::holds_alternative<cluster::KillRequested>(told->event))
        kills.push_back(true);
      if (told != nullptr && std::holds_alternative<cluster::NodeJoined>(told->event)) kills.push_back(false);
    }
    CHECK(kills == std::vector{true, false, true});
    CHECK(F::sent<wire::Answer>(f.head(cluster::Acknowledged{by, true, {}}), other) == nullptr);
  }
  CHECK(repeated() == nullptr);
}

// Was: dropped without a word.
TEST_CASE(
    "kills that processes which ended leave behind are bounded, and that some are dropped is said once") {
  Limits limits;
  limits.kept_events = 2;
  F f(limits);
  const ProcessId worker = f.worker({1});
  f.on(HeadLost{});
  for (std::uint64_t request = 1; request <= 4; ++request)
    f.said(worker, wire::KillAsk{{F::kNode, {}, kActor}, "enough", request});
  std::size_t told = 0;
  for (const auto& action : f.on(ProcessEnded{worker, "exit code 0"})) {
    const auto* log = std::get_if<Log>(&action);
    if (log != nullptr && log->text.find("are dropped: 2 wait already") != std::string::npos) ++told;
  }
  CHECK(told == 1);
  std::size_t repeated = 0;
  for (const auto& action : f.on(HeadConnected{})) {
    const auto* to = std::get_if<TellHead>(&action);
    repeated += to != nullptr && std::holds_alternative<cluster::KillRequested>(to->event) ? 1 : 0;
  }
  CHECK(repeated == 4);  // each before the node joins, and after
}

TEST_CASE("a program's way in stays until the head has heard what it wanted killed, or two seconds") {
  Self self = F::self_with({});
  self.info.gateway = true;
  SeededRandom ids{1};
  NodeMachine machine(self, ids);
  Instant now{1s};
  const auto on = [&](const NodeEvent& event) { return machine.on(event, now); };
  on(HeadConnected{});
  const ProcessId driver = F::find<AdoptDriver>(on(DriverAttached{}))->process;
  on(LocalSaid{driver, wire::Hello{}, 1});
  on(LocalSaid{driver, wire::JobAsk{1, "job"}, 0});
  on(HeadSaid{cluster::JobAnswered{{F::kNode, driver}, 1, F::kJob, 1, ""}});
  on(LocalSaid{driver, wire::KillAsk{{F::kPeer, {}, kActor}, "enough", 2}, 0});
  CHECK(F::find<EndLoop>(on(LocalSaid{driver, wire::Leave{"the driver has ended"}, 0})) == nullptr);
  SECTION("it has") {
    CHECK(F::find<EndLoop>(on(HeadSaid{cluster::Acknowledged{{{F::kNode, driver}, 2}, true, {}}})) !=
          nullptr);
  }
  SECTION("it is away") {
    now += 1s;
    CHECK(F::find<EndLoop>(on(Tick{})) == nullptr);
    now += 1s;
    CHECK(F::find<EndLoop>(on(Tick{})) != nullptr);
  }
}

namespace {

/// The driver is a program's on another node.
cluster::StartActor start_detached(std::uint32_t life = 1) {
  cluster::StartActor start{F::kNode, kActor, F::spec(true, F::kJob, {F::kPeer, {4}}), "", {}, life};
  start.spec.max_restarts = 2;
  start.spec.name = "it";
  start.spec.detached = true;
  start.driver = {F::kPeer, {4}};
  return start;
}

}  // namespace

TEST_CASE("a detached actor's process outlives its driver, and its lines go to the next one") {
  F f;
  f.link();
  const ProcessId worker = f.worker({1});
  const ProcessId process = F::find<StartWorker>(f.head(start_detached()))->process;
  f.said(process, wire::Hello{}, 1);
  f.said(process, wire::ActorUp{kActor});
  const auto gone = f.peer_said(wire::ProcessDown{{F::kPeer, {4}}, "signal 9"});
  CHECK(F::find<KillProcess>(gone) == nullptr);
  CHECK(F::find<KillProcess>(f.head(cluster::NodeDead{F::kNode, F::kPeer, "it left"})) == nullptr);
  const auto ended = f.head(cluster::EndJob{F::kNode, F::kJob, "the driver has ended", {kActor}});
  CHECK(F::find<KillProcess>(ended)->process == worker);
  CHECK(F::find<RetryOutput>(ended) != nullptr);
  // Nobody reads it: it must not be held back for that.
  const auto wrote = f.on(WorkerWrote{process, false, "a line\n"});
  CHECK(wrote.empty());
  const ProcessId next = f.driver();
  f.head(cluster::JobTaken{F::kNode, F::kJob, {F::kNode, next}});
  CHECK(F::sent<wire::Output>(f.on(WorkerWrote{process, false, "a line\n"}), next)->text == "a line\n");
  const auto over = f.head(cluster::EndJob{F::kNode, F::kJob, "it was stopped"});
  CHECK(F::find<KillProcess>(over)->process == process);
}

TEST_CASE("a driver that a newer one replaced spawns no more: the job goes on with its id") {
  // Its actors were those of the newer driver, and ended with that one alone.
  F f;
  const ProcessId driver = f.driver();
  f.head(cluster::EndJob{F::kNode, F::kJob, "a newer driver registered job job", {kActor}});
  const auto refused = f.said(driver, wire::SpawnAsk{2, F::spec()});
  CHECK(F::told<cluster::SpawnRequested>(refused) == nullptr);
  REQUIRE(F::sent<wire::Answer>(refused, driver) != nullptr);
  CHECK(F::sent<wire::Answer>(refused, driver)->error.code == ErrorCode::kRefused);
  // Was: it had light actors and groups in the newer driver's job.
  const auto leased = f.said(driver, wire::LeaseAsk{5, F::kNode, "", {F::kNode, driver}});
  CHECK(F::told<cluster::LeaseRequested>(leased) == nullptr);
  CHECK(F::sent<wire::Answer>(leased, driver)->error.code == ErrorCode::kRefused);
  const auto grouped = f.said(driver, wire::GroupAsk{6, cluster::GroupVerb::kMake, {}, {}});
  CHECK(F::told<cluster::GroupRequested>(grouped) == nullptr);
  CHECK(F::sent<wire::Answer>(grouped, driver)->error.code == ErrorCode::kRefused);
  CHECK(F::told<cluster::GroupRequested>(
            f.said(driver, wire::GroupAsk{7, cluster::GroupVerb::kShow, {}, {}})) != nullptr);
  f.said(driver, wire::JobAsk{3, "job"});
  f.head(cluster::JobAnswered{{F::kNode, driver}, 3, F::kJob, 3, ""});
  CHECK(F::told<cluster::SpawnRequested>(f.said(driver, wire::SpawnAsk{4, F::spec()})) != nullptr);
}

TEST_CASE("the ends of two drivers that had a job one after another are told both") {
  // The first driver lived longer: its end took the place of the second one's, and the job ran for ever.
  const Limits limits{};
  HeadLine line(limits);
  Actions out;
  for (const std::uint64_t driver : {2u, 1u}) line.end_job({F::kNode, F::kJob, "it ended", {driver}}, out);
  CHECK(out.empty());
  const auto told = [&] {
    out.clear();
    line.joined(cluster::NodeJoined(), out);
    return out.size() - 1;
  };
  CHECK(told() == 2);
  line.job_ended(JobId{8});
  CHECK(told() == 2);
  line.job_ended(F::kJob);
  CHECK(told() == 0);
}

TEST_CASE("of two lives of a detached actor on a node both stay with its job") {
  F f;
  std::set<ProcessId> lives;
  for (const std::uint32_t life : {1u, 2u})
    lives.insert(F::find<StartWorker>(f.head(start_detached(life)))->process);
  CHECK(lives.size() == 2);
  CHECK(F::find<KillProcess>(f.head(cluster::EndJob{F::kNode, F::kJob, "", {kActor}})) == nullptr);
}

TEST_CASE("what a detached actor is constructed with is kept by its node and by another one, until its end") {
  F f;
  const cluster::Requester by{{F::kPeer, {4}}, 3};
  const auto spec = F::spec(true, F::kJob, {F::kPeer, {4}}, "abc");
  const auto asked = [&] {
    return *F::told<cluster::ActorArguments>(f.head(cluster::ArgumentsWanted{by, kActor, F::kNode}));
  };
  std::string payload = spec.payload;
  SECTION("its own") {
    const auto start = start_detached();
    payload = start.spec.payload;
    CHECK(F::told<cluster::ResolveActor>(f.head(start))->actor == kActor);  // its end is to be heard
  }
  SECTION("another one, which gets the executable, too") {
    f.link();
    const auto kept = f.head(cluster::KeepArguments{F::kNode, F::kJob, kActor, payload, F::kPeer});
    CHECK(F::told<cluster::ResolveActor>(kept)->actor == kActor);
    CHECK(F::sent_peer<wire::PackageAsk>(kept) != nullptr);
  }
  CHECK(asked().kept);
  CHECK(asked().payload == payload);
  CHECK(asked().node == F::kNode);
  f.head(place(cluster::ActorLife::kEnded, 1));
  CHECK_FALSE(asked().kept);
}

TEST_CASE("an executable that a detached actor may need is kept for the node that comes after this one") {
  const auto start_it = [](std::uint32_t life = 2) {
    auto start = start_detached(life);
    start.spec.payload = F::spec(true, F::kJob, {NodeId{0xdead}, {4}}, "abc").payload;
    start.package_from = F::kPeer;
    return start;
  };
  F f;
  f.link();
  f.head(start_it());
  const auto whole = f.on(PartTaken{"abc", 9, true, std::nullopt});
  REQUIRE(F::find<KeepExecutable>(whole) != nullptr);
  CHECK(F::find<KeepExecutable>(whole)->hash == "abc");
  CHECK(F::find<StartWorker>(whole) != nullptr);
  F next;
  next.on(ExecutablesFound{{"abc"}});
  const auto again = next.head(start_it());
  CHECK(F::sent_peer<wire::PackageAsk>(again, F::kPeer) == nullptr);  // it asks nobody
  CHECK(F::find<StartWorker>(again) == nullptr);
  CHECK(F::find<StartWorker>(next.on(PartTaken{"abc", 0, true, std::nullopt})) != nullptr);
  // One that cannot be read: the start is tried again, from elsewhere.
  F other;
  other.link();
  other.on(ExecutablesFound{{"abc"}});
  other.head(start_it());
  const auto none = other.on(PartTaken{"abc", 0, false, ErrorInfo{ErrorCode::kCorrupt, "no", "", ""}});
  REQUIRE(F::told<cluster::ActorFailed>(none) != nullptr);
  CHECK(F::told<cluster::ActorFailed>(none)->not_begun);
  CHECK(F::sent_peer<wire::PackageAsk>(other.head(start_it(3)), F::kPeer) != nullptr);
}

TEST_CASE("the next life's executable comes from a node that has it, not from the driver that is gone") {
  F f;
  f.link();
  auto start = start_detached(2);
  start.spec.payload = F::spec(true, F::kJob, {NodeId{0xdead}, {4}}, "abc").payload;
  start.driver = {};
  start.package_from = F::kPeer;
  CHECK(F::sent_peer<wire::PackageAsk>(f.head(start), F::kPeer) != nullptr);
}

TEST_CASE("what a driver asked of another node before a newer one replaced it, it does not get") {
  F f;
  f.link();
  const ProcessId driver = f.driver();
  const auto asked = f.said(driver, wire::LeaseAsk{5, F::kPeer, "", {F::kNode, driver}});
  REQUIRE(F::sent_peer<wire::PeerLeaseAsk>(asked) != nullptr);
  const auto number = F::sent_peer<wire::PeerLeaseAsk>(asked)->request;
  const auto over = f.head(cluster::EndJob{F::kNode, F::kJob, "a newer driver registered job job", {kActor}});
  REQUIRE(F::sent<wire::Answer>(over, driver) != nullptr);
  CHECK(F::sent<wire::Answer>(over, driver)->error.code == ErrorCode::kRefused);
  wire::Answer late;
  late.request = number;
  late.ok = true;
  CHECK(F::sent<wire::Answer>(f.peer_said(late), driver) == nullptr);
}

TEST_CASE("a start for which there is no executable is told apart from one that failed") {
  F f;
  f.link();
  auto start = start_detached(2);
  start.spec.payload = F::spec(true, F::kJob, {NodeId{0xdead}, {4}}, "abc").payload;
  start.package_from = F::kPeer;
  f.head(start);
  const auto gone = f.head(cluster::NodeDead{F::kNode, F::kPeer, "it left"});
  REQUIRE(F::told<cluster::ActorFailed>(gone) != nullptr);
  CHECK(F::told<cluster::ActorFailed>(gone)->not_begun);
  CHECK(F::told<cluster::ActorFailed>(gone)->incarnation == 2);
  // The word of it was lost with the head. Was: the next one heard of a death, and counted a restart.
  const auto asked = f.head(cluster::KillActor{F::kNode, start.actor, "did it begin?", 2});
  CHECK(F::told<cluster::ActorDown>(asked) == nullptr);
  REQUIRE(F::told<cluster::ActorFailed>(asked) != nullptr);
  CHECK(F::told<cluster::ActorFailed>(asked)->not_begun);
  CHECK(F::told<cluster::ActorFailed>(asked)->error.message() ==
        F::told<cluster::ActorFailed>(gone)->error.message());
}

// Was: a head that had not heard of it, and asked, took it for a death after which it starts again.
TEST_CASE("an end that an actor wanted is told as that whenever the head asks") {
  F f;
  const ProcessId process = f.worker(kActor);
  CHECK(F::told<cluster::ActorDown>(f.said(process, wire::ActorEnded{kActor, "done", true}))->on_purpose);
  const auto asked = [&](const auto& question) {
    const auto told = f.head(question);
    const auto* down = F::told<cluster::ActorDown>(told);
    REQUIRE(down != nullptr);
    CHECK(down->on_purpose);
    CHECK(down->reason == "done");
  };
  asked(cluster::KillActor{F::kNode, kActor, "did it begin?", 1});
  asked(cluster::ConfirmActor{F::kNode, kActor, 3, 1});
  asked(cluster::StartActor{F::kNode, kActor, F::spec(true), ""});
}

// Was: what a constructor threw was told as a death, too, after which it was constructed again.
TEST_CASE("a constructor's failure is told as that whenever the head asks") {
  F f;
  const auto started = f.head(cluster::StartActor{F::kNode, kActor, F::spec(true), ""});
  const ProcessId process = F::find<StartWorker>(started)->process;
  f.said(process, wire::Hello{}, 1);
  const ErrorInfo boom{ErrorCode::kTaskFailed, "T cannot be constructed", "boom", ""};
  f.said(process, wire::ActorNotUp{kActor, boom});
  const auto asked = f.head(cluster::KillActor{F::kNode, kActor, "did it begin?", 1});
  REQUIRE(F::told<cluster::ActorFailed>(asked) != nullptr);
  CHECK(F::told<cluster::ActorFailed>(asked)->error.why == "boom");
  CHECK_FALSE(F::told<cluster::ActorFailed>(asked)->not_begun);
}

TEST_CASE("what a detached actor saves is kept here, and answered once the head has it, too") {
  F f;
  const ProcessId process = F::find<StartWorker>(f.head(start_detached(2)))->process;
  const auto up = f.said(process, wire::Hello{}, 1);
  REQUIRE(F::sent<wire::StartActorHere>(up, process) != nullptr);
  CHECK(F::sent<wire::StartActorHere>(up, process)->is_kept);
  CHECK(F::sent<wire::StartActorHere>(up, process)->incarnation == 2);
  CHECK_FALSE(F::sent<wire::StartActorHere>(up, process)->state);
  f.said(process, wire::ActorUp{kActor});
  const wire::Bytes state(3, std::byte{7});
  const auto told = [](const auto& actions) { return F::told<cluster::StateSaved>(actions); };
  const auto saved = f.said(process, wire::SaveAsk{5, kActor, state});
  REQUIRE(told(saved) != nullptr);
  const cluster::StateSaved first = *told(saved);
  CHECK(first.incarnation == 2);
  CHECK(first.state.bytes == state);
  CHECK(F::sent<wire::Answer>(saved, process) == nullptr);
  f.on(HeadLost{});
  CHECK(told(f.on(HeadConnected{})) != nullptr);
  const auto answered = f.head(cluster::Acknowledged{{{F::kNode, process}, 5}, true, {}});
  REQUIRE(F::sent<wire::Answer>(answered, process) != nullptr);
  CHECK(F::sent<wire::Answer>(answered, process)->ok);
  // A head that started again asks for it, and may tell to start it once more: that says nothing new.
  const auto asked = [&] {
    return *F::told<cluster::ActorArguments>(
        f.head(cluster::ArgumentsWanted{{{F::kPeer, {4}}, 3}, kActor, F::kNode}));
  };
  f.head(start_detached(2));
  CHECK(asked().payload == start_detached(2).spec.payload);
  CHECK(asked().state.bytes == state);
  CHECK(asked().state.version == first.state.version);
  CHECK(told(f.said(process, wire::SaveAsk{6, kActor, state}))->state.version > first.state.version);
  // One that the head would refuse takes the place of none: a head that starts again has nothing else.
  const auto before = asked();
  const wire::Bytes huge(std::size_t{4} << 20);
  const auto too_large = f.said(process, wire::SaveAsk{9, kActor, huge});
  REQUIRE(F::sent<wire::Answer>(too_large, process) != nullptr);
  CHECK(F::sent<wire::Answer>(too_large, process)->error.code == ErrorCode::kLimit);
  CHECK(told(too_large) == nullptr);
  CHECK(asked().state.bytes == before.state.bytes);
  CHECK(asked().state.version == before.state.version);
  // Its next life has it.
  auto next = start_detached(3);
  next.state = first.state;
  const ProcessId other = F::find<StartWorker>(f.head(next))->process;
  const auto again = f.said(other, wire::Hello{}, 1);
  CHECK(F::sent<wire::StartActorHere>(again, other)->state == state);
  f.said(other, wire::ActorUp{kActor});
  const auto later = *told(f.said(other, wire::SaveAsk{7, kActor, state}));
  CHECK(later.state.version > first.state.version + (std::uint64_t{1} << 32));
  // Nobody keeps what has no other life.
  f.head(place(cluster::ActorLife::kEnded, 3));
  const auto refused = f.said(other, wire::SaveAsk{8, kActor, state});
  REQUIRE(F::sent<wire::Answer>(refused, other) != nullptr);
  CHECK(F::sent<wire::Answer>(refused, other)->error.code == ErrorCode::kActorDied);
}

TEST_CASE("what another node's actor has saved since is kept beside its arguments, the newest of it") {
  F f;
  const auto asked = [&] {
    return *F::told<cluster::ActorArguments>(
        f.head(cluster::ArgumentsWanted{{{F::kPeer, {4}}, 3}, kActor, F::kNode}));
  };
  const auto not_here = f.head(cluster::KeepState{F::kNode, kActor, {5, wire::Bytes(5)}});
  CHECK(F::told<cluster::StateKept>(not_here) == nullptr);  // its arguments are not
  CHECK_FALSE(asked().kept);
  const std::string payload = F::spec(true).payload;
  const auto kept_both =
      f.head(cluster::KeepArguments{F::kNode, F::kJob, kActor, payload, {}, {1, wire::Bytes(1)}});
  REQUIRE(F::told<cluster::StateKept>(kept_both) != nullptr);
  CHECK(F::told<cluster::StateKept>(kept_both)->version == 1);
  CHECK(asked().state.version == 1);
  for (const std::uint64_t version : {3u, 2u}) {
    const auto kept = f.head(cluster::KeepState{F::kNode, kActor, {version, wire::Bytes(version)}});
    REQUIRE(F::told<cluster::StateKept>(kept) != nullptr);
    CHECK(F::told<cluster::StateKept>(kept)->version == version);
  }
  CHECK(asked().payload == payload);
  CHECK(asked().state.version == 3);
  CHECK(asked().state.bytes == wire::Bytes(3));
}
