// The tasks of one process whose workers do what a test says.
#include "runtime/tasks/tasks.hpp"

#include <catch2/catch.hpp>
#include <stdexcept>

#include "runtime/client/future.hpp"
#include "runtime/core/thread_floor.hpp"
#include "runtime/host/registry.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"
#include "tests/runtime/client/local_gate.hpp"

using namespace troupe;
using namespace troupe::tasks;
using namespace std::chrono_literals;

namespace {

/// Workers come when the test says so, and no task ends.
class Workers final : public testing::LocalGate {
 public:
  /// As the end of a process.
  ~Workers() override {
    for (const auto& open : {asked_, running_}) {
      for (const auto& one : open) one->resolve(ErrorInfo{ErrorCode::kUnavailable, "", "over", ""});
    }
  }
  std::shared_ptr<CallState> spawn(ActorSpawn) override {
    return asked_.emplace_back(std::make_shared<CallState>(nullptr));
  }
  std::shared_ptr<CallState> call(const ActorAddress&, std::uint64_t, CallBody, bool) override {
    return running_.emplace_back(std::make_shared<CallState>(nullptr));
  }
  void grant_all() {
    std::uint64_t process = 20;
    for (const auto& one : std::exchange(asked_, {}))
      one->resolve(wire::encode(ActorAddress{{1}, {++process}, {process}}));
  }
  std::size_t running() const { return running_.size(); }
  /// As the head says of a request that has to wait.
  void tell_all(const std::string& why) {
    for (const auto& one : asked_) one->set_waits_for(why);
  }
  TasksPtr tasks() override { return tasks_of_test.lock(); }

  std::weak_ptr<Tasks> tasks_of_test;

 private:
  std::vector<std::shared_ptr<CallState>> asked_, running_;
};

/// Whoever waits brings its workers about; to wait on is to wait for good.
class GrantsWhoWaits final : public ThreadFloor {
 public:
  explicit GrantsWhoWaits(Workers& workers) : workers_(workers) {}
  Instant now() override { return now_; }
  void wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration) override {
    workers_.grant_all();
    if (word == expected) throw std::runtime_error("it waits, and nobody wakes it");
  }
  void wake(std::atomic<std::uint32_t>&) override {}
  std::unique_ptr<Running> start(std::function<void()>) override { return nullptr; }

 private:
  Workers& workers_;
  const Instant now_ = MonotonicClock().now();
};

constexpr ProcessAddress kWorker{{9}, {21}}, kKeeper{{9}, {22}};

/// Objects whose owners are other processes, which do what the test says.
class Owners final : public testing::LocalGate {
 public:
  Owners() {
    objects_ = std::make_shared<objects::Objects>(*this, nullptr, [](const auto&, auto, auto) {});
  }
  ~Owners() override { objects_->close(); }
  std::shared_ptr<CallState> spawn(ActorSpawn) override {
    return workers.emplace_back(std::make_shared<CallState>(nullptr));
  }
  std::shared_ptr<CallState> call(const ActorAddress& to, std::uint64_t operation, CallBody, bool) override {
    const auto state = std::make_shared<CallState>(nullptr);
    asked[operation].push_back(state);
    if (operation == objects::kAddBorrower || operation == objects::kGiveBack) state->resolve(wire::Bytes{});
    if (to.actor) pushed.push_back(state);
    return state;
  }
  ObjectsPtr objects() override { return objects_; }

  std::map<std::uint64_t, std::vector<std::shared_ptr<CallState>>> asked;
  std::vector<std::shared_ptr<CallState>> workers, pushed;

 private:
  ObjectsPtr objects_;
};

/// Whoever waits brings about the objects that were asked for, and time goes on.
class AnswersWhoWaits final : public ThreadFloor {
 public:
  explicit AnswersWhoWaits(Owners& owners) : owners_(owners) {}
  Instant now() override { return now_; }
  void wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout) override {
    if (word != expected) return;
    const auto open = std::exchange(owners_.asked[objects::kLocate], {});
    asked_at_a_time.push_back(open.size());
    for (const auto& one : open)
      one->resolve(wire::encode(objects::Location{objects::Where::kInline, 1, 0, wire::Bytes(1)}));
    now_ += timeout;
  }
  void wake(std::atomic<std::uint32_t>&) override {}
  std::unique_ptr<Running> start(std::function<void()>) override { return nullptr; }
  std::vector<std::size_t> asked_at_a_time;

 private:
  Owners& owners_;
  Instant now_ = MonotonicClock().now();
};

/// Keeps what the node would be told of a worker whose task waits, with when.
class HearsOfWaits final : public testing::LocalGate {
 public:
  std::shared_ptr<CallState> spawn(ActorSpawn) override { return std::make_shared<CallState>(nullptr); }
  void task_waits(bool waits) override {
    told.emplace_back(waits ? "waits" : "goes on", to_seconds(now() - first));
  }
  std::function<Instant()> now;
  Instant first{};
  std::vector<std::pair<std::string, double>> told;
};

/// Time passes for whoever waits, and what is due then happens.
class TimePasses final : public ThreadFloor {
 public:
  explicit TimePasses(HearsOfWaits& node) {
    node.first = now_;
    node.now = [this] { return now_; };
  }
  Instant now() override { return now_; }
  void wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout) override {
    if (word != expected) return;
    const bool is_due = what && at <= now_ + timeout;
    now_ = is_due ? std::max(now_, at) : now_ + timeout;
    if (is_due) std::exchange(what, nullptr)();
  }
  void wake(std::atomic<std::uint32_t>&) override {}
  std::unique_ptr<Running> start(std::function<void()>) override { return nullptr; }
  void pass(Duration time) { now_ += time; }
  void after(Duration delay, std::function<void()> then) {
    at = now_ + delay;
    what = std::move(then);
  }

 private:
  Instant now_{100s};
  Instant at{};
  std::function<void()> what;
};

constexpr std::uint64_t kReads = 0x72656164;
const bool reads_registered = Registry::instance().add_method(
    kReads, {"reads", 0, [](void*, wire::ByteView, Responder responder) { responder.answer({}); }});

constexpr std::uint64_t kWaitsForItself = 0x77616974;
std::shared_ptr<CallState> own_task;
const bool waits_registered = Registry::instance().add_method(
    kWaitsForItself, {"waits", 0, [](void*, wire::ByteView, Responder responder) {
                        try {
                          own_task->wait(60s);
                          responder.answer({});
                        } catch (...) {
                          responder.fail(describe_exception("waits"));
                        }
                      }});

/// A result as its worker says it (Tasks::Computed).
struct WorkersResult {
  objects::ObjectName name;
  wire::Bytes value;
};

TaskSpec chunk() {
  TaskSpec spec;
  spec.name = "task";
  spec.args.object_bytes = std::uint64_t{64} << 20;
  spec.demand.cpu_e4 = 10000;
  return spec;
}

}  // namespace

// Was: room came when workers took tasks, but who waited for it was woken when a task ended: four of 64 MiB
// ran for a minute on eight CPUs, and the fifth was not submitted before. Where they waited for it, all hung.
TEST_CASE("Who waits to submit goes on when workers have the tasks that filled the queue") {
  Workers workers;
  const auto tasks = std::make_shared<Tasks>(workers, nullptr, Tasks::FindKeeper{});
  for (int i = 0; i < 4; ++i) tasks->submit(chunk());
  CHECK(workers.running() == 0);
  {
    GrantsWhoWaits floor(workers);
    const ThreadFloorScope scope(&floor);
    tasks->submit(chunk());
  }
  CHECK(workers.running() == 4);
  CHECK(tasks->counts().tasks == 5);
  tasks->close({ErrorCode::kUnavailable, "", "over", ""});
}

// Was: "a call gave no answer ... look at what the actor does", of a task that had not begun.
TEST_CASE("A task that waits for a worker says what that waits for when its time is over") {
  Workers workers;
  const auto tasks = std::make_shared<Tasks>(workers, nullptr, Tasks::FindKeeper{});
  workers.tasks_of_test = tasks;
  const Future<int> answer(tasks->submit(chunk()));
  const auto told = [&]() -> std::string {
    try {
      answer.get(0s);
    } catch (const Timeout& e) {
      return e.what();
    }
    return "no Timeout";
  };
  workers.tell_all("no node has 1 CPU free");
  CHECK_THAT(told(), Catch::Contains("it still waits: for a worker: no node has 1 CPU free"));
  workers.grant_all();
  CHECK_THAT(told(), Catch::Contains("a call gave no answer"));
  tasks->close({ErrorCode::kUnavailable, "", "over", ""});
}

// Was: while a task of a frame waited for its argument the next one was begun on top of it, which waited for
// its own: one level of stack a task. Of thousands all failed for which the stack had no more room.
TEST_CASE("Tasks that run in their parent's place and wait for arguments do so one after another") {
  REQUIRE(reads_registered);
  Owners owners;
  const auto tasks = std::make_shared<Tasks>(owners, nullptr, Tasks::FindKeeper{});
  TaskSpec spec;
  spec.name = "reads";
  spec.function = kReads;
  spec.demand.cpu_e4 = 10000;
  tasks->serve(kKeeper, spec.demand);
  constexpr std::size_t kTasks = 8;
  AnswersWhoWaits floor(owners);
  const ThreadFloorScope scope(&floor);
  tasks->run([&] {
    std::vector<std::shared_ptr<CallState>> answers;
    for (std::uint64_t number = 1; number <= kTasks; ++number) {
      const objects::ObjectName name{kWorker, number};
      auto one = spec;
      one.args.kept.push_back(owners.objects()->hold(name));
      const auto bytes = std::as_bytes(std::span(&name, 1));
      one.args.bytes.assign(bytes.begin(), bytes.end());
      one.args.bytes.push_back(std::byte{1});
      answers.push_back(tasks->submit(std::move(one)));
    }
    for (const auto& answer : answers) {
      REQUIRE(answer->wait(60s));
      CHECK(answer->outcome().ok());
    }
  });
  CHECK(floor.asked_at_a_time == std::vector<std::size_t>(kTasks, 1));
  tasks->close({ErrorCode::kUnavailable, "", "over", ""});
}

using ToldOfWaits = std::vector<std::pair<std::string, double>>;

// Was: it kept them. As many tasks that waited for others' objects as there were CPUs waited for good.
TEST_CASE("A worker's task that waits for a second leaves its CPUs to others until it goes on") {
  HearsOfWaits node;
  TimePasses floor(node);
  const ThreadFloorScope scope(&floor);
  const auto tasks = std::make_shared<Tasks>(node, nullptr, Tasks::FindKeeper{});
  const auto wait_in_task = [&](Duration answer_after, Duration timeout) {
    node.told.clear();
    node.first = floor.now();
    const auto answer = std::make_shared<CallState>(nullptr);
    floor.after(answer_after, [answer] { answer->resolve(wire::Bytes{}); });
    tasks->run([&] { answer->wait(timeout); });
    return node.told;
  };
  CHECK(wait_in_task(5s, 60s).empty());  // a driver holds none
  tasks->serve(kKeeper, Demand{});
  CHECK(wait_in_task(5s, 60s).empty());  // nor does this one
  Demand demand;
  demand.cpu_e4 = 10000;
  tasks->serve(kKeeper, demand);
  CHECK(wait_in_task(900ms, 60s).empty());
  CHECK(wait_in_task(5s, 60s) == ToldOfWaits{{"waits", 1}, {"goes on", 5}});
  CHECK(wait_in_task(60s, 3s) == ToldOfWaits{{"waits", 1}, {"goes on", 3}});  // nothing came
  CHECK_FALSE(tasks->counts().waits);
  tasks->close({ErrorCode::kUnavailable, "", "over", ""});
}

// One that runs in its place is no wait: its CPU would have been another worker's, too.
TEST_CASE("What runs in the place of a task that waits has its CPUs") {
  REQUIRE(reads_registered);
  HearsOfWaits node;
  TimePasses floor(node);
  const ThreadFloorScope scope(&floor);
  const auto tasks = std::make_shared<Tasks>(node, nullptr, Tasks::FindKeeper{});
  TaskSpec own;
  own.name = "reads";
  own.function = kReads;
  own.demand.cpu_e4 = 10000;
  tasks->serve(kKeeper, own.demand);
  const auto answer = std::make_shared<CallState>(nullptr);
  std::shared_ptr<CallState> own_answer;
  tasks->run([&] {
    floor.after(2500ms, [&] {
      // As if it came back from a worker that died.
      own_answer = tasks->submit(own);
      floor.after(4s, [&] { answer->resolve(wire::Bytes{}); });
    });
    CHECK(answer->wait(60s));
  });
  CHECK(own_answer->ready());
  CHECK(node.told == ToldOfWaits{{"waits", 1}, {"goes on", 3}, {"waits", 4}, {"goes on", 6.5}});
  tasks->close({ErrorCode::kUnavailable, "", "over", ""});
}

// Was: a program that was stopped (SIGSTOP, Ctrl-Z) held its idle workers' CPUs for good, and others waited.
TEST_CASE("A worker that its owner leaves unused gives its CPUs to others until its next task begins") {
  HearsOfWaits node;
  TimePasses floor(node);
  const ThreadFloorScope scope(&floor);
  const auto tasks = std::make_shared<Tasks>(node, nullptr, Tasks::FindKeeper{});
  const auto pass = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      floor.pass(1s);
      for (const auto& look : std::exchange(node.delayed, {})) look();
    }
  };
  tasks->serve(kKeeper, Demand{});
  CHECK(node.delayed.empty());  // it has none to give
  Demand demand;
  demand.cpu_e4 = 10000;
  tasks->serve(kKeeper, demand);
  pass(9);
  CHECK(node.told.empty());
  pass(21);
  ToldOfWaits told{{"waits", 10}};
  CHECK(node.told == told);
  CHECK_FALSE(tasks->begin_pushed({1, 1}));  // 30
  told.push_back({"goes on", 30});
  CHECK(node.told == told);
  pass(30);
  tasks->end_pushed();  // 60
  pass(5);
  CHECK_FALSE(tasks->begin_pushed({2, 1}));
  tasks->end_pushed();  // 65
  pass(9);
  CHECK(node.told == told);
  pass(1);
  told.push_back({"waits", 75});
  CHECK(node.told == told);
  tasks->close({ErrorCode::kUnavailable, "", "over", ""});
  pass(1);
  CHECK(node.delayed.empty());
}

// Was: it waited as long as it said.
TEST_CASE("A task that runs in another's place and waits for its own answer is told so") {
  REQUIRE(waits_registered);
  HearsOfWaits node;
  const auto tasks = std::make_shared<Tasks>(node, nullptr, Tasks::FindKeeper{});
  TaskSpec spec;
  spec.name = "waits";
  spec.function = kWaitsForItself;
  tasks->serve(kKeeper, spec.demand);
  tasks->run([&] {
    own_task = tasks->submit(spec);
    CHECK_THROWS_WITH(Future<void>(own_task).get(60s),
                      Catch::Contains("a method or task waits for its own answer"));
  });
  own_task.reset();
  tasks->close({ErrorCode::kUnavailable, "", "over", ""});
}

// Was: it was held for one try to keep it. Its worker's offer goes with a link that breaks, so between two
// tries nobody held it, and it was gone.
TEST_CASE("A result is held until it is kept, however often the link breaks meanwhile") {
  Owners owners;
  const auto tasks = std::make_shared<Tasks>(
      owners, nullptr, [](NodeId, auto then) { then(Result<ProcessAddress>(kKeeper)); });
  TaskSpec spec;
  spec.name = "task";
  spec.results = 1;
  spec.demand.cpu_e4 = 10000;
  const auto result = tasks->compute(std::move(spec));
  REQUIRE(owners.workers.size() == 1);
  owners.workers[0]->resolve(wire::encode(ActorAddress{kWorker.node, kWorker.process, {1}}));
  REQUIRE(owners.pushed.size() == 1);
  owners.pushed[0]->resolve(wire::encode(std::vector<WorkersResult>{{{kWorker, 5}, {}}}));
  auto& keeps = owners.asked[objects::kKeep];
  auto& given_back = owners.asked[objects::kGiveBack];
  for (std::size_t tries = 1; tries <= 3; ++tries) {
    REQUIRE(keeps.size() == tries);
    keeps.back()->resolve(ErrorInfo{ErrorCode::kUnavailable, "a call has no answer", "the link broke", ""});
    CHECK(given_back.empty());
    REQUIRE(owners.delayed.size() == 1);
    const auto again = std::exchange(owners.delayed, {});
    again[0]();
  }
  REQUIRE(keeps.size() == 4);
  CHECK(given_back.empty());
  keeps.back()->resolve(wire::encode(objects::ObjectName{kKeeper, 6}));
  CHECK(given_back.size() == 1);
  CHECK(owners.objects()->counts().borrowed == 1);
  tasks->close({ErrorCode::kUnavailable, "", "over", ""});
}
