// Actors that outlive the program that spawned them, with real processes: programs of one job name, one after
// another, on a cluster of two nodes.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "scheduler/init/init.hpp"
#include "tests/e2e/two_nodes.hpp"
#include "tests/support/contains.hpp"

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;
using troupe::test::contains;

namespace {

struct Counter {
  explicit Counter(int first) : count(first) {}
  int add(int n) {
    std::printf("%d more\n", n);  // whoever reads it may be gone
    return count += n;
  }
  int pid() { return ::getpid(); }
  int spawn_child() {
    auto child = this_actor().session().spawn<Counter>({.isolated = true}, 40);
    return child.call<&Counter::add>(2).get(20s);
  }
  int spawn_light_child() {
    auto child = this_actor().session().spawn<Counter>({}, 50);
    return child.call<&Counter::add>(2).get(20s);
  }
  int count;
};

struct Reader {
  explicit Reader(const ObjectRef<int>& of) : object(of) {}
  ObjectRef<int> object;
};

DriverSession join(const std::string& root) {
  std::string address = read_file(root + "/a/address");
  address.pop_back();
  return init(0, nullptr, {.address = address, .folder = root + "/a", .job = "counting"});
}

struct Cluster : TwoNodes {
  DriverSession join() const { return ::join(root); }
  std::string ask(const std::string& words) const {
    return troupe(words + " --folder " + root + "/a").output;
  }
  bool is_parked() const { return contains(ask("status"), "parked: no program of it runs, and detached"); }
  /// The name of the node where it lives; empty: nowhere.
  std::string node_of_counter() const {
    for (const char* node : {"one", "two"}) {
      if (contains(ask(std::string("actor list --state alive --node ") + node), "detached as counter"))
        return node;
    }
    return "";
  }
  void spawn_and_end() const {
    Program first("program: spawns a detached counter", root);
    CHECK(first.wait(60s) == "exit code 0");
    CHECK(eventually([&] { return is_parked(); }));
  }
};

/// What the counter says, over the end of a life.
int add(const ActorHandle<Counter>& counter, int n) {
  int sum = -1;
  CHECK(eventually(
      [&] { return code_of([&] { sum = counter.call<&Counter::add>(n).get(20s); }) == "nothing"; }));
  return sum;
}

}  // namespace

TEST_CASE("program: spawns a detached counter", "[.program]") {
  auto session = join(program_folder());
  auto counter =
      session.spawn<Counter>({.isolated = true, .name = "counter", .max_restarts = -1, .detached = true}, 5);
  CHECK(counter.call<&Counter::add>(2).get(20s) == 7);
  auto other = session.spawn<Counter>({.isolated = true, .name = "other"}, 0);  // ends with this program
}

TEST_CASE("a detached actor goes on when its program has ended, and the next one of that job finds it",
          "[detached]") {
  const Cluster cluster;
  cluster.spawn_and_end();
  CHECK(contains(cluster.ask("job list"), "PARKED"));
  CHECK(contains(cluster.ask("job list --state PARKED -o json"), "detached actors stay: counter"));
  // Was: "there is no job counting".
  for (const char* words : {"job status counting", "job why counting", "job status counting -o json"})
    CHECK(contains(cluster.ask(words), "alive"));
  for (const char* words : {"job logs counting", "logs --job counting"})
    CHECK(contains(cluster.ask(words), "troupe logs --actor counter"));
  pid_t pid = 0;
  {
    auto session = cluster.join();
    CHECK(session.incarnation() == 2);
    auto counter = session.find<Counter>("counter");
    CHECK(counter.call<&Counter::add>(1).get(20s) == 8);  // with its state
    CHECK(code_of([&] { session.find<Counter>("other"); }) == error_code_name(ErrorCode::kUnavailable));
    // What it starts ends with the program that runs.
    CHECK(counter.call<&Counter::spawn_child>().get(60s) == 42);
    CHECK(counter.call<&Counter::spawn_light_child>().get(60s) == 52);
    pid = counter.call<&Counter::pid>().get(20s);
    ::kill(pid, SIGKILL);
    CHECK(add(counter, 1) == 6);  // another life: as its constructor leaves it
    pid = counter.call<&Counter::pid>().get(20s);
  }
  CHECK(eventually([&] { return cluster.is_parked(); }));
  // Without any program.
  ::kill(pid, SIGKILL);
  CHECK(eventually([&] { return !cluster.node_of_counter().empty(); }));
  {
    auto session = cluster.join();
    CHECK(add(session.find<Counter>("counter"), 1) == 6);
    session.kill(session.find<Counter>("counter"));
    CHECK(eventually([&] { return cluster.node_of_counter().empty(); }));
  }
  CHECK(eventually([&] { return !cluster.is_parked(); }));
  CHECK_FALSE(contains(cluster.ask("status"), "running"));
}

TEST_CASE("a parked job outlives the head, and its actor the node; troupe actor kill ends both",
          "[detached]") {
  const Cluster cluster;
  cluster.spawn_and_end();
  ::kill(children(cluster.supervisor("a"), "troupe-head").at(0), SIGKILL);
  CHECK(eventually([&] { return cluster.is_parked() && !cluster.node_of_counter().empty(); }));
  {
    auto session = cluster.join();
    CHECK(session.find<Counter>("counter").call<&Counter::add>(1).get(20s) == 8);
  }
  CHECK(eventually([&] { return cluster.is_parked(); }));
  const std::string node = cluster.node_of_counter();
  const pid_t supervisor = cluster.supervisor(node == "one" ? "a" : "b");
  const pid_t dies = children(supervisor, "troupe-node").at(0);
  CHECK(stand_still(supervisor));  // that machine has no node any more
  ::kill(dies, SIGKILL);
  CHECK(eventually([&] {
    const std::string now = cluster.node_of_counter();
    return !now.empty() && now != node;
  }));
  ::kill(supervisor, SIGCONT);
  {
    auto session = cluster.join();
    CHECK(add(session.find<Counter>("counter"), 1) == 6);
  }
  CHECK(eventually([&] { return cluster.is_parked(); }));
  CHECK(contains(cluster.ask("actor kill counter"), "is killed"));
  CHECK(eventually([&] { return !cluster.is_parked(); }));
  CHECK(contains(cluster.ask("status"), "ended"));
  CHECK(contains(cluster.ask("job why counting"), "has ended; detached actor counter: troupe actor kill"));
  CHECK(contains(cluster.ask("job wait counting"), "has ended; detached actor counter: troupe actor kill"));
  cluster.spawn_and_end();
  CHECK(contains(cluster.ask("job stop counting"), "job counting STOPPED"));
  CHECK(eventually([&] { return !cluster.is_parked() && cluster.node_of_counter().empty(); }));
}

TEST_CASE("an actor that is killed while its life ends and the head is dead has no other life",
          "[detached]") {
  // Was: the word went to a head that was dead, and the next life went on.
  const Cluster cluster;
  cluster.spawn_and_end();
  {
    auto session = cluster.join();
    const auto counter = session.find<Counter>("counter");
    const auto pid = counter.call<&Counter::pid>().get(20s);
    const pid_t supervisor = cluster.supervisor("a");
    const pid_t head = children(supervisor, "troupe-head").at(0);
    CHECK(stand_still(supervisor));  // it stays dead for a moment
    ::kill(head, SIGKILL);
    ::kill(pid, SIGKILL);
    session.kill(counter);
    CHECK(eventually([&] { return !is_alive(pid); }));
    ::kill(supervisor, SIGCONT);
    Promise<std::string> death;
    session.monitor(counter, [death](const std::string& why) mutable { death.set(why); });
    CHECK_NOTHROW(death.future().get(60s));
  }
  CHECK(eventually([&] { return !cluster.is_parked() && cluster.node_of_counter().empty(); }));
}

TEST_CASE("a detached actor that could not outlive its program is refused with the reason", "[detached]") {
  auto session = init(0, nullptr);
  const ActorOptions detached{.isolated = true, .name = "it", .detached = true};
  const auto why = [&](ActorOptions options) {
    return message_of<Error>([&] { session.spawn<Counter>(std::move(options), 1); });
  };
  CHECK(contains(why(detached), "nothing would outlive it"));
  ActorOptions options = detached;
  options.name = "";
  CHECK(contains(why(options), "it has no name, by which another program could find it"));
  options = detached;
  options.isolated = false;
  CHECK(contains(why(options), "it shares its process"));
  const auto object = session.put(5);
  CHECK(contains(message_of<BadConfig>([&] { session.spawn<Reader>(detached, object); }),
                 "objects among its constructor arguments"));
  CHECK(contains(message_of<BadConfig>([&] { session.spawn_group<Counter>(2, detached, 1); }),
                 "cannot spawn a detached group"));
}
