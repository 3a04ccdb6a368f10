// Actors that outlive the program that spawned them, with real processes: programs of one job name, one after
// another, on a cluster of two nodes.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "scheduler/init/init.hpp"
#include "tests/e2e/two_nodes.hpp"
#include "tests/support/contains.hpp"

namespace detached_test {

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

/// Goes on from what it saved.
struct Ledger {
  explicit Ledger(int first) : sum(first) {}
  int add(int n) { return sum += n; }
  int pid() const { return ::getpid(); }
  int save() const { return sum; }
  void load(int saved) { sum = saved; }
  int sum;
};

struct Reader {
  explicit Reader(const ObjectRef<int>& of) : object(of) {}
  ObjectRef<int> object;
};

DriverSession join(const std::string& root, const std::string& machine = "/a") {
  std::string address = read_file(root + "/a/address");
  address.pop_back();
  return init(0, nullptr, {.address = address, .folder = root + machine, .job = "counting"});
}

struct Cluster : TwoNodes {
  DriverSession join() const { return detached_test::join(root); }
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
  void spawn_and_end(const std::string& program = "program: spawns a detached counter") const {
    Program first(program, root);
    CHECK(first.wait(60s) == "exit code 0");
    CHECK(eventually([&] { return is_parked(); }));
  }
};

/// What the counter says, over the end of a life.
template <class T>
int add(const ActorHandle<T>& counter, int n) {
  int sum = -1;
  CHECK(eventually(
      [&] { return code_of([&] { sum = counter.template call<&T::add>(n).get(20s); }) == "nothing"; }));
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

TEST_CASE("program: spawns a detached ledger", "[.program]") {
  auto session = join(program_folder());
  auto ledger =
      session.spawn<Ledger>({.isolated = true, .name = "counter", .max_restarts = -1, .detached = true}, 5);
  CHECK(ledger.call<&Ledger::add>(2).get(20s) == 7);
}

TEST_CASE("a detached actor that saves goes on from there, without its program, its node or the head",
          "[detached]") {
  const Cluster cluster;
  cluster.spawn_and_end("program: spawns a detached ledger");
  // Without any program: its process.
  pid_t pid = 0;
  {
    auto session = cluster.join();
    auto ledger = session.find<Ledger>("counter");
    CHECK(ledger.call<&Ledger::add>(1).get(20s) == 8);
    pid = ledger.call<&Ledger::pid>().get(20s);
  }
  CHECK(eventually([&] { return cluster.is_parked(); }));
  ::kill(pid, SIGKILL);
  const auto lives = [&] { return !cluster.node_of_counter().empty(); };
  CHECK(eventually(lives));
  {
    auto session = cluster.join();
    auto ledger = session.find<Ledger>("counter");
    CHECK(add(ledger, 1) == 9);
    pid = ledger.call<&Ledger::pid>().get(20s);
  }
  CHECK(eventually([&] { return cluster.is_parked(); }));
  // The head, then its process: the head that comes back has it from the nodes.
  ::kill(children(cluster.supervisor("a"), "troupe-head").at(0), SIGKILL);
  CHECK(eventually([&] { return cluster.is_parked() && lives(); }));
  ::kill(pid, SIGKILL);
  CHECK(eventually([&] { return !is_alive(pid) && lives(); }));
  {
    auto session = cluster.join();
    CHECK(add(session.find<Ledger>("counter"), 1) == 10);
  }
  CHECK(eventually([&] { return cluster.is_parked(); }));
  // Its node, whose machine has no other.
  const std::string node = cluster.node_of_counter();
  const pid_t supervisor = cluster.supervisor(node == "one" ? "a" : "b");
  const pid_t dies = children(supervisor, "troupe-node").at(0);
  CHECK(stand_still(supervisor));
  ::kill(dies, SIGKILL);
  CHECK(eventually([&] {
    const std::string now = cluster.node_of_counter();
    return !now.empty() && now != node;
  }));
  ::kill(supervisor, SIGCONT);
  auto session = cluster.join();
  CHECK(add(session.find<Ledger>("counter"), 1) == 11);
  session.kill(session.find<Ledger>("counter"));
  CHECK(eventually([&] { return cluster.node_of_counter().empty(); }));
}

TEST_CASE("what a program wanted killed when its own node died is killed from its next one", "[detached]") {
  // Was: the word was lost with that node, and the actor went on.
  const Cluster cluster;
  cluster.spawn_and_end();
  auto session = cluster.join();
  const auto counter = session.find<Counter>("counter");
  const pid_t gateway = children(::getpid(), "troupe-node").at(0);
  CHECK(stand_still(gateway));  // it does not hear it
  session.kill(counter);
  ::kill(gateway, SIGKILL);
  CHECK(eventually([&] { return cluster.node_of_counter().empty(); }, 60s));
}

TEST_CASE("program: spawns a detached counter from the other machine", "[.program]") {
  auto session = join(program_folder(), "/b");
  NodeId one{};
  for (const auto& node : session.nodes()) {
    if (node.name == "one") one = node.id;
  }
  session.spawn<Counter>(
      {.isolated = true, .node = one, .name = "counter", .max_restarts = -1, .detached = true}, 5);
}

TEST_CASE("a machine that joined stops parked jobs of its programs, which end with its key", "[detached]") {
  const Cluster cluster;
  const std::string theirs = " --folder " + cluster.root + "/b";
  cluster.spawn_and_end();
  CHECK(contains(cluster.troupe("job stop counting" + theirs).output, "started it"));
  CHECK(contains(cluster.ask("job stop counting"), "job counting STOPPED"));
  CHECK(eventually([&] { return !cluster.is_parked() && cluster.node_of_counter().empty(); }));
  // Was: they were the head's owner's alone once the program's own node was forgotten.
  const std::string program = "program: spawns a detached counter from the other machine";
  cluster.spawn_and_end(program);
  CHECK(contains(cluster.troupe("job stop counting" + theirs).output, "job counting STOPPED"));
  CHECK(eventually([&] { return !cluster.is_parked() && cluster.node_of_counter().empty(); }));
  // Was: on a node of another machine it went on without end.
  cluster.spawn_and_end(program);
  const std::string list = cluster.ask("key list");
  const auto at = list.find("machine/");
  REQUIRE(at != std::string::npos);
  cluster.ask("key remove " + list.substr(at, list.find(' ', at) - at));
  CHECK(eventually([&] { return !cluster.is_parked() && cluster.node_of_counter().empty(); }));
  CHECK(contains(cluster.ask("job why counting"), "was removed"));
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

}  // namespace detached_test
