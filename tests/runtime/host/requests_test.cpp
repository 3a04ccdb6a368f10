// A process's requests to its node: none waits behind one of another kind, and each ends once.
#include <catch2/catch.hpp>

#include "runtime/host/request_queue.hpp"
#include "runtime/node/limits.hpp"
#include "tests/runtime/host/fake_node.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using test::eventually;

namespace {

ActorSpawn placed() {
  ActorSpawn spawn;
  spawn.type = "T";
  spawn.isolated = true;
  return spawn;
}

struct Spawning {
  test::FakeNode node;
  std::unique_ptr<Process> process = node.make(1, 10);
  std::vector<std::shared_ptr<CallState>> spawns;

  void spawn(int count) {
    for (int i = 0; i < count; ++i) spawns.push_back(process->spawn(placed()));
  }
  void cancel(std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i)
      spawns[i]->cancel({ErrorCode::kTimeout, "an actor was not started", "the test", ""});
  }
  bool nodes_are_told() { return process->nodes()->wait(10s); }
  std::size_t count(const std::string& word) {
    const auto heard = node.spawns();
    return static_cast<std::size_t>(std::count_if(
        heard.begin(), heard.end(), [&](const std::string& entry) { return entry.starts_with(word); }));
  }
};

}  // namespace

TEST_CASE("spawns that were cancelled give their places back") {
  // Was: a cancelled spawn has no answer, and kept its place. After 256 of them nodes(), find() and light
  // spawns had none either, for good.
  Spawning here;
  here.spawn(256);
  here.cancel(0, 256);
  CHECK(here.nodes_are_told());
  here.spawn(100);
  CHECK(eventually([&] { return here.count("ask ") == 356; }));
}

TEST_CASE("spawns that wait for an answer hold up no other request") {
  // Was: all requests shared 256 places. 256 spawns on a full cluster, and nodes() timed out.
  Spawning here;
  here.spawn(300);
  CHECK(here.nodes_are_told());
  REQUIRE(eventually([&] { return here.count("ask ") == 256; }));
  here.node.fail_spawns();
  CHECK(eventually([&] { return here.count("ask ") == 300; }));
}

TEST_CASE("spawns that wait at the head hold up no spawn that has room") {
  Spawning here;
  here.node.spawns_wait = true;
  here.spawn(1000);
  CHECK(eventually([&] { return here.count("ask ") == 1000; }));
}

TEST_CASE("a spawn that is cancelled before its turn is never asked for") {
  // Was: its cancel was sent first and its request later. The actor held its CPUs until the job ended.
  Spawning here;
  here.spawn(300);
  here.cancel(256, 300);
  REQUIRE(eventually([&] { return here.count("ask ") == 256; }));
  here.node.fail_spawns();
  here.spawn(1);
  REQUIRE(eventually([&] { return here.node.spawns().back() == "ask 301"; }));
  CHECK(here.count("ask ") == 257);
  CHECK(here.count("cancel ") == 0);
}

TEST_CASE("spawns with large arguments go as the node has room for them") {
  RequestQueue queue;
  RequestQueue::Messages out;
  const auto ask = [&](std::uint64_t number, std::size_t bytes) {
    cluster::ActorSpec spec;
    spec.payload.resize(bytes);
    queue.ask(number, wire::SpawnAsk{number, std::move(spec)}, out);
  };
  constexpr std::size_t kHalf = RequestQueue::kSpawnBytes / 2;
  ask(1, kHalf);
  ask(2, kHalf + 1);
  ask(3, 1);  // in turn, although there is room
  CHECK(out.size() == 1);
  queue.waits(1, out);
  CHECK(out.size() == 1);  // the head keeps its arguments
  queue.answered(1, out);
  CHECK(out.size() == 3);
  queue.answered(1, out);
  queue.waits(1, out);
  queue.cancel(2, out);
  REQUIRE(out.size() == 4);
  CHECK(std::get<wire::SpawnCancel>(out.back()).request == 2);
}

// Those behind the 256th waited for answers, and were lost with a program that ended at once.
TEST_CASE("kills go at once, however many are said") {
  RequestQueue queue;
  RequestQueue::Messages out;
  const std::size_t many = 4 * RequestQueue::kUnderWay;
  for (std::uint64_t number = 1; number <= many; ++number)
    queue.ask(number, wire::KillAsk{{}, "the test", number}, out);
  CHECK(out.size() == many);
  queue.ask(many + 1, wire::NodesAsk{many + 1}, out);
  CHECK(out.size() == many + 1);
}

// While the head is away they are not answered. Those behind the node's 131,072nd open request were refused
// there, and not said again.
TEST_CASE("no more kills wait at the node than it keeps, and the next ones go as those are answered") {
  RequestQueue queue;
  RequestQueue::Messages out;
  const std::size_t many = RequestQueue::kKills + 3;
  for (std::uint64_t number = 1; number <= many; ++number)
    queue.ask(number, wire::KillAsk{{}, "the test", number}, out);
  CHECK(out.size() == RequestQueue::kKills);
  CHECK(RequestQueue::kKills <= node::Limits().requests / 2);
  queue.ask(many + 1, wire::NodesAsk{many + 1}, out);  // of another kind
  CHECK(out.size() == RequestQueue::kKills + 1);
  for (std::uint64_t number = 1; number <= 3; ++number) queue.answered(number, out);
  REQUIRE(out.size() == many + 1);
  CHECK(std::get<wire::KillAsk>(out.back()).request == many);
}

TEST_CASE("a spawn that is cancelled lets the next one go when it was what held it up") {
  RequestQueue queue;
  RequestQueue::Messages out;
  cluster::ActorSpec large;
  large.payload.resize(RequestQueue::kSpawnBytes);
  queue.ask(1, wire::SpawnAsk{1, {}}, out);
  cluster::ActorSpec some;
  some.payload.resize(1);
  queue.ask(2, wire::SpawnAsk{2, some}, out);
  queue.ask(3, wire::SpawnAsk{3, large}, out);
  queue.ask(4, wire::SpawnAsk{4, {}}, out);
  CHECK(out.size() == 2);
  queue.cancel(3, out);
  REQUIRE(out.size() == 3);
  CHECK(std::get<wire::SpawnAsk>(out.back()).request == 4);
}

// Was: a question about a group that is not ready had a place among all that the head decides. After 256 of
// them nodes(), find() and new groups waited until one was ready.
TEST_CASE("awaited groups hold up no other question, and no other group once the head says that they wait") {
  RequestQueue queue;
  RequestQueue::Messages out;
  const std::size_t many = RequestQueue::kUnderWay + 3;
  for (std::uint64_t number = 1; number <= many; ++number)
    queue.ask(number, wire::GroupAsk{number, cluster::GroupVerb::kAwait, {}, {}}, out);
  CHECK(out.size() == RequestQueue::kUnderWay);
  queue.ask(many + 1, wire::NodesAsk{many + 1}, out);
  queue.ask(many + 2, wire::GroupAsk{many + 2, cluster::GroupVerb::kShow, {}, {}}, out);
  CHECK(out.size() == RequestQueue::kUnderWay + 2);
  queue.waits(1, out);
  queue.waits(1, out);  // for another reason
  CHECK(out.size() == RequestQueue::kUnderWay + 3);
  queue.answered(1, out);  // its place was given back before
  CHECK(out.size() == RequestQueue::kUnderWay + 3);
  queue.answered(2, out);
  CHECK(out.size() == RequestQueue::kUnderWay + 4);
}

// Was: it was asked all the same, and its answer was nobody's: the place was lost for good.
TEST_CASE("a question about a group that is cancelled before its turn is never asked") {
  for (const auto verb : {cluster::GroupVerb::kAwait, cluster::GroupVerb::kMake}) {
    RequestQueue queue;
    RequestQueue::Messages out;
    const std::size_t many = RequestQueue::kUnderWay + 2;
    for (std::uint64_t number = 1; number <= many; ++number)
      queue.ask(number, wire::GroupAsk{number, verb, {}, {}}, out);
    queue.cancel(many - 1, out);
    CHECK(out.size() == RequestQueue::kUnderWay);
    queue.answered(1, out);
    queue.answered(2, out);
    REQUIRE(out.size() == RequestQueue::kUnderWay + 1);
    CHECK(std::get<wire::GroupAsk>(out.back()).request == many);
  }
}
