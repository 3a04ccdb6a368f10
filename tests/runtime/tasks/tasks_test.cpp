// The tasks of one process whose workers do what a test says.
#include "runtime/tasks/tasks.hpp"

#include <catch2/catch.hpp>
#include <stdexcept>

#include "runtime/client/future.hpp"
#include "runtime/core/thread_floor.hpp"
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
