// Tasks and objects over real nodes and workers.
#include "runtime/tasks/tasks.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "runtime/objects/objects.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/objects.hpp"

namespace tasks_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

struct Place {
  std::uint64_t node = 0;
  std::int64_t pid = 0;
};
Place where() {
  return {this_actor().address().node.value, ::getpid()};
}
Place meet(const std::string& folder, int count) {
  const Place at = where();
  write_file(folder + "/" + std::to_string(at.pid), "");
  if (!eventually([&] { return int(names_in(folder).size()) >= count; }, 60s))
    throw std::runtime_error("alone");
  return at;
}
std::uint64_t node_that_reads(const View<float>& numbers) {
  return numbers.size() == 0 ? 0 : where().node;
}
int end_with_0(int n) {
  std::exit(n);
}
/// Ends its worker with `code`; below 0 it does not.
std::int64_t say(const std::string& line, int code) {
  if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
  if (code >= 0) std::_Exit(code);
  return ::getpid();
}
int throw_int(int n) {
  throw n;
}
int deeper(int n) {
  volatile char room[4096] = {};
  return room[std::size_t(n) % sizeof room] + (n < 0 ? 0 : deeper(n + 1)) + 1;
}
int twice(int n) {
  return 2 * n;
}
std::string join(const std::vector<std::string>& words, const std::string& between) {
  std::string all;
  for (const auto& word : words) all += (all.empty() ? "" : between) + word;
  return all;
}
int nap(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return milliseconds;
}
int wait_for(const std::string& file) {
  return eventually([&] { return ::access(file.c_str(), F_OK) == 0; }, 60s) ? 7 : 0;
}
/// Until it is cancelled, if it looks.
int go_on(const std::string& file, bool looks) {
  write_file(file, std::to_string(::getpid()));
  for (;;) {
    if (looks && is_cancelled()) break;
    std::this_thread::sleep_for(1ms);
  }
  write_file(file + ".asked", "");
  return 1;
}
int fail(int n) {
  throw std::out_of_range("no " + std::to_string(n));
}
/// Throws so often, and says how often it ran before.
std::size_t fail_first(const std::string& folder, std::size_t failures) {
  const std::size_t before = names_in(folder).size();
  write_file(folder + "/" + std::to_string(before), "");
  if (before < failures) throw std::out_of_range("not yet");
  return before;
}
std::size_t fail_first_inside(const std::string& folder, std::size_t failures) {
  const auto session = this_actor().session();
  return session.with({.max_retries = 2, .retry_exceptions = true})
      .submit<&fail_first>(folder, failures)
      .get(60s);
}
/// At once, or when the file is there.
int wait_for_some(const std::string& file) {
  return file.empty() ? 1 : wait_for(file);
}
/// Waits for one task a level.
int dig(int levels) {
  return levels == 0 ? 0 : 1 + this_actor().session().submit<&dig>(levels - 1).get(60s);
}
/// The first so many that come are killed.
std::size_t die_first(const std::string& folder, std::size_t deaths) {
  const std::size_t before = names_in(folder).size();
  write_file(folder + "/" + std::to_string(::getpid()), "");
  if (before < deaths) ::raise(SIGKILL);
  return before;
}
/// The first time it goes on until its worker is killed.
int long_at_first(const std::string& folder) {
  const bool is_first = names_in(folder).empty();
  write_file(folder + "/" + std::to_string(::getpid()), "");
  if (is_first) std::this_thread::sleep_for(80s);
  return is_first ? 0 : 5;
}
int wait_for_long(const std::string& folder) {
  const auto own = this_actor().session().submit<&long_at_first>(folder);
  if (!eventually([&] { return !names_in(folder).empty(); }, 60s)) return 0;
  return own.get(70s);  // somebody else runs it
}
/// How many leaves a tree of that depth has, counted by tasks.
std::int64_t leaves(int depth) {
  if (depth == 0) return 1;
  Session session = this_actor().session();
  auto left = session.submit<&leaves>(depth - 1);
  auto right = session.submit<&leaves>(depth - 1);
  return left.get(60s) + right.get(60s);
}

/// Counts what has begun before it.
int count_names(const std::string& folder, const int& after) {
  return int(names_in(folder).size()) + after;
}
int link_of_chain(const std::string& folder, int number, const std::vector<ObjectRef<int>>& before,
                  const int&) {
  const int begun = int(names_in(folder).size());
  write_file(folder + "/" + std::to_string(number), "");
  for (const auto& one : before) one.get(90s);
  return begun;
}
int begin_and_read(const std::string& folder, int number, const ObjectRef<int>& made) {
  write_file(folder + "/" + std::to_string(number), "");
  return made.get(90s);
}
int add_one(const int& n) {
  return n + 1;
}
int read_one(const ObjectRef<int>& n) {
  return n.get(60s);
}

double sum(const std::vector<float>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}
std::size_t number_of(const std::map<std::string, int>& words, const std::string& word) {
  return std::size_t(words.at(word));
}

struct Keeper {
  Keeper() = default;
  explicit Keeper(ObjectRef<std::vector<float>> first) : kept(first) {}
  void keep(const ObjectRef<std::vector<float>>& numbers) { kept = numbers; }
  void drop() { kept = {}; }
  double total() { return sum_view(kept.view()); }
  double add(const View<float>& numbers, double more) { return sum_view(numbers) + more; }
  double add_values(const std::vector<float>& numbers, double more) { return sum(numbers) + more; }
  ObjectRef<std::vector<float>> mine() {
    if (!own) own = this_actor().session().put(std::vector<float>(100'000, 2.0F));
    return own;
  }
  void give(const ActorHandle<Keeper>& other) { other.call<&Keeper::keep>((mine(), own)).get(30s); }
  int pid() { return ::getpid(); }
  ObjectRef<std::vector<float>> kept, own;
};

/// Keeps the numbers themselves, and no reference.
struct Viewer {
  void hold(const View<float>& numbers) { held = numbers; }
  double total() { return sum_view(held); }
  View<float> held;
};

DriverSession two_nodes() {
  return init(0, nullptr, {.nodes = 2, .cpus_per_node = 2});
}

std::vector<float> numbers(std::size_t count) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), 0.0F);
  return all;
}

}  // namespace

TEST_CASE("Tasks run with their values over both nodes, in workers that are used again") {
  auto session = two_nodes();
  CHECK(session.submit<&twice>(21).get(60s) == 42);
  CHECK(session.submit<&join>({"a", "b"}, ", ").get(60s) == "a, b");
  std::vector<Future<int>> answers;
  for (int i = 0; i < 1000; ++i) answers.push_back(session.submit<&twice>(i));
  for (int i = 0; i < 1000; ++i) REQUIRE(answers[std::size_t(i)].get(60s) == 2 * i);
  // Four CPUs: four workers run at a time, on two nodes.
  TempFolder folder;
  std::vector<Future<Place>> places;
  for (int i = 0; i < 4; ++i) places.push_back(session.submit<&meet>(folder.path(), 4));
  std::set<std::uint64_t> nodes;
  std::set<std::int64_t> pids;
  for (const auto& place : get_all(places, 90s)) nodes.insert(place.node), pids.insert(place.pid);
  CHECK(nodes.size() == 2);
  CHECK(pids.size() == 4);
  // And are given back.
  CHECK(no_workers(session));
  for (const auto pid : pids) CHECK(eventually([&] { return !is_alive(pid_t(pid)); }));
}

TEST_CASE("What a task throws is its answer, and it is not tried again") {
  auto session = two_nodes();
  try {
    session.submit<&fail>(7).get(60s);
    FAIL("it did not throw");
  } catch (const TaskFailed& failed) {
    CHECK(failed.exception_type() == "std::out_of_range");
    CHECK(failed.exception_message() == "no 7");
  }
  CHECK(code_of([&] { session.with({.num_cpus = 100}).submit<&twice>(1).get(60s); }) == "refused");
  CHECK(code_of([&] { session.with({.num_cpus = -1}).submit<&twice>(1); }) == "bad config");
}

// Was: "ObjectRef::get in a light actor" was refused once, and the same call answered a moment later.
TEST_CASE("A light actor that gets an object before it is here is told so, and has it later") {
  auto session = two_nodes();
  NodeId other;
  for (const auto& node : session.nodes()) {
    if (node.id != session.process().address().node) other = node.id;
  }
  const double sum_of_all = sum(numbers(100'000));
  bool was_told =
      false;  // where it came before the actor had looked (a busy machine), there is nothing to tell
  for (int i = 0; i < 20 && !was_told; ++i) {
    const auto keeper = session.spawn<Keeper>({.node = other}, session.put(numbers(100'000)));
    CHECK(eventually(
        [&] {
          try {
            return keeper.call<&Keeper::total>().get(60s) == sum_of_all;
          } catch (const BadConfig& why) {
            was_told = std::string(why.what()).find("an object is not here yet") != std::string::npos;
            return false;
          }
        },
        60s));
  }
  CHECK(was_told);
}

TEST_CASE("A task goes where its arguments are, when a worker there is idle") {
  auto session = two_nodes();
  TempFolder folder;
  NodeId far{};
  for (const auto& node : session.nodes()) far = node.id != session.node() ? node.id : far;
  const auto keeper = session.spawn<Keeper>({.isolated = true, .node = far});
  const auto there = keeper.call<&Keeper::mine>().get(60s);
  std::vector<Future<Place>> met;
  for (int i = 0; i < 4; ++i) met.push_back(session.submit<&meet>(folder.path(), 4));
  get_all(met, 60s);  // each CPU of both nodes has a worker
  int right = 0;
  for (int i = 0; i < 20; ++i) right += session.submit<&node_that_reads>(there).get(60s) == far.value ? 1 : 0;
  CHECK(right >= 15);  // one that was idle for half a second was given back
}

TEST_CASE("A task that exits, throws an int or overflows its stack fails by itself, in words") {
  auto session = two_nodes();
  const auto once = session.with({.max_retries = 0});
  const auto exits = once.submit<&end_with_0>(0), throws = once.submit<&throw_int>(5),
             overflows = once.submit<&deeper>(1), good = once.submit<&twice>(4);
  CHECK(message_of<ActorDied>([&] { exits.get(60s); }).find("exit code 0") != std::string::npos);
  CHECK(message_of<TaskFailed>([&] { throws.get(60s); }).find("int") != std::string::npos);
  CHECK_THROWS_AS(overflows.get(60s), ActorDied);  // how is the sanitizer's to say, where there is one
  CHECK(good.get(60s) == 8);
}

// Was: told with the last line of an earlier task of that worker.
TEST_CASE("A task that ends its worker is told with what it wrote itself") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 1});
  const auto once = session.with({.max_retries = 0});
  const auto first = once.submit<&say>("of an earlier task", -1), silent = once.submit<&say>("", 3);
  CHECK(first.get(60s) > 0);
  const auto nothing = message_of<ActorDied>([&] { silent.get(60s); });
  CHECK(nothing.find("exit code 3") != std::string::npos);
  CHECK(nothing.find("earlier") == std::string::npos);
  const auto second = once.submit<&say>("of an earlier task", -1), last = once.submit<&say>("of its own", 4);
  CHECK(second.get(60s) > 0);
  CHECK(message_of<ActorDied>([&] { last.get(60s); }).find("last line of its output: of its own") !=
        std::string::npos);
}

TEST_CASE("A task whose worker is killed is tried again, so often") {
  auto session = two_nodes();
  TempFolder twice_killed, always_killed;
  CHECK(session.submit<&die_first>(twice_killed.path(), 2).get(60s) == 2);
  const auto why = message_of<ActorDied>(
      [&] { session.with({.max_retries = 1}).submit<&die_first>(always_killed.path(), 100).get(60s); });
  CHECK(why.find("2 times") != std::string::npos);
  CHECK(why.find("signal 9") != std::string::npos);
  CHECK(names_in(always_killed.path()).size() == 2);
}

TEST_CASE("A task that throws is tried again where that is asked for, so often") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 1});
  const auto again = session.with({.max_retries = 2, .retry_exceptions = true});
  TempFolder twice, always, never, inside, computed;
  CHECK(again.submit<&fail_first>(twice.path(), 2).get(60s) == 2);
  const auto why = message_of<TaskFailed>([&] { again.submit<&fail_first>(always.path(), 100).get(60s); });
  CHECK(why.find("not yet") != std::string::npos);
  CHECK(names_in(always.path()).size() == 3);
  CHECK_THROWS_AS(session.submit<&fail_first>(never.path(), 1).get(60s), TaskFailed);
  CHECK(names_in(never.path()).size() == 1);
  // In the place of a task that waits for it, on the one CPU that there is.
  CHECK(session.submit<&fail_first_inside>(inside.path(), 2).get(60s) == 2);
  CHECK(again.compute<&fail_first>(computed.path(), 1).get(60s) == 1);
}

// Was: one of them stood behind it until it ended, while other workers had nothing to do.
TEST_CASE("A task that stands behind one that runs on goes to another worker, and runs once") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 2});
  TempFolder folder;
  const std::string go = folder.path() + "/go";
  std::vector<Future<int>> short_ones;
  const auto submit = [&](int count) {
    for (int i = 0; i < count; ++i) short_ones.push_back(session.submit<&wait_for_some>(std::string()));
  };
  submit(200);  // the function is known to be short
  CHECK(get_all(short_ones, 60s).size() == 200);
  short_ones.clear();
  submit(50);
  const auto runs_on = session.submit<&wait_for_some>(go);
  submit(200);
  CHECK(get_all(short_ones, 30s).size() == 250);
  CHECK_FALSE(runs_on.ready());
  write_file(go, "");
  CHECK(runs_on.get(60s) == 7);
  CHECK(eventually([&] { return session.process().tasks()->counts().tasks == 0; }));
}

TEST_CASE("A cancelled task is asked to end, or its worker is killed, or it never runs") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 1});
  TempFolder folder;
  const std::string polite = folder.path() + "/polite", rude = folder.path() + "/rude",
                    never = folder.path() + "/never";
  const auto exists = [](const std::string& file) {
    return eventually([&] { return ::access(file.c_str(), F_OK) == 0; }, 60s);
  };
  const auto asked = session.submit<&go_on>(polite, true);
  const auto waits = session.submit<&go_on>(never, true);
  REQUIRE(exists(polite));
  waits.cancel();
  CHECK_THROWS_AS(waits.get(0s), Cancelled);
  asked.cancel(Duration::max());
  CHECK_THROWS_AS(asked.get(0s), Cancelled);
  CHECK(exists(polite + ".asked"));
  CHECK(session.submit<&where>().get(60s).pid == std::stoll(read_file(polite)));  // its worker goes on

  const auto killed = session.submit<&go_on>(rude, false);
  REQUIRE(exists(rude));
  const auto next = session.submit<&twice>(4);
  killed.cancel(100ms);
  CHECK(next.get(60s) == 8);
  CHECK(eventually([&] { return !is_alive(pid_t(std::stoll(read_file(rude)))); }));
  CHECK(eventually([&] { return session.process().tasks()->counts().tasks == 0; }));
  CHECK(::access(never.c_str(), F_OK) != 0);
  next.cancel();  // too late, and no harm
  CHECK(next.get() == 8);
}

TEST_CASE("Answers of tasks are taken as they come") {
  auto session = two_nodes();
  TempFolder folder;
  std::vector<Future<int>> answers;
  for (int i = 0; i < 20; ++i) answers.push_back(session.submit<&twice>(i));
  answers.push_back(session.submit<&wait_for>(folder.path() + "/go"));
  int sum = 0;
  while (answers.size() > 1) {
    const Waited waited = troupe::wait(answers, 1, 60s).get();
    REQUIRE(waited.ready.size() == 1);
    sum += answers[waited.ready[0]].get();
    answers.erase(answers.begin() + std::ptrdiff_t(waited.ready[0]));
  }
  CHECK(sum == 380);
  CHECK(troupe::wait(answers, 1, 10ms).get().ready.empty());
  write_file(folder.path() + "/go", "");
  CHECK(answers[0].get(60s) == 7);
}

// A worker that waits for its own tasks holds its CPU. Were they to wait for another one, a tree deeper than
// the cluster has CPUs would never end.
TEST_CASE("A tree of tasks that wait for tasks ends on one CPU") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 1});
  CHECK(session.submit<&leaves>(6).get(60s) == 64);
}
TEST_CASE("A tree of tasks that is too deep for a worker's stack ends with an error that says so") {
  // Was: its worker ended by SIGSEGV, four times.
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 1});
  CHECK(session.submit<&dig>(500).get(60s) == 500);
  try {
    session.submit<&dig>(1'000'000).get(120s);
    FAIL("it ended");
  } catch (const LimitExceeded& error) {
    const std::string what = error.what();
    INFO(what);
    CHECK(what.find("has room for no more") != std::string::npos);
    CHECK(what.find(" ... ") != std::string::npos);  // of each level's word the first and the last ones
    CHECK(what.size() < 4000);
  }
}

// It looked for its own tasks as it began to wait, and no more: that one came back later, and waited for
// good.
TEST_CASE("A task that waits on the last CPU runs its own task whose node died") {
  auto session = init(0, nullptr, {.nodes = 2, .cpus_per_node = 1});
  TempFolder folder;
  const auto answer = session.with({.node = session.node()}).submit<&wait_for_long>(folder.path());
  REQUIRE(eventually([&] { return !names_in(folder.path()).empty(); }, 60s));
  ::kill(session.embedded()->node_pids().at(1), SIGKILL);
  CHECK(answer.get(90s) == 5);
}
TEST_CASE("A tree of tasks uses both nodes") {
  auto session = two_nodes();
  CHECK(session.submit<&leaves>(8).get(60s) == 256);
}

// A worker that always has a task was never given back: three threads that submitted short ones held all
// CPUs, and an actor waited for two minutes, and was given up.
TEST_CASE("An actor gets its CPU from a program that never stops submitting tasks, and these go on") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 2});
  PlacementGroup group;  // none: the node's CPUs
  if (GENERATE(false, true)) {
    group = session.placement_group({{.num_cpus = 2}});
    group.wait(60s);
  }
  std::atomic<bool> ends = false;
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const auto to = session.with({.placement_group = group});
      while (!ends) done += to.submit<&nap>(3).get(60s) == 3 ? 1 : 0;
    });
  }
  CHECK(eventually([&] { return done > 10 && session.process().tasks()->counts().leases > 1; }));
  const auto actor = session.spawn<Keeper>({.num_cpus = 1, .isolated = true, .placement_group = group});
  CHECK(actor.call<&Keeper::pid>().get(30s) > 0);
  const int before = done;
  CHECK(eventually([&] { return done > before + 10; }));
  ends = true;
  for (auto& thread : threads) thread.join();
  session.kill(actor);
}

// Was: each of the forty had a worker of its own before what they wait for began: two more a second.
TEST_CASE("What tasks wait for goes before those that were submitted before it") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 2});
  TempFolder begun, folder;
  const std::string go = folder.path() + "/go";
  const auto first = session.compute<&wait_for>(go);  // 7
  const auto made = session.compute<&count_names>(begun.path(), first);
  std::vector<Future<int>> readers;
  for (int i = 0; i < 40; ++i) readers.push_back(session.submit<&begin_and_read>(begun.path(), i, made));
  // The first one has waited for a second: it has asked.
  REQUIRE(eventually([&] { return names_in(begun.path()).size() > 1; }, 60s));
  write_file(go, "");  // only now `made` can begin, behind the others
  const auto read = get_all(readers, 90s);
  CHECK(std::set<int>(read.begin(), read.end()) == std::set<int>{made.get(0s)});
  CHECK(made.get(0s) - 7 <= 10);
}

// Was: who waits for the last one had it begin first, and each other one when the one behind it had waited.
TEST_CASE("A chain of tasks, each of which gets the ones before it, runs from its beginning") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 2});
  TempFolder begun, folder;
  const std::string go = folder.path() + "/go";
  const auto first = session.compute<&wait_for>(go);
  std::vector<ObjectRef<int>> chain;
  for (int i = 0; i < 30; ++i) {
    std::vector<ObjectRef<int>> before;
    if (i > 0) before = {chain.back(), chain[chain.size() / 2]};
    chain.push_back(session.compute<&link_of_chain>(begun.path(), i, before, first));
  }
  CHECK_THROWS_AS(chain.back().get(10ms), Timeout);  // from now on somebody waits for it
  write_file(go, "");
  CHECK(chain.back().get(120s) >= 10);
}

TEST_CASE("A task that waits for what stands behind it in its own worker gets it from another one") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 1});
  TempFolder folder;
  const std::string go = folder.path() + "/go", behind = folder.path() + "/behind";
  const auto one = session.put(1);
  std::vector<Future<int>> short_ones;
  std::vector<ObjectRef<int>> sums;
  for (int i = 0; i < 200; ++i) sums.push_back(session.compute<&add_one>(one));
  for (int i = 0; i < 200; ++i) short_ones.push_back(session.submit<&read_one>(one));
  get_all(short_ones, 60s);  // both functions are known to be short
  short_ones.clear();
  const auto first = session.submit<&wait_for>(go);
  const auto argument = session.with({.num_cpus = 0}).compute<&wait_for>(behind);
  const auto made = session.compute<&add_one>(argument);
  const auto reader = session.submit<&read_one>(made);
  write_file(behind, "");
  CHECK(argument.get(60s) == 7);
  CHECK(eventually([&] { return session.process().tasks()->counts().queued == 2; }));
  for (int i = 0; i < 40; ++i) short_ones.push_back(session.submit<&read_one>(one));
  write_file(go, "");
  CHECK(reader.get(60s) == 8);
  CHECK(get_all(short_ones, 60s) == std::vector<int>(40, 1));
  CHECK(first.get(60s) == 7);
}

TEST_CASE("More tasks than fit the queue hold their submitter back") {
  auto session = two_nodes();
  constexpr int kTasks = 300'000;
  std::vector<Future<int>> answers;
  answers.reserve(kTasks);
  std::size_t most = 0;
  for (int i = 0; i < kTasks; ++i) {
    answers.push_back(session.submit<&twice>(i));
    if (i % 1024 == 0) most = std::max(most, session.process().tasks()->counts().queued);
  }
  CHECK(most <= std::size_t{1} << 18);
  for (int i = 0; i < kTasks; ++i) REQUIRE(answers[std::size_t(i)].get(120s) == 2 * i);
}

TEST_CASE("Objects are read by tasks and actors of both nodes, and go with their last reference") {
  auto session = two_nodes();
  const std::size_t size = GENERATE(std::size_t{10}, std::size_t{3'000'000});
  const auto values = numbers(size);
  const double right = sum(values);
  {
    const auto points = session.put(values);
    CHECK(points.get() == values);
    CHECK(sum_view(points.view()) == right);
    std::vector<Future<double>> sums;
    for (const auto& node : session.nodes()) {
      if (node.gateway) continue;
      for (int i = 0; i < 4; ++i) {
        sums.push_back(session.with({.num_cpus = 0.5, .node = node.id}).submit<&sum>(points));
        sums.push_back(session.with({.num_cpus = 0.5, .node = node.id}).submit<&sum_view>(points));
      }
      const auto light = session.spawn<Keeper>({.node = node.id});
      sums.push_back(light.call<&Keeper::add>(points, 0.0));
      sums.push_back(light.call<&Keeper::add_values>(points, 0.0));
    }
    for (const auto& one : sums) CHECK(one.get(60s) == right);
    const std::map<std::string, int> words{{"one", 1}, {"three", 3}};
    CHECK(session.submit<&number_of>(session.put(words), "three").get(60s) == 3);
  }
  CHECK(no_objects(session));
}

TEST_CASE("A view outlives its object, and nothing is written over it") {
  // Story: memory of objects that have gone is used for the next ones.
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 2});
  const auto viewer = session.spawn<Viewer>({.isolated = true});
  const double right = sum(numbers(1'000'000));
  View<float> mine;
  {
    const auto points = session.put(numbers(1'000'000));
    mine = points.view();
    viewer.call<&Viewer::hold>(points).get(60s);
  }
  for (int i = 0; i < 5; ++i) {
    const auto other = session.put(std::vector<float>(1'000'000, float(i)));
    CHECK(session.submit<&sum_view>(other).get(60s) == i * 1e6);
    CHECK(other.view()[999'999] == float(i));
  }
  CHECK(sum_view(mine) == right);
  CHECK(viewer.call<&Viewer::total>().get(60s) == right);
  CHECK(no_objects(session));
}

TEST_CASE("An actor that keeps a reference keeps the object, until it drops it or dies") {
  auto session = two_nodes();
  const double right = sum(numbers(500'000));
  std::vector<ActorHandle<Keeper>> keepers;
  {
    const auto points = session.put(numbers(500'000));
    for (int i = 0; i < 2; ++i) keepers.push_back(session.spawn<Keeper>({.isolated = true}, points));
    keepers.push_back(session.spawn<Keeper>({.isolated = true}));
    keepers[2].call<&Keeper::keep>(points).get(60s);
  }
  for (const auto& keeper : keepers) CHECK(keeper.call<&Keeper::total>().get(60s) == right);
  keepers[0].call<&Keeper::drop>().get(60s);
  keepers[1].call<&Keeper::drop>().get(60s);
  CHECK(keepers[2].call<&Keeper::total>().get(60s) == right);
  CHECK(owned(session) == 1);
  session.kill(keepers[2]);
  CHECK(no_objects(session));
}

TEST_CASE("An object dies with the process that made it, and whoever reads it then is told so") {
  auto session = two_nodes();
  const auto owner = session.spawn<Keeper>({.isolated = true});
  const auto keeper = session.spawn<Keeper>({.isolated = true});
  owner.call<&Keeper::give>(keeper).get(60s);
  CHECK(keeper.call<&Keeper::total>().get(60s) == 200'000.0);
  ::kill(pid_t(owner.call<&Keeper::pid>().get(60s)), SIGKILL);
  std::string why;
  CHECK(eventually([&] {
    why = message_of<ObjectLost>([&] { keeper.call<&Keeper::total>().get(60s); });
    return why.find("killed by signal 9") != std::string::npos;
  }));
  INFO(why);
  CHECK(why.find("is lost") != std::string::npos);
}

TEST_CASE("An actor that is started again is given objects in each of its lives") {
  auto session = two_nodes();
  const auto keeper = session.spawn<Keeper>({.isolated = true, .max_restarts = 1, .max_task_retries = 3});
  const auto points = session.put(numbers(500'000));
  const double right = sum(numbers(500'000));
  CHECK(keeper.call<&Keeper::add>(points, 0.0).get(60s) == right);
  ::kill(pid_t(keeper.call<&Keeper::pid>().get(60s)), SIGKILL);
  CHECK(keeper.call<&Keeper::add>(points, 1.0).get(60s) == right + 1);
  const auto first = session.spawn<Keeper>({.isolated = true, .max_restarts = 1}, points);
  ::kill(pid_t(first.call<&Keeper::pid>().get(60s)), SIGKILL);
  CHECK(eventually([&] {
    try {
      return first.call<&Keeper::total>().get(60s) == right;
    } catch (const Unavailable&) {
      return false;
    }
  }));
}

TEST_CASE("What a reference cannot do is refused in words") {
  auto session = two_nodes();
  const auto keeper = session.spawn<Keeper>({.isolated = true});
  CHECK(message_of<BadConfig>([&] { session.put(session.put(numbers(3))); }).find("not in objects") !=
        std::string::npos);
  keeper.tell<&Keeper::keep>(session.put(numbers(3)));
  CHECK(keeper.call<&Keeper::total>().get(60s) == sum(numbers(3)));
  CHECK(code_of([&] { keeper.call<&Keeper::keep>(ObjectRef<std::vector<float>>()).get(60s); }) == "nothing");
  CHECK(code_of([&] { session.submit<&sum>(ObjectRef<std::vector<float>>()); }) == "bad config");
  CHECK(no_objects(session));
}

}  // namespace tasks_test
