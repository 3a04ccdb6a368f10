/// The head as a whole, in its loop's thread, over a transport and a store that do as they are told.
#include "scheduler/head/head.hpp"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "runtime/node/worker_outputs.hpp"
#include "scheduler/store/records.hpp"

using namespace troupe;
using namespace troupe::cluster;
using std::chrono::seconds;

namespace {

constexpr auto kPatience = seconds(20);

/// Keeps what the head sends to each peer, and hands it what a peer says.
class FakeTransport final : public Transport {
 public:
  class Server final : public LinkServer {
   public:
    explicit Server(FakeTransport& owner) : owner_(owner) {}
    Endpoint address() const override { return {"127.0.0.1", 7}; }
    Sent send(const PeerName& to, wire::Bytes&& frame) override { return owner_.sent(to, std::move(frame)); }

   private:
    FakeTransport& owner_;
  };

  Result<std::unique_ptr<LinkServer>> serve(ServeOptions options, ServerHandlers handlers) override {
    handlers_ = std::move(handlers);
    authorizer_ = options.authorizer;
    return std::unique_ptr<LinkServer>(std::make_unique<Server>(*this));
  }
  Result<std::unique_ptr<LinkClient>> connect(ConnectOptions, ClientHandlers) override {
    return ErrorInfo{ErrorCode::kUnavailable, "no links here", "", ""};
  }
  /// A peer that the head has not heard of speaks with a key that it had when it started.
  void say(const PeerName& from, wire::Bytes frame) {
    if (spoke_.insert(from).second && !authorizer_->knows(from))
      authorizer_->allow(CurveKeyPair::generate().public_key(), from);
    handlers_.on_message(from, std::move(frame));
  }
  /// The next message of that kind to that peer; others before it are dropped.
  template <class M, class Take>
  auto wait(const PeerName& to, Take take) {
    std::unique_lock lock(mutex_);
    decltype(take(std::declval<const wire::Control&>())) found{};
    const bool came = changed_.wait_for(lock, kPatience, [&] {
      auto& queue = queues_[to];
      while (!queue.empty() && !found) {
        const wire::Bytes frame = std::move(queue.front());
        queue.pop_front();
        const auto header = wire::decode_header(frame).value();
        found = take(wire::decode_control(header, wire::ByteView(frame).subspan(wire::kHeaderBytes)).value());
      }
      return found.has_value();
    });
    REQUIRE(came);
    return *found;
  }
  std::size_t waiting(const PeerName& to) {
    const std::lock_guard lock(mutex_);
    return queues_[to].size();
  }
  void set_full(const PeerName& to, bool full) {
    const std::lock_guard lock(mutex_);
    full_ = full ? to : PeerName{};
  }
  void wait_until_refused() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kPatience, [&] { return refused_ > 0; }));
  }

 private:
  Sent sent(const PeerName& to, wire::Bytes frame) {
    const std::lock_guard lock(mutex_);
    if (to == full_) {
      ++refused_;
      changed_.notify_all();
      return Sent::kFull;
    }
    queues_[to].push_back(std::move(frame));
    changed_.notify_all();
    return Sent::kQueued;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<PeerName, std::deque<wire::Bytes>> queues_;
  PeerName full_;
  int refused_ = 0;
  ServerHandlers handlers_;
  std::shared_ptr<Authorizer> authorizer_;
  std::set<PeerName> spoke_;
};

/// A disk that fills up, and one that stands still.
class Disk final : public Storage {
 public:
  Result<void> apply(const StoreBatch& batch) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !still_; });
    if (full_)
      return ErrorInfo{ErrorCode::kIo, "cannot write to the store", "the disk is full", "free space"};
    return memory_.apply(batch);
  }
  Result<std::optional<Bytes>> get(std::string_view key) override { return memory_.get(key); }
  Result<std::vector<StoreEntry>> scan(std::string_view prefix) override { return memory_.scan(prefix); }
  void set(bool full, bool still) {
    const std::lock_guard lock(mutex_);
    full_ = full;
    still_ = still;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool full_ = false;
  bool still_ = false;
  MemoryStorage memory_;
};

struct RunningHead {
  MonotonicClock clock;
  std::shared_ptr<Authorizer> authorizer = std::make_shared<Authorizer>(clock);
  FakeTransport transport;
  std::unique_ptr<Disk> owned = std::make_unique<Disk>();
  Disk& disk = *owned;
  EventLoop loop;
  Head head;
  std::thread thread;

  explicit RunningHead(Inbox::Limits inbox = {}, const StoreBatch& kept = {})
      : head(loop, transport,
             {Endpoint{}, "", CurveKeyPair::generate(), authorizer, std::move(owned), {}, inbox}) {
    disk.apply(kept).value();
    head.start().value();
    thread = std::thread([this] { loop.run(); });
  }
  ~RunningHead() {
    disk.set(false, false);
    loop.post([this] { loop.stop(); });
    thread.join();
  }

  static PeerName name(NodeId node) { return to_hex(node.value); }
  void say(NodeId node, ClusterEvent event) {
    transport.say(name(node), wire::control_frame(wire::ToHead{std::move(event)}));
  }
  template <class A>
  A heard(NodeId node) {
    return transport.wait<A>(name(node), [](const wire::Control& message) -> std::optional<A> {
      const auto* from_head = std::get_if<wire::FromHead>(&message);
      const auto* action = from_head == nullptr ? nullptr : std::get_if<A>(&from_head->action);
      return action == nullptr ? std::nullopt : std::optional<A>(*action);
    });
  }
  wire::Answer answer(const PeerName& to) {
    return transport.wait<wire::Answer>(to, [](const wire::Control& message) -> std::optional<wire::Answer> {
      const auto* answered = std::get_if<wire::Answer>(&message);
      return answered == nullptr ? std::nullopt : std::optional<wire::Answer>(*answered);
    });
  }
  wire::StatusAnswer status() {
    transport.say(kOwnerName, wire::control_frame(wire::StatusAsk{1}));
    return wire::decode<wire::StatusAnswer>(answer(kOwnerName).value).value();
  }
  std::vector<wire::KeyEntry> keys() {
    transport.say(kOwnerName, wire::control_frame(wire::KeysAsk{1}));
    return wire::decode<wire::KeysAnswer>(answer(kOwnerName).value).value().keys;
  }
  void join(NodeId node) {
    say(node, NodeJoined{{node, "n" + to_string(node), "127.0.0.1:1", "", 2 * kCpu, false}, {}, {}, {}});
  }
  JobId job(NodeId node, std::uint64_t request = 1) {
    say(node, JobRegistered{"main", {node, ProcessId{7}}, request});
    return heard<JobAnswered>(node).job;
  }
  void spawn(NodeId node, JobId job, std::uint64_t request, std::size_t bytes = 1) {
    say(node, SpawnRequested{{{node, ProcessId{7}}, request},
                             {job, "T", "", std::string(bytes, 'x'), {kCpu, true, {}}}});
  }
};

constexpr NodeId kHeadsNode{1};

}  // namespace

TEST_CASE("a head serves nodes and says why spawns wait") {
  RunningHead h;
  h.join(kHeadsNode);
  CHECK(h.heard<NodeAccepted>(kHeadsNode).node == kHeadsNode);
  const JobId job = h.job(kHeadsNode);
  for (std::uint64_t request = 1; request <= 5; ++request) h.spawn(kHeadsNode, job, request);
  const ActorId actor = h.heard<StartActor>(kHeadsNode).actor;
  h.say(kHeadsNode, ActorStarted{kHeadsNode, actor, ProcessId{9}});
  CHECK(h.heard<SpawnAnswered>(kHeadsNode).ok);
  const auto status = h.status();
  CHECK(status.nodes.size() == 1);
  CHECK(status.nodes.at(0).actors == 2);
  CHECK(status.jobs.size() == 1);
  CHECK(status.actors.size() == 2);
  CHECK(status.actors.at(0).record.spec.payload.empty());
  CHECK(status.waiting == std::vector<std::string>{"3 x T: no node has 1 CPU free: n1 has 0 of 2"});
  // What Prometheus is told: each write of the store is counted once, by how long it took.
  CHECK(status.head.messages >= 8);
  CHECK(status.head.message_bytes > status.head.messages);
  CHECK(status.head.changes >= 4);
  CHECK(status.head.write_times.size() == std::size(wire::kWriteBounds) + 1);
  const auto writes =
      std::accumulate(status.head.write_times.begin(), status.head.write_times.end(), std::uint64_t{0});
  CHECK(writes >= 1);
  CHECK(writes <= status.head.changes);
  CHECK(status.head.write_ns > 0);
}

// Was: "8 of 2 CPUs used", of a node that was dead: eight workers whose tasks waited had given theirs away.
TEST_CASE("a node that has not registered with a new head holds no more CPUs than it has") {
  const JobId job{5};
  const ProcessAddress driver{kHeadsNode, ProcessId{7}};
  StoreBatch kept;
  const auto keep = [&](const std::string& key, const Record& record) {
    kept.put(key, encode_record(record));
  };
  keep("node/" + to_string(kHeadsNode), NodeRecord{{kHeadsNode, "n1", "127.0.0.1:1", "", 2 * kCpu, false}});
  keep("job/main", JobRecord{"main", 1, job, driver, 1});
  for (std::uint64_t id = 1; id <= 8; ++id) {
    keep("actor/" + to_string(ActorId{id}),
         ActorRecord{{id},
                     {job, std::string(kWorkerOfTasks), "", "", {kCpu, true, {}}},
                     {driver, id},
                     kHeadsNode,
                     ProcessId{100 + id},
                     ActorState::kAlive});
  }
  RunningHead h({}, kept);
  const auto status = h.status();
  REQUIRE(status.nodes.size() == 1);
  CHECK(status.nodes[0].state == "expected");
  CHECK(status.nodes[0].actors == 8);
  CHECK(status.nodes[0].cpu_used_e4 == 2 * kCpu);
}

TEST_CASE("bytes that do not decode never end the head") {
  RunningHead h;
  const std::uint64_t seed = SystemRandom().next();
  CAPTURE(seed);
  SeededRandom random(seed);
  const NodeJoined joined{
      {kHeadsNode, "n", "", "", kCpu, false}, {{ActorId{1}, ProcessId{2}}}, {JobId{3}}, {NodeId{4}}};
  const auto good = wire::control_frame(wire::ToHead{joined});
  for (int i = 0; i < 2000; ++i) {
    auto bad = good;
    for (std::uint64_t k = 1 + random.below(3); k > 0; --k)
      bad[random.below(bad.size())] = static_cast<std::byte>(random.below(256));
    if (random.below(4) == 0) bad.resize(random.below(bad.size()));
    h.transport.say(RunningHead::name(kHeadsNode), std::move(bad));
  }
  h.transport.say(RunningHead::name(kHeadsNode), {});
  // In another node's name, and a message that is not for a head.
  h.say(NodeId{2}, Heartbeat{kHeadsNode});
  h.transport.say(RunningHead::name(kHeadsNode), wire::control_frame(wire::ToHead{NodeLeft{NodeId{2}, ""}}));
  h.transport.say(RunningHead::name(kHeadsNode), wire::control_frame(wire::ToHead{Restored{}}));
  h.transport.say(RunningHead::name(kHeadsNode), wire::control_frame(wire::ToHead{Tick{}}));
  h.transport.say(RunningHead::name(kHeadsNode), wire::control_frame(wire::Pulse{}));
  h.join(NodeId{5});
  CHECK(h.heard<NodeAccepted>(NodeId{5}).node == NodeId{5});
}

// Arguments above 16 MiB failed to persist, and the head's loop stopped.
TEST_CASE("large arguments are refused with the limit, and the next spawn works") {
  RunningHead h;
  h.join(kHeadsNode);
  const JobId job = h.job(kHeadsNode);
  h.spawn(kHeadsNode, job, 1, std::size_t{20} << 20);
  const auto refused = h.heard<SpawnAnswered>(kHeadsNode);
  CHECK(refused.error.code == ErrorCode::kLimit);
  CHECK(refused.error.why.find("4194304 are the most") != std::string::npos);
  h.spawn(kHeadsNode, job, 2);
  CHECK(h.heard<StartActor>(kHeadsNode).spec.payload == "x");
}

// Was: "it did not answer in time", of the first one on a full disk.
TEST_CASE("who asks for a token on a full disk hears that it is full") {
  RunningHead h;
  h.disk.set(true, false);
  for (const char* what : {"it is not recorded yet", "the disk is full"}) {
    h.transport.say(kOwnerName, wire::control_frame(wire::TokenAsk{1, 60}));
    CHECK_THAT(h.answer(kOwnerName).error.message(), Catch::Contains(what));
  }
}

TEST_CASE("a full disk refuses new work by name, and the head goes on when there is space") {
  RunningHead h;
  h.join(kHeadsNode);
  const JobId job = h.job(kHeadsNode);
  h.disk.set(true, true);
  h.spawn(kHeadsNode, job, 1);
  h.transport.say("machine/a", wire::control_frame(wire::AdmitAsk{
                                   1, NodeId{9}, to_string(CurveKeyPair::generate().public_key())}));
  h.status();  // both were taken up before the first write fails: they are held
  h.disk.set(true, false);
  while (h.status().waiting.empty()) {
  }
  CHECK(h.status().waiting.at(0).find("the disk is full") != std::string::npos);
  // Was: the first program on a full disk was told that the head "did not answer in time".
  const auto first = h.answer("machine/a").error;
  CHECK(first.code == ErrorCode::kIo);
  CHECK(first.message().find("the disk is full") != std::string::npos);
  h.spawn(kHeadsNode, job, 2);
  const auto refused = h.heard<SpawnAnswered>(kHeadsNode);
  CHECK(refused.to.request == 2);
  CHECK(refused.error.code == ErrorCode::kIo);
  CHECK(refused.error.todo == "free space");
  h.transport.say("machine/b", wire::control_frame(wire::AdmitAsk{
                                   1, NodeId{8}, to_string(CurveKeyPair::generate().public_key())}));
  CHECK(h.answer("machine/b").error.code == ErrorCode::kIo);
  h.disk.set(false, false);
  CHECK(h.heard<StartActor>(kHeadsNode).spec.payload == "x");
  h.spawn(kHeadsNode, job, 3);
  h.heard<StartActor>(kHeadsNode);
}

namespace {

/// A conversation about submitted jobs, let in by that peer's key.
struct Client {
  RunningHead& head;
  const PeerName name;
  std::uint64_t requests = 0;

  Client(RunningHead& h, const PeerName& by) : head(h), name(let_in(h, by)) {}
  static PeerName let_in(RunningHead& h, const PeerName& by) {
    const std::string key = to_string(CurveKeyPair::generate().public_key());
    h.transport.say(by, wire::control_frame(wire::ClientAsk{1, key}));
    REQUIRE(h.answer(by).ok);
    return std::string(kClientPrefix) + key;
  }
  template <class Ask>
  wire::Answer ask(Ask question) {
    question.request = ++requests;
    head.transport.say(name, wire::control_frame(std::move(question)));
    return head.answer(name);
  }
  wire::Answer submit(const std::string& id, std::vector<std::string> environment = {}) {
    SubmissionSpec spec;
    spec.id = id;
    spec.program = {"true"};
    spec.environment = std::move(environment);
    return ask(wire::SubmitAsk{0, std::move(spec)});
  }
  std::vector<std::string> jobs() {
    std::vector<std::string> ids;
    const auto page = wire::decode<wire::SubmissionsAnswer>(ask(wire::SubmissionsAsk{}).value).value();
    for (const auto& record : page.records) ids.push_back(record.spec.id);
    return ids;
  }
};

}  // namespace

// Was: whoever had joined stopped the owner's jobs, and read what they wrote.
TEST_CASE("a machine that joined submits and manages jobs of its own, and none of others") {
  RunningHead h;
  Client owner(h, kOwnerName), one(h, "machine/one"), two(h, "machine/two");
  CHECK(owner.submit("s").ok);
  CHECK(one.submit("mine", {"TROUPE_SUBMITTED_BY=machine/two"}).ok);  // it is not believed
  CHECK(one.jobs() == std::vector<std::string>{"mine"});
  CHECK(two.jobs().empty());
  CHECK(owner.jobs() == std::vector<std::string>{"mine", "s"});
  const auto is_refused = [](const wire::Answer& answer, const std::string& what) {
    CHECK_FALSE(answer.ok);
    CHECK(answer.error.code == ErrorCode::kRefused);
    CHECK(answer.error.what == what);
    CHECK(answer.error.why.find("did not submit it") != std::string::npos);
  };
  is_refused(one.ask(wire::StopSubmissionAsk{0, "s"}), "cannot stop job s");
  is_refused(one.ask(wire::SubmissionAsk{0, "s"}), "cannot show job s");
  is_refused(one.ask(wire::WhyAsk{0, "s"}), "cannot explain job s");
  is_refused(one.ask(wire::LogAsk{.id = "s"}), "cannot read the output of job s");
  is_refused(one.submit("s"), "cannot submit job s");
  is_refused(two.ask(wire::StopSubmissionAsk{0, "mine"}), "cannot stop job mine");
  CHECK(one.ask(wire::WhyAsk{0, "mine"}).ok);
  CHECK(one.ask(wire::LogAsk{.id = "mine"}).ok);
  CHECK(one.submit("mine", {"TROUPE_SUBMITTED_BY=machine/two"}).ok);  // asked again: it is the same job
  const auto stopped =
      wire::decode<wire::SubmissionAnswer>(one.ask(wire::StopSubmissionAsk{0, "mine"}).value);
  CHECK(stopped.value().record.state == SubmissionState::kStopped);
  const auto waits = wire::decode<wire::SubmissionAnswer>(owner.ask(wire::SubmissionAsk{0, "s"}).value);
  CHECK(waits.value().record.state == SubmissionState::kQueued);

  const auto log = one.ask(wire::LogAsk{.id = std::string(node::kActorLog) + "7"});
  CHECK(log.error.why == "machine/one may not ask for it");
  CHECK(owner.ask(wire::LogAsk{.id = std::string(node::kActorLog) + "7"}).error.code ==
        ErrorCode::kUnavailable);
}

namespace {

/// Joins with a token. Its name.
PeerName enroll_machine(RunningHead& h) {
  h.transport.say(kOwnerName, wire::control_frame(wire::TokenAsk{1, 60}));
  const auto answer = wire::decode<wire::TokenAnswer>(h.answer(kOwnerName).value).value();
  const PublicKey key = CurveKeyPair::generate().public_key();
  const PeerName guest = std::string(kJoinNamePrefix) + to_hex(read_join_token(answer.token).value().id);
  h.transport.say(guest, wire::control_frame(wire::EnrollAsk{1, to_string(key)}));
  REQUIRE(h.answer(guest).ok);
  return h.authorizer->find(key).value();
}

}  // namespace

// Was: what the machine had said already was obeyed behind the removal. A node that came in so was a member
// that `troupe key list` did not show, over restarts of the head, too.
TEST_CASE("what a machine has said, and nobody has looked at when its key is removed, is not done") {
  RunningHead h;
  const PeerName machine = enroll_machine(h);
  const auto new_key = [] { return to_string(CurveKeyPair::generate().public_key()); };
  const NodeId before{9}, behind{10};
  h.transport.say(machine, wire::control_frame(wire::AdmitAsk{1, before, new_key()}));
  REQUIRE(h.answer(machine).ok);
  CHECK(h.keys().size() == 2);
  const std::string client = new_key();
  std::promise<void> go;
  h.loop.post([blocked = go.get_future().share()] { blocked.wait(); });
  h.transport.say(kOwnerName, wire::control_frame(wire::KeyRemoveAsk{1, machine}));
  h.transport.say(machine, wire::control_frame(wire::AdmitAsk{2, behind, new_key()}));
  h.transport.say(machine, wire::control_frame(wire::ClientAsk{3, client}));
  h.join(before);
  go.set_value();
  CHECK(h.answer(kOwnerName).ok);
  CHECK(h.keys().empty());
  CHECK_FALSE(h.authorizer->knows(std::string(kClientPrefix) + client));
  CHECK(h.status().nodes.empty());
}

TEST_CASE("a conversation with another peer's key is refused, and that one stays in") {
  RunningHead h;
  const PeerName machine = enroll_machine(h), other = enroll_machine(h);
  for (const wire::KeyEntry& entry : h.keys()) {
    if (entry.name != other) continue;
    h.transport.say(machine, wire::control_frame(wire::ClientAsk{1, entry.public_key}));
    const wire::Answer answer = h.answer(machine);
    CHECK(answer.error.code == ErrorCode::kRefused);
    CHECK(answer.error.why == "its key is that of " + other);
  }
  CHECK(h.authorizer->knows(other));
}

// A head that died in the middle of a removal forgot the machine's jobs, and an older one let nodes in after
// it.
TEST_CASE("a head does not start from a record that lies under another one's key, and names both") {
  SubmissionRecord job;
  job.number = 1;
  job.spec.id = "one";
  job.spec.program = {"true"};
  const auto why = [&](const std::string& key) {
    StoreBatch kept;
    kept.put(key, encode_record(job));
    try {
      const RunningHead head({}, kept);
    } catch (const Error& error) {
      return error.info().what + ": " + error.info().why;
    }
    return std::string("nothing");
  };
  CHECK(why("submission/one") == "nothing");
  CHECK(why("submission/two") ==
        "cannot read the head's store at 'submission/two': it is that of 'submission/one'");
  CHECK(why("group/one") == "cannot read the head's store at 'group/one': it is that of 'submission/one'");
}

TEST_CASE("a head that starts stops the jobs of machines that are not let in, and shuts out their nodes") {
  StoreBatch kept;
  SubmissionRecord job;
  job.number = 1;
  job.spec.program = {"true"};
  const auto keep = [&](const std::string& id, const std::string& by) {
    job.spec.id = id;
    job.spec.environment = {"TROUPE_SUBMITTED_BY=" + by};
    kept.put("submission/" + id, encode_record(job));
    ++job.number;
  };
  const auto let_in = [&](const std::string& words) {
    kept.put("security/peer/" + to_string(CurveKeyPair::generate().public_key()),
             std::as_bytes(std::span(words)));
  };
  keep("gone", "machine/gone");
  keep("here", "machine/here");
  let_in("machine/here");
  let_in(to_hex(3) + " machine/here");
  let_in(to_hex(4) + " machine/gone");
  let_in(to_hex(5) + " " + kOwnerName);
  RunningHead h({}, kept);
  Client owner(h, kOwnerName);
  const auto state_of = [&](const std::string& id) {
    const auto shown = owner.ask(wire::SubmissionAsk{0, id});
    return wire::decode<wire::SubmissionAnswer>(shown.value).value().record.state;
  };
  CHECK(owner.submit("later").ok);  // durable, as is all that came before it
  CHECK(state_of("here") == SubmissionState::kQueued);
  CHECK(state_of("gone") == SubmissionState::kStopped);
  CHECK(h.keys().size() == 3);
  for (const wire::KeyEntry& entry : h.keys()) CHECK(entry.brought_by != "machine/gone");
}

TEST_CASE("a machine that is shut out has no detached actor, whenever one is spawned") {
  // Was: one that another one spawned while it was ended stayed until the head started again.
  RunningHead h;
  const PeerName machine = enroll_machine(h);
  Client one(h, machine);
  h.join(kHeadsNode);
  CHECK(one.submit("mine").ok);
  const StartDriver program = h.heard<StartDriver>(kHeadsNode);
  h.say(kHeadsNode, DriverStarted{kHeadsNode, "mine", program.attempt});
  h.say(kHeadsNode, JobRegistered{"main", {kHeadsNode, ProcessId{7}}, 1, "mine"});
  const JobId job = h.heard<JobAnswered>(kHeadsNode).job;
  h.transport.say(kOwnerName, wire::control_frame(wire::KeyRemoveAsk{1, machine}));
  REQUIRE(h.answer(kOwnerName).ok);
  for (const std::uint64_t request : {2, 3}) {
    h.say(kHeadsNode,
          SpawnRequested{{{kHeadsNode, ProcessId{7}}, request},
                         {job, "T", "n" + std::to_string(request), "", {0, true, {}}, 0, 0, true}});
    const ActorId actor = h.heard<StartActor>(kHeadsNode).actor;
    const KillActor killed = h.heard<KillActor>(kHeadsNode);
    CHECK(killed.actor == actor);
    CHECK(killed.reason == "the key of its machine, " + machine + ", was removed");
  }
}

TEST_CASE("a program is of the submission that its node names where that runs on that node alone") {
  // Was: any node had its programs taken for the owner's, by the id of a job of the owner's.
  RunningHead h;
  const PeerName machine = enroll_machine(h);
  Client one(h, machine);
  h.join(kHeadsNode);
  CHECK(one.submit("mine").ok);
  h.heard<StartDriver>(kHeadsNode);
  const NodeId other{2};
  h.join(other);
  for (const NodeId node : {kHeadsNode, other}) {
    h.say(node, JobRegistered{"job of " + to_string(node), {node, ProcessId{7}}, 1, "mine"});
    h.heard<JobAnswered>(node);
  }
  const auto jobs = h.status().jobs;
  CHECK(jobs.size() == 2);
  for (const JobRecord& job : jobs) {
    CHECK(job.submission == (job.driver.node == other ? "" : "mine"));
    CHECK(job.started_by == (job.driver.node == other ? "" : machine));
  }
}

TEST_CASE("a disk that stands still holds up what is to be durable, and nothing else") {
  RunningHead h;
  h.join(kHeadsNode);
  const JobId job = h.job(kHeadsNode);
  h.disk.set(false, true);
  h.spawn(kHeadsNode, job, 1);
  h.spawn(kHeadsNode, job, 2);
  CHECK(h.status().actors.size() == 2);
  CHECK(h.status().actors.size() == 2);
  CHECK(h.transport.waiting(RunningHead::name(kHeadsNode)) == 0);
  h.disk.set(false, false);
  h.heard<StartActor>(kHeadsNode);
  h.heard<StartActor>(kHeadsNode);
}

TEST_CASE("a node whose queue was full is asked to register again, and hears nothing before") {
  RunningHead h;
  h.join(kHeadsNode);
  const JobId job = h.job(kHeadsNode);
  h.transport.set_full(RunningHead::name(kHeadsNode), true);
  h.spawn(kHeadsNode, job, 1);
  h.transport.wait_until_refused();
  h.transport.set_full(RunningHead::name(kHeadsNode), false);
  h.say(kHeadsNode, Heartbeat{kHeadsNode});
  h.heard<RequestRegistration>(kHeadsNode);
  h.join(kHeadsNode);
  h.heard<StartActor>(kHeadsNode);
}

TEST_CASE("a peer that speaks faster than it is heard must say everything again") {
  Inbox inbox({100, 150});
  CHECK(inbox.take("a", 90));
  CHECK(inbox.take("a", 90));  // one of any size, while less than the limit waits
  CHECK_FALSE(inbox.take("a", 1));
  CHECK_FALSE(inbox.done("a", 90));
  CHECK_FALSE(inbox.take("a", 1));  // not before all that came before is done: it would overtake
  CHECK(inbox.take("b", 90));       // of which nothing waits
  CHECK_FALSE(inbox.take("b", 1));  // the total
  CHECK(inbox.done("a", 90));
  CHECK(inbox.take("a", 1));
  CHECK_FALSE(inbox.done("a", 1));
  CHECK(inbox.done("b", 90));
}

TEST_CASE("a node that floods the head is asked to register, and the head does not grow") {
  RunningHead h({1 << 20, 1 << 22});
  h.join(kHeadsNode);
  h.heard<NodeAccepted>(kHeadsNode);
  std::promise<void> go;
  h.loop.post([blocked = go.get_future().share()] { blocked.wait(); });
  const std::string reason(10'000, 'x');
  for (int i = 0; i < 1000; ++i) h.say(kHeadsNode, ActorDown{kHeadsNode, ActorId{1}, reason});
  go.set_value();
  CHECK(h.heard<RequestRegistration>(kHeadsNode).reason == "it spoke too fast, and not all of it was heard");
  h.join(kHeadsNode);
  h.heard<NodeAccepted>(kHeadsNode);
}
