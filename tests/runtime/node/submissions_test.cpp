// Drivers of submitted jobs on a node: started once, stopped for sure, told of until the head knows; and
// drivers that come in through their node without being its parent.
#include <algorithm>
#include <csignal>

#include "tests/runtime/node/machine_fixture.hpp"

using namespace troupe;
using namespace troupe::node;

namespace {

struct Jobs : Fixture {
  Actions start(const std::string& id, int attempt = 1) {
    cluster::SubmissionSpec spec{.id = id, .program = {"sleep", "9"}};
    return head(cluster::StartDriver{kNode, spec, attempt, ""});
  }
  Actions runs(const std::string& id, int attempt = 1) {
    start(id, attempt);
    return on(ProgramStarted{id, attempt});
  }
  std::vector<cluster::HeldDriver> joined() {
    const Actions all = on(HeadConnected{});
    return told<cluster::NodeJoined>(all)->drivers;
  }
  ProcessId knock(const std::string& id, std::uint8_t version = wire::kProtocolVersion) {
    const Actions all = on(DriverKnocked{3, id, {version, "its hash"}});
    const auto* adopted = find<AdoptDriver>(all);
    return adopted == nullptr ? ProcessId{} : adopted->process;
  }
};

}  // namespace

// Was: "exit code 127" alone.
TEST_CASE("a driver whose libraries or program are not there says what to do") {
  Jobs f;
  f.start("a");
  f.on(ProgramStarted{"a", 1});
  const Actions over = f.on(ProgramEnded{"a", 1, 127, 0});
  const auto* ended = Jobs::told<cluster::DriverEnded>(over);
  REQUIRE(ended != nullptr);
  CHECK(ended->end.exit_code == 127);
  CHECK(ended->end.how.starts_with("exit code 127, "));
  CHECK(ended->end.how.find("--with-libraries") != std::string::npos);
}

TEST_CASE("a driver is started once, and its end is told until the head has settled it") {
  Jobs f;
  CHECK(Jobs::find<StartProgram>(f.start("a")) != nullptr);
  CHECK(f.start("a").empty());  // the head was not sure that it had arrived
  CHECK(Jobs::told<cluster::DriverStarted>(f.on(ProgramStarted{"a", 1})) != nullptr);
  CHECK(f.start("a").empty());
  const Actions over = f.on(ProgramEnded{"a", 1, 3, 0});
  const auto* ended = Jobs::told<cluster::DriverEnded>(over);
  REQUIRE(ended != nullptr);
  CHECK((ended->end.ran && ended->end.exit_code == 3 && ended->end.how == "exit code 3"));
  f.on(HeadLost{"gone"});
  CHECK(f.joined().at(0).state == cluster::HeldDriver::State::kEnded);
  const Actions again = f.start("a");  // of a head that had not recorded it
  CHECK(Jobs::find<StartProgram>(again) == nullptr);
  CHECK(Jobs::told<cluster::DriverEnded>(again)->end.exit_code == 3);
  f.head(cluster::DriverSettled{Jobs::kNode, "a", 1});
  CHECK(f.joined().at(0).state == cluster::HeldDriver::State::kFiles);
  CHECK(Jobs::find<RemoveJobFiles>(f.head(cluster::ForgetSubmission{Jobs::kNode, "a"}))->id == "a");
  CHECK(f.joined().empty());
}

TEST_CASE(
    "a driver that ignores SIGTERM is killed after its grace; one that could not start is told as that") {
  Jobs f;
  f.runs("a");
  const cluster::StopDriver stop{Jobs::kNode, "a", 1, 10, "it was told to stop"};
  CHECK(Jobs::find<SignalProgram>(f.head(stop))->signal == SIGTERM);
  CHECK(f.head(stop).empty());  // asked again: the grace goes on
  for (int i = 0; i < 9; ++i) CHECK(Jobs::find<KillProgram>(f.tick()) == nullptr);
  CHECK(Jobs::find<KillProgram>(f.tick()) != nullptr);
  CHECK(Jobs::find<KillProgram>(f.tick()) == nullptr);
  const Actions killed = f.on(ProgramEnded{"a", 1, 0, SIGKILL});
  const auto* end = &Jobs::told<cluster::DriverEnded>(killed)->end;
  CHECK((end->signal == SIGKILL && end->exit_code == -1 && end->how == "killed by signal 9 (SIGKILL)"));
  f.runs("m");
  const Actions full = f.on(ProgramEnded{"m", 1, 0, SIGKILL, true});
  CHECK(Jobs::told<cluster::DriverEnded>(full)->end.how ==
        "killed by signal 9 (SIGKILL) by the kernel, since memory ran out");

  f.start("b");
  const ErrorInfo why{ErrorCode::kBadInput, "cannot start the program", "it is not there", "name another"};
  const Actions failed = f.on(ProgramNotStarted{"b", 1, why});
  CHECK_FALSE(Jobs::told<cluster::DriverEnded>(failed)->end.ran);
  CHECK(Jobs::told<cluster::DriverEnded>(failed)->end.how == why.message());
  CHECK(Jobs::told<cluster::DriverEnded>(f.head(cluster::StopDriver{Jobs::kNode, "c", 1, 0, ""})) != nullptr);
}

TEST_CASE("a node that leaves ends its drivers first, and an exit with 0 is no success then") {
  Jobs f;
  f.runs("a");
  const Actions leaving = f.on(LeaveAsked{"it was told to end"});
  CHECK(Jobs::find<SignalProgram>(leaving) != nullptr);
  CHECK(Jobs::find<EndLoop>(leaving) == nullptr);
  CHECK(Jobs::told<cluster::DriverEnded>(f.start("late"))->end.again);
  for (int i = 0; i < 2; ++i) f.tick();
  const Actions over = f.on(ProgramEnded{"a", 1, 0, 0});
  CHECK(Jobs::told<cluster::DriverEnded>(over)->end.exit_code == -1);
  CHECK(Jobs::find<EndLoop>(over) != nullptr);
}

namespace {

struct Packaged : Jobs {
  const std::string package = std::string(64, 'a');
  Actions start(const std::string& id, int attempt = 1) {
    cluster::SubmissionSpec spec{.id = id, .program = {"./train"}};
    spec.package = package;
    return head(cluster::StartDriver{kNode, spec, attempt, ""});
  }
  Actions gives(std::uint64_t offset, std::uint64_t total = 20) {
    return on(HeadGavePart{{package, offset, total, wire::Bytes(total == 0 ? 0 : 10)}});
  }
};

}  // namespace

TEST_CASE("what travels with a job comes from the head once, piece by piece, before it starts") {
  Packaged f;
  CHECK(Jobs::find<UnpackJob>(f.start("a")) != nullptr);
  const Actions missing = f.on(JobUnpacked{"a", true, {}});
  REQUIRE(Jobs::find<AskJobPart>(missing) != nullptr);
  CHECK(Jobs::find<AskJobPart>(missing)->ask.offset == 0);
  f.start("b");
  CHECK(f.on(JobUnpacked{"b", true, {}}).empty());  // it is on its way
  CHECK(f.joined().size() == 2);
  // Was: nobody knew that they wait for their package, nor how much of it is here.
  const auto coming = [&](std::uint64_t bytes, std::uint64_t total) {
    const auto all = f.machine.packages_on_their_way();
    return all.size() == 2 && all[0].submission == "a" && all[1].submission == "b" && all[1].bytes == bytes &&
           all[1].total == total;
  };
  CHECK(coming(0, 0));
  CHECK(Jobs::find<TakeJobPart>(f.gives(0)) != nullptr);
  CHECK(f.gives(0).empty());  // asked for twice, and one is being written
  CHECK(Jobs::find<AskJobPart>(f.on(JobPartTaken{f.package, 10, false, {}}))->ask.offset == 10);
  CHECK(coming(10, 20));
  for (int i = 0; i < 4; ++i) f.tick();
  f.on(HeadLost{"killed"});  // for as long as it takes
  for (int i = 0; i < 60; ++i) CHECK(Jobs::find<AskJobPart>(f.tick()) == nullptr);
  f.on(HeadConnected{});
  CHECK(Jobs::find<AskJobPart>(f.tick())->ask.offset == 10);
  f.gives(10);
  const Actions whole = f.on(JobPartTaken{f.package, 20, true, {}});
  CHECK(std::count_if(whole.begin(), whole.end(),
                      [](const auto& a) { return std::holds_alternative<UnpackJob>(a); }) == 2);
  CHECK(f.machine.packages_on_their_way().empty());
  CHECK(Jobs::find<StartProgram>(f.on(JobUnpacked{"a", false, {}})) != nullptr);
  CHECK(Jobs::find<StartProgram>(f.on(JobUnpacked{"b", false, {}})) != nullptr);
  for (const char* id : {"a", "b"}) {
    f.on(ProgramStarted{id, 1});
    f.on(ProgramEnded{id, 1, 0, 0});
  }
  CHECK(Jobs::find<DropJobPackage>(f.head(cluster::ForgetSubmission{Jobs::kNode, "a"})) == nullptr);
  CHECK(Jobs::find<DropJobPackage>(f.head(cluster::ForgetSubmission{Jobs::kNode, "b"}))->package ==
        f.package);
}

TEST_CASE(
    "a job whose package cannot come fails with the reason; one that is stopped meanwhile starts never") {
  Packaged f;
  const auto end_of = [](const Actions& all) { return Jobs::told<cluster::DriverEnded>(all)->end; };
  f.start("a");
  f.on(JobUnpacked{"a", true, {}});
  f.gives(0);
  f.on(JobPartTaken{f.package, 10, false, {}});
  const Actions dropped = f.gives(10, 0);
  CHECK(end_of(dropped).how.find("its disk has spoilt it") != std::string::npos);
  // Was: a spoilt piece that had come stayed, and with it the next fetch failed, too.
  REQUIRE(Jobs::find<DropJobPackage>(dropped) != nullptr);
  CHECK(Jobs::find<DropJobPackage>(dropped)->package == f.package);
  f.start("b");
  f.on(JobUnpacked{"b", true, {}});
  f.gives(0);
  const ErrorInfo full{ErrorCode::kIo, "cannot keep a job's package", "No space left on device", "make room"};
  CHECK(end_of(f.on(JobPartTaken{f.package, 0, false, full})).how == full.message());
  f.start("c");
  f.on(JobUnpacked{"c", true, {}});
  Actions last;
  for (int i = 0; i < 21; ++i) last = f.tick();
  CHECK(end_of(last).how.find("the head sent nothing of it for 20 s") != std::string::npos);
  CHECK(Jobs::find<DropJobPackage>(last) != nullptr);

  f.start("d");
  const auto stopped = end_of(f.head(cluster::StopDriver{Jobs::kNode, "d", 1, 10, "it was told to stop"}));
  CHECK((!stopped.ran && stopped.how == "it had not started"));
  CHECK(f.on(JobUnpacked{"d", false, {}}).empty());
  f.head(cluster::DriverSettled{Jobs::kNode, "d", 1});
  f.head(cluster::ForgetSubmission{Jobs::kNode, "d"});
  CHECK(Jobs::find<RemoveJobFiles>(f.on(JobUnpacked{"d", false, {}})) != nullptr);  // unpacked too late

  f.start("e");
  const Actions leaving = f.on(LeaveAsked{"it was told to end"});
  CHECK(end_of(leaving).again);
}

TEST_CASE("a driver that died before it heard of its job: its node ends that all the same") {
  // Nobody did: the job ran for ever, or until the next program of its name.
  Jobs f;
  f.runs("a");
  f.driver();
  const ProcessId driver = f.knock("a");
  REQUIRE(driver);
  f.said(driver, wire::Hello{}, 1);
  f.said(driver, wire::JobAsk{1, "mine"});
  CHECK(Jobs::told<cluster::JobEnded>(f.on(ProcessEnded{driver, "the driver is gone"})) == nullptr);
  const Actions late = f.head(cluster::JobAnswered{{Jobs::kNode, driver}, 1, JobId{8}, 1, ""});
  const auto* ended = Jobs::told<cluster::JobEnded>(late);
  REQUIRE(ended != nullptr);
  CHECK(ended->job == JobId{8});
  CHECK(ended->driver == driver);
}

TEST_CASE("a driver of a submission comes in through its node, and its end does not end the node") {
  // Was: a node had one driver, whoever started it, and left with it.
  Jobs f;
  CHECK_FALSE(f.knock("a"));  // no such job runs here
  f.runs("a");
  CHECK_FALSE(f.knock("a", wire::kProtocolVersion + 1));
  const ProcessId parent = f.driver();
  const ProcessId driver = f.knock("a");
  REQUIRE(driver);
  f.said(driver, wire::Hello{}, 1);
  CHECK(Jobs::told<cluster::JobRegistered>(f.said(driver, wire::JobAsk{1, "mine"})) != nullptr);
  const JobId job{8};
  f.head(cluster::JobAnswered{{Jobs::kNode, driver}, 1, job, 1, ""});
  // Its executable is here: its actors start without asking anybody for it.
  const auto spec = Jobs::spec(true, job, {Jobs::kNode, driver}, "its hash");
  const Actions started = f.head(cluster::StartActor{Jobs::kNode, ActorId{4}, spec, ""});
  REQUIRE(Jobs::find<StartWorker>(started) != nullptr);
  const ProcessId worker = Jobs::find<StartWorker>(started)->process;
  // It looks where the libraries are that came with this driver, and no other one of the same executable.
  CHECK(Jobs::find<StartWorker>(started)->driver.process == driver);

  CHECK(Jobs::sent<wire::Leave>(f.said(driver, wire::Leave{"it has ended"}), driver) != nullptr);
  const Actions gone = f.on(ProcessEnded{driver, "the driver is gone"});
  CHECK(Jobs::told<cluster::JobEnded>(gone)->job == job);
  CHECK(Jobs::find<KillProcess>(gone)->process == worker);
  CHECK_FALSE(f.machine.leaving());
  CHECK(f.machine.locals().living(parent) != nullptr);
  f.on(ProcessEnded{parent, "the driver is gone"});
  CHECK(f.machine.leaving());
}

// Was: each answer of the head was written for both, and each piece that was written was asked for by both,
// twice: the questions multiplied with every piece.
TEST_CASE("a package that a job and another job's libraries need at a time is asked for twice, and no more") {
  Packaged f;
  f.start("a");
  f.on(JobUnpacked{"a", true, {}});
  const auto spec = Jobs::spec(true, {7}, {Jobs::kPeer, {9}}, "own+" + f.package + ":/where");
  f.head(cluster::StartActor{Jobs::kNode, {1}, spec, ""});
  f.on(JobUnpacked{kLibrariesOf + f.package, true, {}});
  const auto count_asks = [](const Actions& all) {
    return std::count_if(all.begin(), all.end(),
                         [](const auto& a) { return std::holds_alternative<AskJobPart>(a); });
  };
  std::ptrdiff_t asks = 2;
  for (std::uint64_t piece = 0; piece < 8; ++piece) {
    std::ptrdiff_t next = 0;
    for (; asks > 0; --asks) {  // each answer is written before the next one comes
      const Actions given = f.gives(piece * 10, 100);
      for (const auto& action : given) {
        if (std::holds_alternative<TakeJobPart>(action))
          next += count_asks(f.on(JobPartTaken{f.package, piece * 10 + 10, false, {}}));
      }
    }
    asks = next;
    REQUIRE(asks == 2);
  }
}

// Was: workers on other nodes than their program's had none of the libraries that travelled with it.
TEST_CASE("libraries that travel with a job come from the head before its worker on another node starts") {
  Packaged f;
  const ProcessAddress driver{Jobs::kPeer, {9}};
  const std::string libraries(64, 'c');
  const auto spec_with = [&](JobId job, const std::string& package) {
    return Jobs::spec(true, job, driver, package);
  };
  const std::string program = "own+" + libraries + ":/where/it/is";
  const Actions asked = f.head(cluster::StartActor{Jobs::kNode, {1}, spec_with({7}, program), ""});
  CHECK(Jobs::find<StartWorker>(asked) == nullptr);
  REQUIRE(Jobs::find<UnpackJob>(asked) != nullptr);
  const auto unpack = Jobs::find<UnpackJob>(asked)->spec;
  CHECK(unpack.package == libraries);
  CHECK(f.head(cluster::StartActor{Jobs::kNode, {2}, spec_with({7}, program), ""}).empty());
  const Actions missing = f.on(JobUnpacked{unpack.id, true, {}});
  REQUIRE(Jobs::find<AskJobPart>(missing) != nullptr);
  CHECK(Jobs::find<AskJobPart>(missing)->ask.hash == libraries);
  CHECK(Jobs::find<TakeJobPart>(f.on(HeadGavePart{{libraries, 0, 10, wire::Bytes(10)}})) != nullptr);
  CHECK(Jobs::find<UnpackJob>(f.on(JobPartTaken{libraries, 10, true, {}}))->spec.id == unpack.id);
  const Actions here = f.on(JobUnpacked{unpack.id, false, {}});
  CHECK(std::count_if(here.begin(), here.end(),
                      [](const auto& a) { return std::holds_alternative<StartWorker>(a); }) == 2);
  CHECK(Jobs::find<StartWorker>(here)->package == program);
  CHECK(Jobs::find<DropJobPackage>(here)->package == libraries);
  CHECK(Jobs::find<StartWorker>(f.head(cluster::StartActor{Jobs::kNode, {3}, spec_with({8}, program), ""})) !=
        nullptr);

  // They cannot come: who waits for them hears why, and nobody else does.
  const std::string others(64, 'd');
  f.head(cluster::StartActor{Jobs::kNode, {4}, spec_with({8}, "own+" + others + ":/where"), ""});
  f.on(JobUnpacked{kLibrariesOf + others, true, {}});
  const Actions gone = f.on(HeadGavePart{{others, 0, 0, {}}});
  REQUIRE(Jobs::told<cluster::ActorFailed>(gone) != nullptr);
  CHECK(Jobs::told<cluster::ActorFailed>(gone)->actor == ActorId{4});
  CHECK(Jobs::told<cluster::ActorFailed>(gone)->error.message().find("cannot get the job's libraries") !=
        std::string::npos);

  // What is no hash is no file's name either.
  for (const std::string& name : {std::string("own+../../there:/where"), std::string("own")})
    CHECK(Jobs::find<StartWorker>(f.head(
              cluster::StartActor{Jobs::kNode, {50 + name.size()}, spec_with({8}, name), ""})) != nullptr);

  // A worker beside its program finds them where that does. Was: so it was when that had ended, and one for a
  // detached actor's next life was started without them.
  f.runs("a");
  const Actions knocked = f.on(DriverKnocked{3, "a", {wire::kProtocolVersion, "own+" + others}});
  REQUIRE(Jobs::find<AdoptDriver>(knocked) != nullptr);
  const ProcessId program_here = Jobs::find<AdoptDriver>(knocked)->process;
  const auto beside = Jobs::spec(true, {8}, {Jobs::kNode, program_here}, "own+" + others);
  CHECK(Jobs::find<StartWorker>(f.head(cluster::StartActor{Jobs::kNode, {40}, beside, ""})) != nullptr);
  f.on(ProcessEnded{program_here, "the driver is gone"});
  const Actions later = f.head(cluster::StartActor{Jobs::kNode, {41}, beside, ""});
  CHECK(Jobs::find<StartWorker>(later) == nullptr);
  REQUIRE(Jobs::find<UnpackJob>(later) != nullptr);
  CHECK(Jobs::find<UnpackJob>(later)->spec.package == others);
}
