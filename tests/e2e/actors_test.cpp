// Actors across real processes, on an embedded cluster.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>

#include "runtime/core/abort_word.hpp"
#include "scheduler/init/embedded_cluster.hpp"
#include "scheduler/init/init.hpp"
#include "tests/support/eventually.hpp"

namespace actors_test {

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct Point {
  double x = 0;
  double y = 0;
  std::vector<std::string> names;
};

struct Counter {
  Counter() = default;
  explicit Counter(int start) : total(start) {}
  int total = 0;
  int add(int n) { return total += n; }
  int get() const { return total; }
  void fail() { throw std::runtime_error("the counter is out of numbers"); }
  Point echo(const Point& p) { return {p.y, p.x, p.names}; }
  std::vector<double> repeat(double value, std::uint64_t count) { return std::vector<double>(count, value); }
  int pid() { return ::getpid(); }
  int slow() {
    std::this_thread::sleep_for(1min);
    return total;
  }
  void block() { session().spawn<Counter>({}); }
  Session session() { return this_actor().session(); }
  void print(const std::string& text) { std::printf("%s\n", text.c_str()); }
};

struct Broken {
  Broken() { throw std::runtime_error("no luck today"); }
  int any() { return 0; }
};

struct Relay {
  explicit Relay(ActorHandle<Counter> t) : target(t) {}
  ActorHandle<Counter> target;
  Future<int> through(int n) { return target.call<&Counter::add>(n); }
  int blocking(int n) { return target.call<&Counter::add>(n).get(5s); }
};

/// Each call waits for the next.
struct Nested {
  Future<int> depth(int left) {
    if (left > 0) return this_actor().self<Nested>().call<&Nested::depth>(left - 1);
    return deepest.emplace().future();
  }
  bool resolve() {
    if (deepest) deepest->set(7);
    return deepest.has_value();
  }
  bool has_promise() { return deepest.has_value(); }
  std::optional<Promise<int>> deepest;
};

struct Keeper {
  SharedMemory region;
  void open(const std::string& key) {
    region = this_actor().session().open_region(key, 4096, "keeper", true);
  }
};

/// What `f` threw, if it was an error of that kind.
template <class Kind, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    if (dynamic_cast<const Kind*>(&error) != nullptr) return error.what();
    UNSCOPED_INFO("it threw " << error.what());
  }
  return "it did not throw";
}

/// A link that breaks fails calls at once (Unavailable); that a node is dead is known later.
void call_until_it_is_dead(const ActorHandle<Counter>& actor) {
  for (int i = 0; i < 3000; ++i) {
    try {
      actor.call<&Counter::add>(1).get(20s);
    } catch (const Unavailable&) {
      std::this_thread::sleep_for(10ms);
    }
  }
}

int open_fds() {
  int count = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

}  // namespace

TEST_CASE("a call reaches an actor in another process and comes back", "[actors]") {
  auto session = init(0, nullptr);
  auto counter = session.spawn<Counter>({.num_cpus = 0.1}, 37);
  CHECK(counter.call<&Counter::add>(5).get(10s) == 42);
  CHECK(counter.call<&Counter::pid>().get(10s) != ::getpid());
  const auto echoed =
      counter.call<&Counter::echo>(Point{1.5, -2, {"a", "", "long enough to be on the heap, surely"}})
          .get(10s);
  CHECK(echoed.x == -2);
  CHECK(echoed.y == 1.5);
  CHECK(echoed.names.size() == 3);

  SECTION("light actors share a process, an isolated one has its own") {
    auto other = session.spawn<Counter>();
    auto isolated = session.spawn<Counter>({.isolated = true});
    CHECK(other.call<&Counter::pid>().get(10s) == counter.call<&Counter::pid>().get(10s));
    CHECK(isolated.call<&Counter::pid>().get(10s) != counter.call<&Counter::pid>().get(10s));
  }
  SECTION("calls of one caller run in order, and large answers come whole") {
    std::vector<Future<int>> sums;
    for (int i = 0; i < 20'000; ++i) sums.push_back(counter.call<&Counter::add>(1));
    for (int i = 0; i < 20'000; ++i) REQUIRE(sums[i].get(10s) == 43 + i);
    CHECK(counter.call<&Counter::repeat>(2.5, std::uint64_t{1'000'000}).get(20s) ==
          std::vector<double>(1'000'000, 2.5));
  }
  SECTION("an exception of the actor arrives with its text") {
    const auto text = message_of<TaskFailed>([&] { counter.call<&Counter::fail>().get(10s); });
    CHECK(text.find("the counter is out of numbers") != std::string::npos);
    CHECK(text.find("Counter::fail") != std::string::npos);
    CHECK(counter.call<&Counter::get>().get(10s) == 42);
  }
  SECTION("a constructor that throws is the spawner's error") {
    const auto text = message_of<Error>([&] { session.spawn<Broken>(); });
    CHECK(text.find("no luck today") != std::string::npos);
    CHECK(message_of<Error>([&] { session.spawn<Broken>({.isolated = true}); }).find("no luck today") !=
          std::string::npos);
  }
  SECTION("an actor calls another one, by a future or by waiting in an isolated one") {
    auto relay = session.spawn<Relay>({}, counter);
    CHECK(relay.call<&Relay::through>(1).get(10s) == 43);
    const auto text = message_of<Error>([&] { relay.call<&Relay::blocking>(1).get(10s); });
    CHECK(text.find("then(callback)") != std::string::npos);
    CHECK(text.find("co_await") != std::string::npos);
    auto waiting = session.spawn<Relay>({.isolated = true}, counter);
    CHECK(waiting.call<&Relay::blocking>(1).get(10s) == 45);  // the refused wait had sent its call, too
  }
  SECTION("then, in the driver's runtime thread") {
    std::atomic<int> seen{0};
    counter.call<&Counter::get>().then([&](const Result<int>& value) { seen = value.ok() ? *value : -1; });
    for (int i = 0; i < 10'000 && seen == 0; ++i) std::this_thread::sleep_for(1ms);
    CHECK(seen == 42);
  }
  SECTION("what asks for more CPUs than any node has is refused with the reason") {
    const auto text = message_of<Error>([&] { session.spawn<Counter>({.num_cpus = 5000}); });
    CHECK(text.find("CPU") != std::string::npos);
  }
}

TEST_CASE("an actor of this process", "[actors]") {
  auto session = init(0, nullptr);
  auto here = session.spawn<Counter>({.here = true}, 1);
  CHECK(here.call<&Counter::pid>().get(10s) == ::getpid());
  auto relay = session.spawn<Relay>({}, here);  // and another process calls it
  CHECK(relay.call<&Relay::through>(4).get(10s) == 5);
}

TEST_CASE("death: calls fail, monitors hear why, abort words are set", "[actors]") {
  auto session = init(0, nullptr);
  auto victim = session.spawn<Keeper>({.isolated = true, .label = "the victim"});
  auto counter = session.spawn<Counter>({.isolated = true});
  victim.call<&Keeper::open>(std::string("group")).get(10s);
  auto region = session.open_region("group", 4096, "driver", true);
  REQUIRE_FALSE(region_aborted(region.data()));
  std::atomic<bool> down{false};
  std::string reason;
  session.monitor(victim, [&](const std::string& why) {
    reason = why;
    down = true;
  });
  session.kill(victim, "the test says so");
  for (int i = 0; i < 10'000 && !down; ++i) std::this_thread::sleep_for(1ms);
  REQUIRE(down);
  CHECK(reason.find("the test says so") != std::string::npos);
  CHECK(region_aborted(region.data()));
  CHECK(region_abort_reason(region.data()).text.find("keeper died") != std::string::npos);
  CHECK(message_of<ActorDied>([&] {
          victim.call<&Keeper::open>(std::string("x")).get(10s);
        }).find("the test says so") != std::string::npos);

  const int pid = counter.call<&Counter::pid>().get(10s);
  ::kill(pid, SIGKILL);
  const auto text = message_of<ActorDied>([&] {
    for (int i = 0; i < 1000; ++i) counter.call<&Counter::add>(1).get(10s);
  });
  CHECK(text.find("signal 9") != std::string::npos);
}

TEST_CASE("the head dies: calls go on, and spawns work again when it is back", "[actors]") {
  auto session = init(0, nullptr);
  auto counter = session.spawn<Counter>({}, 1);
  const pid_t before = session.embedded()->head_pid();
  ::kill(before, SIGKILL);
  CHECK(counter.call<&Counter::add>(1).get(10s) == 2);
  auto late = session.spawn<Counter>({.isolated = true}, 5);
  CHECK(late.call<&Counter::add>(1).get(10s) == 6);
  CHECK(session.embedded()->head_pid() != before);
  CHECK(counter.call<&Counter::add>(1).get(10s) == 3);
}

TEST_CASE("a node that dies before another is back at a head that started again: that one hears of it, too",
          "[actors]") {
  auto session = init(0, nullptr, {.nodes = 2});
  const auto nodes = session.nodes();
  const NodeId other = nodes[0].id == session.node() ? nodes[1].id : nodes[0].id;
  auto far = session.spawn<Counter>({.isolated = true, .node = other}, 7);
  CHECK(far.call<&Counter::add>(1).get(10s) == 8);
  const Future<int> unanswered = far.call<&Counter::slow>();
  const pid_t here = session.embedded()->node_pids().at(0), head = session.embedded()->head_pid();
  ::kill(here, SIGSTOP);
  ::kill(head, SIGKILL);
  while (session.embedded()->head_pid() == head) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(300ms);  // it has restored what it knew
  ::kill(session.embedded()->node_pids().at(1), SIGKILL);
  std::this_thread::sleep_for(500ms);  // and heard that the other node left
  ::kill(here, SIGCONT);
  // The broken link told it first, or the head did.
  CHECK((message_of<ActorDied>([&] { unanswered.get(20s); }) != "it did not throw" ||
         message_of<Unavailable>([&] { unanswered.get(20s); }) != "it did not throw"));
  CHECK(message_of<ActorDied>([&] { call_until_it_is_dead(far); }) != "it did not throw");
}

TEST_CASE("a cluster that ends leaves no process and no descriptor behind", "[actors]") {
  { auto warm = init(0, nullptr); }
  const int before = open_fds();
  std::vector<pid_t> pids;
  {
    auto session = init(0, nullptr, {.nodes = 2});
    auto counter = session.spawn<Counter>({.isolated = true});
    pids = session.embedded()->node_pids();
    pids.push_back(session.embedded()->head_pid());
    pids.push_back(counter.call<&Counter::pid>().get(10s));
  }
  for (const pid_t pid : pids) CHECK(::kill(pid, 0) != 0);
  CHECK(open_fds() == before);
}

TEST_CASE("twenty thousand calls that wait for each other are answered on one stack", "[actors]") {
  // Was: a stack overflow of their process.
  auto session = init(0, nullptr);
  for (const bool isolated : {false, true}) {
    auto nested = session.spawn<Nested>({.isolated = isolated});
    const auto answer = nested.call<&Nested::depth>(20'000);
    while (!nested.call<&Nested::resolve>().get(20s)) std::this_thread::sleep_for(1ms);
    CHECK(answer.get(20s) == 7);
  }
}

TEST_CASE("a promise that its killed actor kept is an ActorDied with the reason", "[actors]") {
  auto session = init(0, nullptr, {});
  for (const bool isolated : {false, true}) {
    const auto keeper = session.spawn<Nested>({.isolated = isolated});
    auto depth = keeper.call<&Nested::depth>(0);
    CHECK(keeper.call<&Nested::has_promise>().get(20s));  // it has the promise
    session.kill(keeper, "it is not needed");
    try {
      depth.get(20s);
      FAIL("an answer of a killed actor");
    } catch (const ActorDied& died) {
      CHECK_THAT(died.what(), Catch::Contains("it is not needed"));
    }
  }
}

TEST_CASE("of many that spawn an actor by name if there is none, one does", "[actors]") {
  auto session = init(0, nullptr, {.nodes = 2});
  const ActorOptions options{.isolated = true, .name = "the one", .get_if_exists = true};
  std::vector<Future<ActorHandle<Counter>>> spawned;
  for (int i = 0; i < 8; ++i) spawned.push_back(session.spawn_async<Counter>(options));
  const auto first = spawned[0].get(30s);
  for (const auto& one : spawned) CHECK(one.get(30s) == first);
  CHECK(first.call<&Counter::add>(1).get(10s) == 1);
  // The next one comes with its death.
  session.kill(first);
  CHECK(test::eventually([&] { return session.spawn<Counter>(options) != first; }));
  CHECK(session.spawn<Counter>(options).call<&Counter::add>(1).get(10s) == 1);
}

}  // namespace actors_test
