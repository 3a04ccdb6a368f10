/// A node's decisions: workers, deaths, requests and the end, one story a test.

#include "runtime/core/ending.hpp"
#include "tests/runtime/node/machine_fixture.hpp"

using namespace troupe;
using namespace troupe::node;

using F = Fixture;

// Workers and actors.

TEST_CASE("A spawn that was cancelled is cancelled again when the head is back: it may not have heard") {
  // The simulator found it: the word was lost with the connection, and the actor lived on for nobody.
  F f;
  const ProcessId driver = f.driver();
  f.said(driver, wire::SpawnAsk{7, {}});
  REQUIRE(F::told<cluster::SpawnCancelled>(f.said(driver, wire::SpawnCancel{7})) != nullptr);
  f.on(HeadLost{""});
  const auto again = f.on(HeadConnected{});
  const auto* cancelled = F::told<cluster::SpawnCancelled>(again);
  REQUIRE(cancelled != nullptr);
  REQUIRE(cancelled->requester == cluster::Requester{{F::kNode, driver}, 7});
}

TEST_CASE("An isolated actor gets a process of its own, and hears of its start once that said hello") {
  F f;
  const auto started = f.head(cluster::StartActor{F::kNode, {1}, F::spec(true), ""});
  const auto* worker = F::find<StartWorker>(started);
  REQUIRE(worker != nullptr);
  REQUIRE(worker->label == "trainer 0");
  REQUIRE(F::sent<wire::Configure>(started, worker->process)->job == F::kJob);
  REQUIRE(F::sent<wire::StartActorHere>(started, worker->process) == nullptr);
  REQUIRE(F::find<StartWorker>(f.head(cluster::StartActor{F::kNode, {1}, F::spec(true), ""})) == nullptr);

  const auto hello = f.said(worker->process, wire::Hello{}, 1);
  REQUIRE(F::find<Welcome>(hello) != nullptr);
  REQUIRE(F::sent<wire::StartActorHere>(hello, worker->process)->actor == ActorId{1});
  const auto up = f.said(worker->process, wire::ActorUp{{1}});
  REQUIRE(F::told<cluster::ActorStarted>(up)->process == worker->process);
}

TEST_CASE("A process sees the GPUs that its actor was dealt, also when its executable comes first") {
  F f;
  const auto here = f.head(cluster::StartActor{F::kNode, {1}, F::spec(true), "", {"GPU-1", "GPU-3"}});
  REQUIRE(F::find<StartWorker>(here)->gpus == std::vector<std::string>{"GPU-1", "GPU-3"});
  REQUIRE(F::find<StartWorker>(f.head(cluster::StartActor{F::kNode, {2}, F::spec(false), ""}))->gpus.empty());

  f.link();
  const auto spec = F::spec(true, F::kJob, {F::kPeer, {9}}, "abc");
  REQUIRE(F::find<StartWorker>(f.head(cluster::StartActor{F::kNode, {3}, spec, "", {"GPU-2"}})) == nullptr);
  const auto whole = f.on(PartTaken{"abc", 100, true, {}});
  REQUIRE(F::find<StartWorker>(whole)->gpus == std::vector<std::string>{"GPU-2"});
}

TEST_CASE("Who asked for an actor hears why it waits") {
  F f;
  const ProcessId driver = f.driver();
  f.said(driver, wire::SpawnAsk{7, {}});
  const auto told = f.head(cluster::SpawnWaits{{{F::kNode, driver}, 7}, "no GPU is free"});
  const auto* waits = F::sent<wire::SpawnWaits>(told, driver);
  REQUIRE(waits != nullptr);
  REQUIRE(waits->request == 7);
  REQUIRE(waits->why == "no GPU is free");
}

TEST_CASE("Actors of a job that need no process of their own share one") {
  F f;
  const ProcessId first = f.worker({1}, false);
  REQUIRE(f.worker({2}, false) == first);
  REQUIRE(f.worker({3}, false, {8}) != first);  // another job's never
}

TEST_CASE("A process that breaks the hello or says what is not its to say is killed, with the reason") {
  F f;
  const auto start = f.head(cluster::StartActor{F::kNode, {1}, F::spec(true), ""});
  const ProcessId process = F::find<StartWorker>(start)->process;
  REQUIRE(F::find<KillProcess>(f.said(process, wire::Hello{1}, 1)) != nullptr);

  const ProcessId other = f.worker({2});
  const auto killed = f.said(other, wire::ProcessDown{{F::kNode, process}, "forged"});
  REQUIRE(F::find<KillProcess>(killed)->process == other);
  REQUIRE(F::find<KillProcess>(f.said(other, wire::ToHead{})) == nullptr);  // killed once
}

TEST_CASE("The end of a worker: abort words first, then its last output, then everybody is told") {
  F f;
  const ProcessId dying = f.worker({1});
  const ProcessId other = f.worker({2});
  f.link();
  f.said(dying, wire::RegionAsk{1, "group", 4096, "rank 0", true});
  f.said(other, wire::RegionAsk{1, "group", 4096, "rank 1", true});
  f.last_line = "out of ideas";
  const auto actions = f.on(ProcessEnding{dying, "exit code 3"});
  REQUIRE(F::index_of<AbortRegions>(actions) == 0);
  REQUIRE(F::find<AbortRegions>(actions)->reason == "rank 0 died: exit code 3");
  REQUIRE(F::index_of<DrainOutput>(actions) == 1);
  const std::string reason = "exit code 3, last line of its output: out of ideas";
  REQUIRE(F::sent<wire::ProcessDown>(actions, other)->reason == reason);
  REQUIRE(F::sent<wire::ProcessDown>(actions, dying) == nullptr);
  REQUIRE(F::sent_peer<wire::ProcessDown>(actions)->process == ProcessAddress{F::kNode, dying});
  REQUIRE(F::told<cluster::ActorDown>(actions)->reason == reason);
  // Its pidfd says so later: nothing is told twice, and it can be forgotten.
  const auto reaped = f.on(ProcessEnded{dying, "exit code 3"});
  REQUIRE(reaped.size() == 1);
  REQUIRE(F::find<ForgetProcess>(reaped) != nullptr);
}

TEST_CASE("A worker that aborts is told with its last words; one that is killed from outside is not") {
  for (const bool aborts : {true, false}) {
    F f;
    const ProcessId dying = f.worker({1});
    f.last_line = "free(): invalid pointer";
    const std::string how = aborts ? "killed by signal 6 (SIGABRT)" : "killed by signal 9 (SIGKILL)";
    const auto actions = f.on(ProcessEnding{dying, how});
    REQUIRE(F::told<cluster::ActorDown>(actions)->reason ==
            how + (aborts ? ", last line of its output: free(): invalid pointer" : ""));
  }
}

// Was: "last line of its output", of an actor that had ended long before.
TEST_CASE("What a shared worker wrote last is not said to be of the actor that it took along") {
  F f;
  const ProcessId dying = f.worker({1}, false);
  f.last_line = "killed by signal 9 (SIGKILL)";
  const std::string reason = F::told<cluster::ActorDown>(f.on(ProcessEnding{dying, "exit code 3"}))->reason;
  CHECK(reason == "exit code 3, last line of all that its shared worker wrote: killed by signal 9 (SIGKILL)");
  CHECK(ended_by_itself(reason));
}

TEST_CASE("A worker that dies before its actor is up fails the actor, with what it wrote last") {
  F f;
  const auto start = f.head(cluster::StartActor{F::kNode, {1}, F::spec(true), ""});
  f.last_line = "libtorch.so: not found";
  const auto ended = f.on(ProcessEnded{F::find<StartWorker>(start)->process, "exit code 127"});
  const auto* failed = F::told<cluster::ActorFailed>(ended);
  REQUIRE(failed->error.why == "exit code 127, last line of its output: libtorch.so: not found");
  REQUIRE(F::find<ForgetProcess>(ended) != nullptr);
  // The head may say it again (it did not hear the answer): the actor does not get a second life.
  const auto again = f.head(cluster::StartActor{F::kNode, {1}, F::spec(true), ""});
  REQUIRE(F::find<StartWorker>(again) == nullptr);
  REQUIRE(F::told<cluster::ActorFailed>(again) != nullptr);
  REQUIRE(F::told<cluster::ActorFailed>(again)->error.message() == failed->error.message());
}

TEST_CASE("A worker that cannot be started fails its actor") {
  F f;
  const auto start = f.head(cluster::StartActor{F::kNode, {1}, F::spec(true), ""});
  const ErrorInfo error{ErrorCode::kIo, "cannot start a worker", "no more processes", "raise ulimit -u"};
  const auto failed = f.on(WorkerNotStarted{F::find<StartWorker>(start)->process, error});
  REQUIRE(F::told<cluster::ActorFailed>(failed)->error.why == error.message());
  REQUIRE(f.machine.locals().all().empty());
}

TEST_CASE("A silent process is killed after 6 s, one that starts after 60 s") {
  F f;
  const ProcessId up = f.worker({1});
  const auto start = f.head(cluster::StartActor{F::kNode, {2}, F::spec(true), ""});
  const ProcessId starting = F::find<StartWorker>(start)->process;
  Actions last;
  for (int i = 0; i < 7; ++i) last = f.tick();
  REQUIRE(F::find<KillProcess>(last)->process == up);
  REQUIRE(F::find<KillProcess>(last)->reason == "no sign of life for 6 s");
  for (int i = 0; i < 54; ++i) last = f.tick();
  REQUIRE(F::find<KillProcess>(last)->process == starting);
  REQUIRE(F::find<KillProcess>(last)->reason == "it did not start within 60 s");
}

TEST_CASE("A node that was stopped itself kills nobody for having been silent meanwhile") {
  // Story: SIGSTOP and SIGCONT of a node, or a machine that slept, and every worker was killed at once.
  F f;
  f.worker({1});
  f.tick();
  REQUIRE(F::find<KillProcess>(f.tick(100s)) == nullptr);
  for (int i = 0; i < 5; ++i) REQUIRE(F::find<KillProcess>(f.tick()) == nullptr);
  REQUIRE(F::find<KillProcess>(f.tick()) != nullptr);
}

TEST_CASE("A routed frame is a sign of life, too") {
  F f;
  const ProcessId worker = f.worker({1});
  for (int i = 0; i < 20; ++i) {
    f.call(worker, {F::kNode, worker});
    REQUIRE(F::find<KillProcess>(f.tick()) == nullptr);
  }
}

TEST_CASE(
    "Killing: an isolated actor by its process, another by a message, one that is not here by an answer") {
  F f;
  const ProcessId alone = f.worker({1});
  const ProcessId shared = f.worker({2}, false);
  REQUIRE(F::find<KillProcess>(f.head(cluster::KillActor{F::kNode, {1}, "enough"}))->process == alone);
  REQUIRE(F::sent<wire::StopActor>(f.head(cluster::KillActor{F::kNode, {2}, "enough"}), shared) != nullptr);
  const auto unknown = f.head(cluster::KillActor{F::kNode, {3}, "enough"});
  REQUIRE(F::told<cluster::ActorFailed>(unknown)->error.why == "no such actor here");
  REQUIRE(F::told<cluster::ActorFailed>(unknown)->not_begun);
  // Then it never begins: the head starts another life elsewhere.
  const auto late = f.head(cluster::StartActor{F::kNode, {3}, F::spec(true), ""});
  REQUIRE(F::find<StartWorker>(late) == nullptr);
  REQUIRE(F::told<cluster::ActorFailed>(late)->not_begun);
  const auto ended = f.on(ProcessEnded{alone, "killed by signal 9 (SIGKILL)"});
  const std::string why = "enough (its process: killed by signal 9 (SIGKILL))";
  REQUIRE(F::told<cluster::ActorDown>(ended)->reason == why);
  // A life that was here and has ended is none that did not begin: a head that forgot it counts it.
  const auto again = f.head(cluster::KillActor{F::kNode, {1}, "enough"});
  REQUIRE(F::told<cluster::ActorDown>(again)->reason == why);
  REQUIRE(F::told<cluster::ActorFailed>(again) == nullptr);
}

TEST_CASE("A process kills actors of its own job alone, here and through the head") {
  F f;
  f.worker({1}, true, {7});
  const ProcessId other = f.worker({2}, true, {8});
  const auto foreign = f.said(other, wire::KillAsk{{F::kNode, {}, {1}}, "mine"});
  REQUIRE(F::find<KillProcess>(foreign) == nullptr);
  REQUIRE(F::told<cluster::KillRequested>(foreign)->job == JobId{8});  // the head refuses it, too

  REQUIRE(F::find<KillProcess>(f.peer_said(wire::KillAsk{{F::kNode, {}, {1}}, "x"}, F::kPeer, {8})) ==
          nullptr);
  REQUIRE(F::find<KillProcess>(f.peer_said(wire::KillAsk{{F::kNode, {}, {1}}, "x"}, F::kPeer, {7})) !=
          nullptr);
  f.link();
  const auto away = f.said(other, wire::KillAsk{{F::kPeer, {}, {9}}, "x"});
  REQUIRE(F::sent_peer<wire::KillAsk>(away) != nullptr);
  REQUIRE(F::find<SendPeer>(away)->job == JobId{8});
}

TEST_CASE("The end of a job kills its workers, drops its regions, and leaves other jobs alone") {
  F f;
  const ProcessId mine = f.worker({1}, true, {7});
  const ProcessId other = f.worker({2}, true, {8});
  f.said(mine, wire::RegionAsk{1, "group", 4096, "rank 0", true});
  f.said(other, wire::RegionAsk{1, "group", 4096, "rank 0", true});
  const auto ended = f.head(cluster::EndJob{F::kNode, {7}, "done"});
  REQUIRE(F::find<KillProcess>(ended)->process == mine);
  REQUIRE(F::find<KillProcess>(ended)->reason == "its job ended: done");
  REQUIRE(F::find<DropRegion>(ended) != nullptr);
  REQUIRE(f.machine.regions().size() == 1);
}

TEST_CASE("Workers end when their driver is gone, though the head is away") {
  // Story: kill -9 of a driver on another node; its workers here lived on for 90 s.
  F f;
  f.link();
  const auto start = f.head(cluster::StartActor{F::kNode, {1}, F::spec(true, F::kJob, {F::kPeer, {9}}), ""});
  const ProcessId worker = F::find<StartWorker>(start)->process;
  f.on(HeadLost{"it was killed"});
  REQUIRE(F::find<KillProcess>(f.peer_said(wire::ProcessDown{{F::kPeer, {8}}, "killed"})) == nullptr);
  const auto down = f.peer_said(wire::ProcessDown{{F::kPeer, {9}}, "killed"});
  REQUIRE(F::find<KillProcess>(down)->process == worker);
  REQUIRE(F::find<KillProcess>(down)->reason == "its driver is gone: killed");
}

// Requests.

TEST_CASE("A request is repeated after every join until it is answered") {
  F f;
  const ProcessId driver = f.driver();
  REQUIRE(F::told<cluster::SpawnRequested>(f.said(driver, wire::SpawnAsk{2, F::spec()}))->spec.job ==
          F::kJob);
  f.said(driver, wire::FindAsk{3, "name"});
  f.said(driver, wire::NodesAsk{4});
  f.on(HeadLost{"it was killed"});
  REQUIRE(F::told<cluster::SpawnRequested>(f.said(driver, wire::SpawnAsk{5, F::spec()})) == nullptr);
  const auto joined = f.on(HeadConnected{});
  REQUIRE(F::told<cluster::NodeJoined>(joined) != nullptr);
  REQUIRE(joined.size() == 5);
  const auto* wanted = F::told<cluster::LookupActor>(joined);
  REQUIRE(wanted->job == F::kJob);

  const auto answered =
      f.head(cluster::SpawnAnswered{{{F::kNode, driver}, 2}, true, {11}, {F::kPeer, {3}}, {}, ""});
  const auto* answer = F::sent<wire::Answer>(answered, driver);
  REQUIRE(answer->ok);
  REQUIRE(wire::decode<wire::SpawnAnswer>(answer->value).value().address ==
          ActorAddress{F::kPeer, {3}, {11}});
  REQUIRE(f.head(cluster::RequestRegistration{F::kNode, ""}).size() == 4);
}

TEST_CASE("A spawn that was cancelled while the head was away is cancelled when it comes back") {
  F f;
  const ProcessId driver = f.driver();
  f.said(driver, wire::SpawnAsk{2, F::spec()});
  f.on(HeadLost{""});
  f.said(driver, wire::SpawnCancel{2});
  const auto joined = f.on(HeadConnected{});
  REQUIRE(F::told<cluster::SpawnRequested>(joined) == nullptr);
  REQUIRE(F::told<cluster::SpawnCancelled>(joined)->requester.request == 2);
  // And one whose cancel was lost: nobody here knows the answered request.
  const auto late =
      f.head(cluster::SpawnAnswered{{{F::kNode, driver}, 2}, true, {11}, {F::kPeer, {3}}, {}, ""});
  REQUIRE(F::told<cluster::SpawnCancelled>(late)->requester.request == 2);
}

TEST_CASE("A spawn that a head which was away answers twice is answered, and its actor lives") {
  // Was: the second answer counted as one that nobody wants, and the actor was killed under its owner's
  // hands.
  F f;
  const ProcessId driver = f.driver();
  f.said(driver, wire::SpawnAsk{2, F::spec()});
  f.on(HeadLost{""});
  f.on(HeadConnected{});  // it hears of the actor by the join, and of the request again
  const cluster::SpawnAnswered answer{{{F::kNode, driver}, 2}, true, {11}, {F::kPeer, {3}}, {}, ""};
  REQUIRE(F::sent<wire::Answer>(f.head(answer), driver)->ok);
  const auto again = f.head(answer);
  CHECK(F::told<cluster::SpawnCancelled>(again) == nullptr);
  CHECK(F::sent<wire::Answer>(again, driver) == nullptr);
}

TEST_CASE("A spawn whose process died meanwhile is cancelled, and again when it is answered") {
  F f;
  const ProcessId worker = f.worker({1});
  f.said(worker, wire::SpawnAsk{2, F::spec()});
  // At once: was said with the answer alone, and until then it stayed in line, with all of its group.
  const auto ended = f.on(ProcessEnding{worker, "exit code 3"});
  REQUIRE(F::told<cluster::SpawnCancelled>(ended) != nullptr);
  CHECK(F::told<cluster::SpawnCancelled>(ended)->requester == cluster::Requester{{F::kNode, worker}, 2});
  const auto late =
      f.head(cluster::SpawnAnswered{{{F::kNode, worker}, 2}, true, {11}, {F::kPeer, {3}}, {}, ""});
  REQUIRE(F::told<cluster::SpawnCancelled>(late) != nullptr);
}

// Was: such a group held its room to the end of its job.
TEST_CASE("A placement group whose process died meanwhile, or gave up, is cancelled when it is made") {
  F f;
  const ProcessId worker = f.worker({1});
  const auto made = [&](ProcessId process, std::uint64_t request) {
    return f.head(cluster::GroupAnswered{{{F::kNode, process}, request}, true, {}, {}});
  };
  f.said(worker, wire::GroupAsk{2, cluster::GroupVerb::kMake, {}, {}});
  f.said(worker, wire::GroupAsk{3, cluster::GroupVerb::kAwait, GroupId{5}, {}});
  f.on(ProcessEnding{worker, "exit code 3"});
  CHECK(F::told<cluster::SpawnCancelled>(made(worker, 2)) != nullptr);
  CHECK(F::told<cluster::SpawnCancelled>(made(worker, 3)) == nullptr);

  const ProcessId driver = f.driver();
  f.said(driver, wire::GroupAsk{4, cluster::GroupVerb::kMake, {}, {}});
  CHECK(F::told<cluster::SpawnCancelled>(f.said(driver, wire::SpawnCancel{4}))->requester.request == 4);
  CHECK(F::told<cluster::SpawnCancelled>(made(driver, 4))->requester.request == 4);
}

TEST_CASE("More unanswered requests of a process than the bound are answered with the limit") {
  Limits limits;
  limits.requests = 3;
  F f(limits);
  const ProcessId driver = f.driver();
  for (std::uint64_t i = 10; i < 13; ++i)
    REQUIRE(F::sent<wire::Answer>(f.said(driver, wire::NodesAsk{i}), driver) == nullptr);
  const auto refused = f.said(driver, wire::NodesAsk{13});
  REQUIRE(F::sent<wire::Answer>(refused, driver)->error.code == ErrorCode::kLimit);
  f.head(cluster::NodesAnswered{{{F::kNode, driver}, 10}, {}});
  REQUIRE(F::told<cluster::NodesWanted>(f.said(driver, wire::NodesAsk{14})) != nullptr);
}

TEST_CASE("A worker has no job but its own, and ends none") {
  F f;
  const ProcessId worker = f.worker({1});
  auto spec = F::spec();
  spec.job = {99};
  REQUIRE(F::told<cluster::SpawnRequested>(f.said(worker, wire::SpawnAsk{1, spec}))->spec.job == F::kJob);
  REQUIRE(F::told<cluster::JobEnded>(f.said(worker, wire::JobEnd{"bye"})) == nullptr);
  REQUIRE_FALSE(F::sent<wire::Answer>(f.said(worker, wire::JobAsk{2, "other"}), worker)->ok);
}

TEST_CASE("A job that the head refuses is an error to its driver, which has none then") {
  F f;
  const auto attached = f.on(DriverAttached{});
  const ProcessId driver = F::find<AdoptDriver>(attached)->process;
  f.said(driver, wire::JobAsk{1, "job"});
  const auto refused = f.head(cluster::JobAnswered{
      {F::kNode, driver}, 1, {}, 0, "", {ErrorCode::kLimit, "no job", "too many run", ""}});
  REQUIRE(F::sent<wire::Answer>(refused, driver)->error.why == "too many run");
  REQUIRE_FALSE(F::sent<wire::Answer>(f.said(driver, wire::SpawnAsk{2, F::spec()}), driver)->ok);
}

TEST_CASE("A driver's goodbye is repeated until the head ends the job") {
  F f;
  const ProcessId driver = f.driver();
  f.on(HeadLost{""});
  REQUIRE(F::told<cluster::JobEnded>(f.said(driver, wire::JobEnd{"done"})) == nullptr);
  REQUIRE(F::told<cluster::JobEnded>(f.on(HeadConnected{}))->reason == "done");
  REQUIRE(F::told<cluster::JobEnded>(f.on(HeadConnected{})) != nullptr);
  // A head whose disk is full says it before it has written it, and may forget it.
  f.head(cluster::EndJob{F::kNode, F::kJob, "done", {}, false});
  REQUIRE(F::told<cluster::JobEnded>(f.on(HeadConnected{})) != nullptr);
  f.head(cluster::EndJob{F::kNode, F::kJob, "done"});
  REQUIRE(F::told<cluster::JobEnded>(f.on(HeadConnected{})) == nullptr);
}

// Output.

TEST_CASE("What a worker writes goes to its driver") {
  F f;
  const ProcessId worker = f.worker({1});
  const auto wrote = f.on(WorkerWrote{worker, true, "line\n"});
  REQUIRE(F::sent<wire::Output>(wrote, {9})->text == "line\n");
}

// The end.

TEST_CASE("A driver that is gone: its node ends its workers and leaves at once, whatever is under way") {
  // Story: kill -9 of a driver with 60,000 spawns under way; node and worker lived on as orphans.
  F f;
  const ProcessId driver = f.driver();
  const ProcessId worker = f.worker({1});
  for (std::uint64_t i = 2; i < 60'000; ++i)
    f.machine.on(LocalSaid{driver, wire::SpawnAsk{i, F::spec()}, 0}, f.now);
  const auto gone = f.on(ProcessEnded{driver, "its link closed"});
  REQUIRE(f.machine.has_lost_driver());
  REQUIRE(gone.size() < 20);  // no word about each of the 60,000
  REQUIRE(F::told<cluster::JobEnded>(gone) != nullptr);
  REQUIRE(F::sent<wire::Leave>(gone, worker) != nullptr);
  REQUIRE(F::find<EndLoop>(gone) == nullptr);
  const auto ended = f.on(ProcessEnded{worker, "exit code 0"});
  REQUIRE(F::told<cluster::NodeLeft>(ended) != nullptr);
  REQUIRE(F::find<EndLoop>(ended) != nullptr);
}

TEST_CASE("A worker that does not leave within 2 s is killed, and none is started any more") {
  F f;
  const ProcessId driver = f.driver();
  const ProcessId worker = f.worker({1});
  const auto left = f.on(LeaveAsked{"SIGTERM"});
  REQUIRE(F::told<cluster::NodeLeaving>(left) != nullptr);
  REQUIRE(F::told<cluster::NodeJoined>(f.head(cluster::RequestRegistration{F::kNode, ""}))->leaving);
  REQUIRE(F::sent<wire::Leave>(left, driver) == nullptr);  // told when all is done
  REQUIRE(F::find<StartWorker>(f.head(cluster::StartActor{F::kNode, {5}, F::spec(), ""})) == nullptr);
  const auto lease = f.said(driver, wire::LeaseAsk{6, F::kNode, "", {F::kNode, driver}});
  REQUIRE_FALSE(F::sent<wire::Answer>(lease, driver)->ok);
  f.tick();
  REQUIRE(F::find<KillProcess>(f.tick())->process == worker);
  const auto ended = f.on(ProcessEnded{worker, "killed by signal 9 (SIGKILL)"});
  REQUIRE(F::told<cluster::ActorDown>(ended)->reason ==
          "its node leaves: SIGTERM (its process: killed by signal 9 (SIGKILL))");
  REQUIRE(F::sent<wire::Leave>(ended, driver) != nullptr);
  REQUIRE(F::find<EndLoop>(ended) != nullptr);
  f.on(ProcessEnded{driver, "its link closed"});
  REQUIRE_FALSE(f.machine.has_lost_driver());  // it was told
}

TEST_CASE("A link to the head that is up and on which nobody answers is made anew, once") {
  // Story: a node was cut off from a head that lived, by a thread of its own that was stuck. It said nothing,
  // never connected again, and kept the workers of a job that had ended.
  F f;
  f.tick();
  REQUIRE(F::told<cluster::Heartbeat>(f.head(cluster::HeartbeatAnswered{F::kNode})) == nullptr);
  for (int i = 0; i < 5; ++i) REQUIRE(F::find<ConnectHeadAnew>(f.tick()) == nullptr);
  const auto silent = f.tick();
  REQUIRE(F::find<ConnectHeadAnew>(silent) != nullptr);
  REQUIRE(F::find<Log>(silent)->level == LogLevel::kWarning);
  for (int i = 0; i < 20; ++i) REQUIRE(F::find<ConnectHeadAnew>(f.tick()) == nullptr);
  REQUIRE(F::told<cluster::NodeJoined>(f.on(HeadConnected{})) != nullptr);
  f.head(cluster::HeartbeatAnswered{F::kNode});
  REQUIRE(F::find<ConnectHeadAnew>(f.tick(20s)) == nullptr);  // it was stopped itself
  for (int i = 0; i < 20; ++i) {
    REQUIRE(F::find<ConnectHeadAnew>(f.tick()) == nullptr);
    f.head(cluster::HeartbeatAnswered{F::kNode});
  }
}

TEST_CASE("A driver's pulse is answered, a worker's is not") {
  F f;
  const ProcessId driver = f.driver(), worker = f.worker({1});
  REQUIRE(F::sent<wire::Pulse>(f.said(driver, wire::Pulse{}), driver) != nullptr);
  REQUIRE(f.said(worker, wire::Pulse{}).empty());
}

TEST_CASE("Who asked a head that does not answer is told so once, and when it answers again") {
  // Story: a head was stopped. A task's Timeout said that its worker starts, and a spawn's to look for room.
  F f;
  const ProcessId driver = f.driver();
  f.head(cluster::NodeAccepted{F::kNode});
  f.tick();
  f.head(cluster::HeartbeatAnswered{F::kNode});
  f.said(driver, wire::NodesAsk{7});
  for (int i = 0; i < 6; ++i) REQUIRE(F::sent<wire::SpawnWaits>(f.tick(), driver) == nullptr);
  const auto told = f.tick();
  const auto* waits = F::sent<wire::SpawnWaits>(told, driver);
  REQUIRE(waits != nullptr);
  REQUIRE(waits->request == 7);
  REQUIRE(waits->why.find("the head does not answer") == 0);
  f.said(driver, wire::NodesAsk{8});
  const auto later = f.tick();
  REQUIRE(F::sent<wire::SpawnWaits>(later, driver)->request == 8);
  REQUIRE(F::sent<wire::SpawnWaits>(f.tick(), driver) == nullptr);
  // Was: taken back when the link was up, which it also is to a head whose loop stands still.
  const auto linked = f.on(HeadConnected{});
  REQUIRE(F::told<cluster::NodesWanted>(linked) != nullptr);
  REQUIRE(F::sent<wire::SpawnWaits>(linked, driver) == nullptr);
  f.said(driver, wire::NodesAsk{9});
  const auto last = f.tick();
  REQUIRE(F::sent<wire::SpawnWaits>(last, driver)->request == 9);
  const auto back = f.head(cluster::HeartbeatAnswered{F::kNode});
  REQUIRE(F::sent<wire::SpawnWaits>(back, driver)->why.empty());
  REQUIRE(F::sent<wire::SpawnWaits>(f.tick(), driver) == nullptr);
}

TEST_CASE("Who waits for room hears that again when a head that did not answer is back") {
  // Was: a head that was stopped for a while says it once, and the Timeout of that request had no reason.
  F f;
  const ProcessId driver = f.driver();
  f.head(cluster::NodeAccepted{F::kNode});
  f.tick();
  f.said(driver, wire::NodesAsk{7});
  f.head(cluster::SpawnWaits{{{F::kNode, driver}, 7}, "no GPU is free"});
  std::string why;
  for (int i = 0; i < 10 && why.empty(); ++i) {
    const auto told = f.tick();
    if (const auto* waits = F::sent<wire::SpawnWaits>(told, driver)) why = waits->why;
  }
  REQUIRE(why.find("the head does not answer") == 0);
  f.on(HeadConnected{});
  const auto back = f.head(cluster::NodeAccepted{F::kNode});
  REQUIRE(F::sent<wire::SpawnWaits>(back, driver) != nullptr);
  REQUIRE(F::sent<wire::SpawnWaits>(back, driver)->why == "no GPU is free");
}

TEST_CASE("One refused handshake is a head that is coming up, five end the node") {
  F f;
  for (int i = 0; i < 4; ++i) REQUIRE(F::find<EndLoop>(f.on(HeadRefused{"no"})) == nullptr);
  f.on(HeadConnected{});
  for (int i = 0; i < 4; ++i) REQUIRE(F::find<EndLoop>(f.on(HeadRefused{"no"})) == nullptr);
  // A head that is killed again and again breaks off a handshake now and then: that is no refusal.
  f.on(HeadUnreachable{"10.0.0.9:1: nobody answers there"});
  for (int i = 0; i < 4; ++i) REQUIRE(F::find<EndLoop>(f.on(HeadRefused{"no"})) == nullptr);
  const auto last = f.on(HeadRefused{"no"});
  REQUIRE_FALSE(F::find<TellMember>(last)->joined.ok());
  REQUIRE(F::find<EndLoop>(last) != nullptr);
}

TEST_CASE("The head asks whether an actor lives: its process says so, after all it said before") {
  F f;
  const ProcessId process = f.worker({5}), other = f.worker({6});
  const auto asked = f.head(cluster::ConfirmActor{F::kNode, {5}, 3});
  REQUIRE(F::sent<wire::ConfirmActor>(asked, process)->question == 3);
  REQUIRE(F::told<cluster::ActorLives>(f.said(process, wire::ConfirmActor{{5}, 3}))->question == 3);
  f.said(process, wire::ActorEnded{{5}, "it left"});
  REQUIRE(F::told<cluster::ActorLives>(f.said(process, wire::ConfirmActor{{5}, 4})) == nullptr);
  REQUIRE(F::told<cluster::ActorDown>(f.head(cluster::ConfirmActor{F::kNode, {5}, 5}))->reason == "it left");
  const auto gone = f.on(ProcessEnded{process, "exit code 0"});
  REQUIRE(F::sent<wire::ProcessDown>(gone, other)->reason == "it left (its process: exit code 0)");
}

TEST_CASE("A node to which no head answers for 10 s does not come up, and says what it tried") {
  SeededRandom ids{1};
  NodeMachine machine(F::self_with({}), ids);
  Instant now{1s};
  const auto tick = [&](Duration later) {
    now += later;
    return machine.on(Tick{}, now);
  };
  machine.on(HeadUnreachable{"10.0.0.9:1: nobody answers there"}, now);
  for (int i = 0; i < 10; ++i) REQUIRE(F::find<TellMember>(tick(1s)) == nullptr);
  REQUIRE(F::find<TellMember>(tick(60s)) == nullptr);  // it was stopped itself meanwhile
  const auto last = tick(1s);
  REQUIRE(F::find<TellMember>(last) != nullptr);
  REQUIRE(F::find<TellMember>(last)->joined.error().code == ErrorCode::kTimeout);
  REQUIRE(F::find<TellMember>(last)->joined.error().why == "10.0.0.9:1: nobody answers there");
  REQUIRE(F::find<TellMember>(tick(1s)) == nullptr);
}

TEST_CASE("A head that answered once may stay away for long") {
  F f;
  f.on(HeadLost{"it was killed"});
  for (int i = 0; i < 60; ++i) REQUIRE(F::find<TellMember>(f.tick()) == nullptr);
}

// `troupe stop` under a job: nothing was said for 90 s, and then only that a trainer did not start.
TEST_CASE("A head that stays away is told once, and so is its return") {
  F f;
  f.on(HeadLost{"it was killed"});
  f.on(HeadUnreachable{"10.0.0.9:1: nobody answers there"});
  for (int i = 0; i < 5; ++i) REQUIRE(F::find<Log>(f.tick()) == nullptr);  // the first only begins to count
  const auto told = f.tick();
  REQUIRE(F::find<Log>(told) != nullptr);
  CHECK(F::find<Log>(told)->text ==
        "the head does not answer (10.0.0.9:1: nobody answers there): nothing new can be started until it "
        "does; "
        "was its cluster ended?");
  for (int i = 0; i < 20; ++i) REQUIRE(F::find<Log>(f.tick()) == nullptr);
  REQUIRE(F::find<Log>(f.on(HeadConnected{})) == nullptr);
  const auto back = f.head(cluster::NodeAccepted{F::kNode});
  REQUIRE(F::find<Log>(back) != nullptr);
  CHECK(F::find<Log>(back)->text == "the head answers again");
}

TEST_CASE("A node is a member once the head says so, and is told once") {
  F f;
  REQUIRE(F::find<TellMember>(f.head(cluster::NodeAccepted{F::kNode}))->joined.ok());
  REQUIRE(F::find<TellMember>(f.head(cluster::NodeAccepted{F::kNode})) == nullptr);
  REQUIRE(F::find<EndLoop>(f.head(cluster::RefuseNode{F::kNode, "it is dead here"})) != nullptr);
}
