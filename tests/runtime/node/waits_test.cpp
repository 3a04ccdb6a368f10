// Workers whose tasks wait: what a node tells the head of them, and of how many.
#include "tests/runtime/node/machine_fixture.hpp"

using namespace troupe;
using namespace troupe::node;

namespace {

using F = Fixture;

std::vector<cluster::ActorWaits> told(const Actions& actions) {
  std::vector<cluster::ActorWaits> all;
  for (const auto& action : actions) {
    const auto* tell = std::get_if<TellHead>(&action);
    if (tell != nullptr && std::holds_alternative<cluster::ActorWaits>(tell->event))
      all.push_back(std::get<cluster::ActorWaits>(tell->event));
  }
  return all;
}

/// Of a join.
bool is_listed_as_waiting(const Actions& actions, ActorId actor) {
  for (const cluster::LiveActor& one : F::told<cluster::NodeJoined>(actions)->actors) {
    if (one.actor == actor) return one.waits;
  }
  FAIL("it is not listed");
  return false;
}

}  // namespace

TEST_CASE("the head is told once that a task waits, and once that it goes on; a new head with the join") {
  F f;
  const ProcessId process = f.worker({5});
  const auto waits = told(f.said(process, wire::TaskWaits{true}));
  REQUIRE(waits.size() == 1);
  CHECK((waits[0].node == F::kNode && waits[0].actor == ActorId{5} && waits[0].incarnation == 1));
  CHECK(waits[0].waits);
  CHECK(told(f.said(process, wire::TaskWaits{true})).empty());
  f.on(HeadLost{""});
  CHECK(is_listed_as_waiting(f.on(HeadConnected{}), {5}));
  const auto goes_on = told(f.said(process, wire::TaskWaits{false}));
  REQUIRE(goes_on.size() == 1);
  CHECK_FALSE(goes_on[0].waits);
  CHECK(told(f.said(process, wire::TaskWaits{false})).empty());
  // While the head is away both words are what the next join says.
  f.on(HeadLost{""});
  CHECK(told(f.said(process, wire::TaskWaits{true})).empty());
  CHECK(is_listed_as_waiting(f.on(HeadConnected{}), {5}));
  f.on(HeadLost{""});
  CHECK(told(f.said(process, wire::TaskWaits{false})).empty());
  const Actions joined = f.on(HeadConnected{});
  CHECK_FALSE(is_listed_as_waiting(joined, {5}));
  CHECK(told(joined).empty());
}

TEST_CASE("a process of light actors and a driver have no task that waits") {
  F f;
  const ProcessId shared = f.worker({5}, false);
  CHECK(told(f.said(shared, wire::TaskWaits{true})).empty());
  CHECK(told(f.said(f.driver(), wire::TaskWaits{true})).empty());
  CHECK(f.machine.actors().waiting() == 0);
}

// A thousand tasks that all wait must not become ten thousand processes.
TEST_CASE(
    "so many tasks of a node give their CPUs away; the next keep theirs, are told, and follow in order") {
  Limits limits;
  limits.waiting_tasks = 2;
  F f(limits);
  std::vector<ProcessId> process;
  for (std::uint64_t actor = 1; actor <= 5; ++actor) process.push_back(f.worker({actor}));
  for (std::size_t i = 0; i < 2; ++i) CHECK(told(f.said(process[i], wire::TaskWaits{true})).size() == 1);
  for (std::size_t i = 2; i < 5; ++i) {
    const Actions keeps = f.said(process[i], wire::TaskWaits{true});
    CHECK(told(keeps).empty());
    REQUIRE(F::sent<wire::TaskWaits>(keeps, process[i]) != nullptr);
    CHECK(F::sent<wire::TaskWaits>(keeps, process[i])->others == 2);
  }
  f.on(HeadLost{""});
  CHECK_FALSE(is_listed_as_waiting(f.on(HeadConnected{}), {3}));
  // One goes on: the first of those takes its place.
  const auto next = told(f.said(process[0], wire::TaskWaits{false}));
  REQUIRE(next.size() == 2);
  CHECK((next[0].actor == ActorId{1} && !next[0].waits));
  CHECK((next[1].actor == ActorId{3} && next[1].waits));
  // One that kept its CPUs has none to take back.
  CHECK(told(f.said(process[3], wire::TaskWaits{false})).empty());
  // One dies while it waits: its death says that it waits no longer.
  const Actions died = f.on(ProcessEnded{process[1], "killed"});
  REQUIRE(F::told<cluster::ActorDown>(died)->actor == ActorId{2});
  REQUIRE(told(died).size() == 1);
  CHECK((told(died)[0].actor == ActorId{5} && told(died)[0].waits));
  CHECK(f.machine.actors().waiting() == 2);
  f.on(ProcessEnded{process[2], "killed"});
  f.on(ProcessEnded{process[4], "killed"});
  CHECK(f.machine.actors().waiting() == 0);
}
