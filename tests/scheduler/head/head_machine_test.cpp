/// The head's rules when its store fails, as scripts.
#include "scheduler/head/head_machine.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "runtime/wire/messages.hpp"
#include "scheduler/store/records.hpp"

using namespace troupe;
using namespace troupe::cluster;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr NodeId kNode{1};
constexpr ProcessAddress kDriver{kNode, ProcessId{7}};
const ErrorInfo kStoreIsFull{ErrorCode::kIo, "cannot write to the store", "the disk is full", "free space"};

/// A head whose disk answers when it is told to.
struct Scene {
  SeededRandom ids{5};
  MemoryStorage store;
  std::unique_ptr<HeadMachine> head = std::make_unique<HeadMachine>(ClusterConfig{}, ids);
  Instant now{};
  std::vector<ClusterAction> sent;  ///< but answers to heartbeats, which wait for nothing
  std::vector<HeadReply> replies;
  int heartbeats_answered = 0;
  std::vector<HeadMachine::LogLine> logged;
  std::vector<HeadMachine::LogLine> told;  ///< who comes and goes
  std::shared_ptr<const StoreBatch> write;
  bool disk_full = false;

  void take(HeadMachine::Output out) {
    for (auto& message : out.send) {
      auto* action = std::get_if<ClusterAction>(&message);
      if (const auto* reply = std::get_if<HeadReply>(&message)) replies.push_back(*reply);
      const bool is_beat = action != nullptr && std::holds_alternative<HeartbeatAnswered>(*action);
      heartbeats_answered += is_beat;
      if (action != nullptr && !is_beat) sent.push_back(std::move(*action));
    }
    for (auto& line : out.log) (line.level == LogLevel::kInfo ? told : logged).push_back(std::move(line));
    if (out.write) {
      REQUIRE(write == nullptr);
      write = std::move(out.write);
    }
  }
  /// The disk does what is asked of it until nothing is.
  void sync() {
    while (write) {
      const auto batch = std::exchange(write, nullptr);
      take(head->written(disk_full ? Result<void>(kStoreIsFull) : store.apply(*batch), now));
    }
  }
  void on(const ClusterEvent& event, bool synced = true) {
    sent.clear();
    take(head->on(event, now));
    if (synced) sync();
  }
  void pass(int ticks) {
    for (int i = 0; i < ticks; ++i) {
      now += milliseconds(250);
      take(head->tick(now));
      sync();
      if (i % 4 == 0) take(head->on(Heartbeat{kNode}, now));
    }
  }
  void join(NodeId id = kNode) { on(NodeJoined{{id, "n", "", "", 4 * kCpu, false}, {}, {}, {}}); }
  JobId job(std::uint64_t request = 1, const std::string& name = "main") {
    on(JobRegistered{name, kDriver, request});
    return the<JobAnswered>().job;
  }
  void spawn(JobId job, std::uint64_t request, std::size_t bytes = 1) {
    on(SpawnRequested{{kDriver, request}, {job, "T", "", std::string(bytes, 'x'), {kCpu, true, {}}}});
  }
  /// A job's actor that its node has been told to start.
  std::pair<JobId, ActorId> starting() {
    join();
    const JobId of = job();
    spawn(of, 1);
    return {of, the<StartActor>().actor};
  }
  JobId job_of_node() {
    join();
    return job();
  }
  /// One that starts again when it dies, and that its node wants to hear of.
  ActorId living(JobId of) {
    ActorSpec spec{of, "T", "", "x", {kCpu, true, {}}};
    spec.max_restarts = -1;
    on(SpawnRequested{{kDriver, 1}, spec});
    const ActorId actor = the<StartActor>().actor;
    on(ActorStarted{kNode, actor, ProcessId{9}});
    on(ResolveActor{kNode, of, actor});
    return actor;
  }
  /// As a client does, who waits for the reply.
  void submit(const std::string& id) {
    SubmissionSpec spec;
    spec.id = spec.name = id;
    spec.program = {"true"};
    spec.cpu_e4 = kCpu;
    on(SubmissionRequested{spec}, false);
    take(head->reply({"client", wire::control_frame(wire::Answer{1, true, {}, {}}), 1, id}, now));
  }
  wire::Answer reply() const {
    REQUIRE(replies.size() == 1);
    const auto header = wire::decode_header(replies[0].frame).value();
    const auto body = wire::ByteView(replies[0].frame).subspan(wire::kHeaderBytes);
    return std::get<wire::Answer>(wire::decode_control(header, body).value());
  }
  template <class A>
  const A* get() const {
    for (const auto& action : sent)
      if (const auto* found = std::get_if<A>(&action)) return found;
    return nullptr;
  }
  /// The same where there must be one.
  template <class A>
  const A& the() const {
    const A* const found = get<A>();
    REQUIRE(found != nullptr);
    return *found;
  }
  void restart() {
    std::vector<Record> records;
    for (const auto& entry : store.scan("").value()) records.push_back(decode_record(entry.value).value());
    head = std::make_unique<HeadMachine>(ClusterConfig{}, ids);
    write = nullptr;
    sent.clear();
    take(head->restore(std::move(records), now));
    sync();
  }
};

}  // namespace

// head.log said nothing of who came and went.
TEST_CASE("the log says which nodes come and go, once") {
  Scene s;
  s.join();
  s.join();
  s.join(NodeId{2});
  s.on(NodeLeft{NodeId{2}, "it left"});
  s.pass(8);
  for (int i = 0; i < 40; ++i) {
    s.now += milliseconds(250);
    s.on(Tick{});
  }
  std::vector<std::string> lines;
  for (const auto& line : s.told) lines.push_back(line.text.substr(0, line.text.find(';')));
  CHECK(lines == std::vector<std::string>{"node n (1) is in", "node n (2) is in",
                                          "node n (2) is gone: it left",
                                          "node n (1) is gone: it was silent for too long"});
}

TEST_CASE("nothing is said before it is durable") {
  Scene s;
  s.join();
  const JobId job = s.job();
  s.on(SpawnRequested{{kDriver, 1}, {job, "T", "", "x", {kCpu, true, {}}}}, false);
  CHECK(s.sent.empty());
  s.on(NodesWanted{{kDriver, 2}}, false);
  CHECK(s.sent.empty());  // it may not overtake
  s.sync();
  REQUIRE(s.sent.size() == 2);
  CHECK(s.get<StartActor>() != nullptr);
}

// Was: three writes stood between a death and the next life's first call.
TEST_CASE("between an actor's death and its next life's first call there is one write") {
  Scene s;
  const ActorId actor = s.living(s.job_of_node());
  const Requester owner{kDriver, 1};
  const std::uint64_t before = s.head->queue().batches();
  s.on(ActorDown{kNode, actor, "killed"}, false);
  CHECK(s.write == nullptr);
  CHECK(s.the<ArgumentsWanted>().to == owner);
  CHECK(s.sent.size() == 1);
  s.on(ActorArguments{owner, actor, true, "x", kNode}, false);
  CHECK(s.sent.empty());
  s.sync();
  CHECK(s.head->queue().batches() == before + 1);
  REQUIRE(s.sent.size() == 2);
  CHECK(std::get<ActorPlaced>(s.sent[0]).place.life == ActorLife::kRestarts);
  CHECK(std::get<StartActor>(s.sent[1]).incarnation == 2);
  s.on(ActorStarted{kNode, actor, ProcessId{10}, 2}, false);
  REQUIRE(s.sent.size() == 1);  // its spawner's answer waits
  CHECK(s.the<ActorPlaced>().place.process == ProcessAddress{kNode, ProcessId{10}});

  // The head is killed before that is written: it hears of it again.
  s.restart();
  s.on(NodeJoined{{kNode, "n", "", "", 4 * kCpu, false}, {{actor, ProcessId{10}, 2}}, {}, {}});
  s.on(ResolveActor{kNode, s.head->cluster().jobs().named("main")->record.job, actor});
  CHECK(s.the<ActorPlaced>().place.life == ActorLife::kLives);
  CHECK(s.the<ActorPlaced>().place.incarnation == 2);
}

TEST_CASE(
    "a death is written at once where others wait for it, and by the next tick where arguments do not come") {
  Scene s;
  const JobId job = s.job_of_node();
  const ActorId actor = s.living(job);
  SECTION("nothing comes") {
    s.on(ActorDown{kNode, actor, "killed"}, false);
    s.pass(1);
    CHECK(s.the<ActorPlaced>().place.life == ActorLife::kRestarts);
  }
  SECTION("another one gets its CPUs") {
    for (std::uint64_t i = 2; i <= 5; ++i) s.spawn(job, i);
    CHECK(s.get<StartActor>() == nullptr);
    s.on(ActorDown{kNode, actor, "killed"}, false);
    CHECK(s.write != nullptr);
    s.sync();
    CHECK(s.get<StartActor>() != nullptr);
  }
}

// A full disk ended the head for good, as above.
TEST_CASE("a full disk refuses new work, keeps what was promised, and is over when there is space") {
  Scene s;
  const auto [job, actor] = s.starting();
  s.disk_full = true;
  s.on(ActorStarted{kNode, actor, ProcessId{9}});
  CHECK(s.sent.empty());  // it is up, and nobody is told before that is durable
  REQUIRE(s.head->trouble());
  REQUIRE(s.logged.size() == 1);
  CHECK(s.logged[0].level == LogLevel::kError);
  CHECK(s.logged[0].text.find("the disk is full") != std::string::npos);

  s.spawn(job, 2);
  CHECK(s.the<SpawnAnswered>().error.code == ErrorCode::kIo);
  CHECK(s.the<SpawnAnswered>().error.message() ==
        "cannot spawn T: cannot write to the store: the disk is full (free space)");  // was: advice twice
  s.on(JobRegistered{"other", kDriver, 3});
  CHECK(s.the<JobAnswered>().error.code == ErrorCode::kIo);
  CHECK_FALSE(s.the<JobAnswered>().job);
  s.spawn(job, 1);  // repeated: its answer waits
  s.on(PeerWanted{kNode, NodeId{2}});
  s.join(NodeId{3});
  CHECK(s.sent.empty());
  s.pass(4 * 61);
  CHECK(s.logged.size() == 3);  // every 30 s
  CHECK(s.head->cluster().actors().size() == 1);

  s.disk_full = false;
  s.sent.clear();
  s.pass(20);
  CHECK_FALSE(s.head->trouble());
  CHECK(s.logged.back().text == "the head's store works again");
  CHECK(s.the<SpawnAnswered>().to.request == 1);
  CHECK(s.the<SpawnAnswered>().ok);
  // What was dropped is asked for again.
  CHECK(s.the<RequestRegistration>().node == kNode);
  s.on(PeerWanted{kNode, NodeId{2}});
  CHECK(s.get<PeerAnswered>() != nullptr);
  s.spawn(job, 2);
  CHECK(s.get<StartActor>() != nullptr);
}

// Was: the one that asked on a full disk was refused, and only a limit of time freed the others.
TEST_CASE("a full disk refuses all of the actors that are to start together, at once") {
  Scene s;
  s.join();
  const JobId job = s.job();
  const GroupSpec spec{{}, "", PlacementStrategy::kPack, std::vector(3, BundleDemand{kCpu, 0}), true};
  const auto make = [&](std::uint64_t request) {
    s.on(GroupRequested{{kDriver, request}, job, GroupVerb::kMake, {}, spec});
    return s.the<GroupAnswered>().status.record.group;
  };
  const auto member = [&](std::uint64_t request, GroupId group, std::int32_t bundle, JobId of) {
    s.on(SpawnRequested{{kDriver, request}, {of, "T", "", "x", {kCpu, true, {}, 0, group, bundle}}});
  };
  const auto refused = [&] {
    std::map<std::uint64_t, ErrorInfo> found;
    for (const auto& action : s.sent) {
      if (const auto* answered = std::get_if<SpawnAnswered>(&action))
        found.emplace(answered->to.request, answered->error);
    }
    return found;
  };
  const GroupId group = make(2);
  member(10, group, 0, job);
  member(11, group, 1, job);
  CHECK(s.sent.size() <= 1);
  s.disk_full = true;
  s.spawn(job, 3);
  REQUIRE(s.head->trouble());
  member(20, group, 2, JobId{77});  // not its own: they wait on
  CHECK(refused().size() == 1);
  CHECK(s.head->cluster().waiting().size() == 2);
  member(12, group, 2, job);
  const auto all = refused();
  REQUIRE(all.size() == 3);
  for (const auto& [request, error] : all) {
    CHECK(error.code == ErrorCode::kIo);  // as the one that was refused: it may be tried again
    CHECK(error.why.find("the disk is full") != std::string::npos);
  }
  CHECK(all.contains(10));
  CHECK(all.contains(11));
  CHECK(s.head->cluster().waiting().empty());
  s.disk_full = false;
  s.pass(20);
  CHECK_FALSE(s.head->trouble());
  CHECK(s.head->cluster().groups().all().empty());
  CHECK(s.store.scan("group/").value().empty());
  const GroupId again = make(4);
  for (std::int32_t i = 0; i < 3; ++i) member(30 + std::uint64_t(i), again, i, job);
  CHECK(s.get<StartActor>() != nullptr);
}

// Was: the first submission to a full disk had no answer until its client timed out, was shown as STARTING,
// and ran when there was room.
TEST_CASE("a submission that the store does not take is refused at once, and never was") {
  Scene s;
  s.join();
  s.submit("good");
  CHECK(s.replies.empty());
  CHECK_FALSE(s.head->shown("good"));  // what is not durable is not shown
  s.sync();
  CHECK(s.reply().ok);
  CHECK(s.head->shown("good")->state == SubmissionState::kStarting);
  CHECK(s.head->shown("good")->spec.name == "good");
  CHECK(s.get<StartDriver>() != nullptr);
  s.on(DriverStarted{kNode, "good", 1}, false);
  CHECK(s.head->shown("good")->state == SubmissionState::kStarting);
  s.sync();
  CHECK(s.head->shown("good")->state == SubmissionState::kRunning);

  s.disk_full = true;
  s.replies.clear();
  s.submit("bad");
  CHECK(s.replies.empty());
  s.sync();
  CHECK_FALSE(s.reply().ok);
  CHECK(s.reply().error.code == ErrorCode::kIo);
  CHECK(s.reply().error.message().find("the disk is full") != std::string::npos);
  CHECK(s.head->cluster().submissions().find("bad") == nullptr);
  CHECK(s.head->cluster().nodes().at(kNode).cpu_used_e4 == kCpu);
  s.disk_full = false;
  s.pass(20);
  CHECK_FALSE(s.head->trouble());
  CHECK(s.get<StartDriver>() == nullptr);
  CHECK(s.store.scan("submission/").value().size() == 1);
  s.submit("bad");
  s.sync();
  CHECK(s.get<StartDriver>() != nullptr);
}

// Was: the batch that had failed was written again as it was, and the withdrawal after it.
TEST_CASE(
    "a submission that was refused for a full disk does not run when the head dies after the next write") {
  Scene s;
  s.join();
  s.disk_full = true;
  s.submit("bad");
  s.sync();
  CHECK_FALSE(s.reply().ok);
  s.disk_full = false;
  s.now += seconds(1);
  s.take(s.head->tick(s.now));
  REQUIRE(s.write != nullptr);
  const auto batch = std::exchange(s.write, nullptr);
  s.take(s.head->written(s.store.apply(*batch), s.now));
  s.restart();
  CHECK(s.head->cluster().submissions().all().empty());
}

TEST_CASE("what has ended ends while the store fails, in memory that does not grow with time") {
  Scene s;
  s.join();
  const JobId job = s.job();
  for (std::uint64_t request = 1; request <= 4; ++request) s.spawn(job, request);
  std::vector<ActorId> actors;
  for (const auto& [id, actor] : s.head->cluster().actors()) actors.push_back(id);
  s.disk_full = true;
  for (const ActorId actor : actors) s.on(ActorDown{kNode, actor, "killed"});
  s.on(JobEnded{kNode, job, "done"});
  s.pass(40);
  const std::size_t held = s.head->queue().held();
  s.pass(4 * 600);
  CHECK(s.head->queue().held() == held);
  s.disk_full = false;
  s.sent.clear();
  s.pass(20);
  CHECK(s.get<EndJob>() != nullptr);
  CHECK(s.store.scan("actor/").value().empty());
}

// Was: actors of a program that was killed went on, and held their CPUs, until the disk had room.
TEST_CASE("what ends is obeyed while the store fails, told again when it is durable, and not forgotten") {
  Scene s;
  s.join();
  const JobId job = s.job();
  s.spawn(job, 1);
  const ActorId actor = s.the<StartActor>().actor;
  s.disk_full = true;
  s.on(KillRequested{kNode, job, actor, "not wanted"});  // the write of it is the first that fails
  CHECK(s.the<KillActor>().actor == actor);
  s.on(JobEnded{kNode, job, "killed"});
  CHECK_FALSE(s.the<EndJob>().is_recorded);
  s.on(ActorDown{kNode, actor, "killed"});
  s.sent.clear();
  s.pass(8);
  CHECK(s.sent.empty());  // once

  s.restart();  // it knows of no end: the node says it again, since that was not recorded
  CHECK_FALSE(s.head->cluster().jobs().find(job)->record.ended);
  s.join();
  s.on(JobEnded{kNode, job, "killed"});
  CHECK_FALSE(s.the<EndJob>().is_recorded);
  s.disk_full = false;
  s.sent.clear();
  s.pass(40);
  CHECK(s.the<EndJob>().is_recorded);
  CHECK(s.head->cluster().jobs().find(job)->record.ended);
}

TEST_CASE("a head that dies with a full disk comes back with what it had promised") {
  Scene s;
  const auto [job, actor] = s.starting();
  s.disk_full = true;
  s.on(ActorStarted{kNode, actor, ProcessId{9}});
  s.restart();
  s.disk_full = false;
  s.on(NodeJoined{{kNode, "n", "", "", 4 * kCpu, false}, {{actor, ProcessId{9}}}, {}, {}});
  CHECK(s.the<SpawnAnswered>().actor == actor);
}

TEST_CASE("a head that comes back while its store fails ends no node that lives") {
  // Was: once a write had failed, it heard neither a heartbeat nor NodeJoined of the nodes that had not yet
  // registered again. Six seconds after its restart it declared them dead, and their workers died.
  constexpr NodeId kOther{2};
  Scene s;
  s.join();
  s.join(kOther);
  const JobId job = s.job();
  s.spawn(job, 1);
  s.disk_full = true;
  s.restart();
  s.on(ActorFailed{kNode, s.head->cluster().actors().begin()->first,
                   kStoreIsFull});  // to be written, and cannot be
  REQUIRE(s.head->trouble());
  std::size_t held = 0;
  for (int i = 0; i < 30; ++i) {
    s.on(Heartbeat{kOther});
    REQUIRE(s.get<RequestRegistration>() != nullptr);  // also while all else waits for the disk
    CHECK(s.the<RequestRegistration>().node == kOther);
    s.pass(4);
    if (i == 0) held = s.head->queue().held();
  }
  CHECK(s.head->queue().held() == held);  // memory does not grow with time
  REQUIRE(s.head->cluster().nodes().size() == 2);
  CHECK(s.heartbeats_answered == 0);
  s.join(kOther);
  CHECK(s.head->cluster().is_registered(kOther));
  s.on(Heartbeat{kOther});
  CHECK(s.heartbeats_answered == 1);
  CHECK(s.head->queue().held() > 0);
  s.on(Heartbeat{NodeId{3}});
  CHECK(s.sent.empty());
  s.disk_full = false;
  s.sent.clear();
  s.pass(20);
  CHECK(s.head->cluster().nodes().size() == 2);
  REQUIRE(s.get<NodeAccepted>() != nullptr);
}

TEST_CASE("a store that crashes before or after a write loses and doubles nothing") {
  for (const auto fault : {MemoryStorage::Fault::kCrashBefore, MemoryStorage::Fault::kCrashAfter}) {
    Scene s;
    s.join();
    s.store.fail_write(1, fault);
    s.on(JobRegistered{"main", kDriver, 1});
    CHECK(s.sent.empty());
    s.pass(8);
    CHECK(s.sent.empty());
    s.store.reopen();
    s.pass(30);
    CHECK(s.the<JobAnswered>().incarnation == 1);
    s.restart();
    CHECK(s.head->cluster().jobs().named("main")->record.incarnation == 1);
  }
}

TEST_CASE("a store that is too slow is told of, and new work is refused until it is not") {
  Scene s;
  s.head = std::make_unique<HeadMachine>(ClusterConfig{}, s.ids, 10);
  s.join();
  const JobId job = s.job();
  s.spawn(job, 1);
  s.on(SpawnRequested{{kDriver, 2}, {job, "T", "", "x", {kCpu, true, {}}}}, false);
  for (std::uint64_t i = 0; i < 12; ++i) s.on(NodesWanted{{kDriver, 10 + i}}, false);
  s.on(SpawnRequested{{kDriver, 3}, {job, "T", "", "x", {kCpu, true, {}}}}, false);
  CHECK(s.the<SpawnAnswered>().error.code == ErrorCode::kUnavailable);
  s.sync();
  CHECK_FALSE(s.head->trouble());
  s.spawn(job, 3);
  CHECK(s.get<StartActor>() != nullptr);
}
