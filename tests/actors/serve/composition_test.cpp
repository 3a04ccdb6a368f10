// Deployments that ask others: who may ask whom, and what a call that failed means for who asked.
#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "actors/serve/call_graph.hpp"
#include "actors/serve/handle.hpp"

using namespace troupe;
using namespace troupe::serve;
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

std::string why(const std::optional<ErrorInfo>& error) {
  return error ? error->message() : "";
}

struct Pipeline {
  Handle first;
  std::vector<Handle> others;
  std::map<std::string, Handle> by_class;
  int number = 0;
};

}  // namespace

TEST_CASE("a deployment asks those that run, under names of their own, and never itself") {
  CallGraph graph;
  CHECK(why(graph.add(1, "leaf", {})) == "");
  CHECK(why(graph.add(2, "middle", {"leaf"})) == "");
  CHECK(why(graph.add(3, "top", {"middle", "leaf"})) == "");
  CHECK_THAT(
      why(graph.add(4, "other", {"absent"})),
      Contains("cannot serve 'other': it asks 'absent', which this program does not run (run that first; "
               "there is 'leaf', 'middle', 'top')"));
  CHECK_THAT(why(graph.add(4, "leaf", {})), Contains("asks the deployment that has this name"));
  CHECK(why(graph.add(5, "top", {})) == "");  // on another port; nobody asks it
  CHECK_THAT(why(graph.add(6, "both", {"top"})), Contains("two deployments of this program have that name"));
  CHECK(graph.find("middle") == CallGraph::Id{2});
  CHECK(!graph.find("other"));

  CHECK(graph.callers_of("leaf") == std::vector<CallGraph::Id>{2, 3});
  CHECK(graph.asked_by(3) == std::vector<CallGraph::Id>{1, 2});
  CHECK(graph.all_callers_of("leaf") == std::vector<CallGraph::Id>{2, 3});
  graph.remove(3);
  CHECK(graph.all_callers_of("leaf") == std::vector<CallGraph::Id>{2});
  CHECK(graph.all_callers_of("middle").empty());
}

TEST_CASE("a cycle is refused, and named from end to end") {
  CallGraph graph;
  CHECK_THAT(
      why(graph.add(1, "one", {"one"})),
      Contains("cannot serve 'one': it would ask itself: it asks 'one' (take a handle out, so that calls "
               "go one way)"));
  REQUIRE(why(graph.add(1, "leaf", {})) == "");
  REQUIRE(why(graph.add(2, "middle", {"leaf"})) == "");
  REQUIRE(why(graph.add(3, "top", {"middle"})) == "");
  // One that ended, and runs again as another struct: those that ask it go on by its name.
  graph.remove(1);
  CHECK_THAT(why(graph.add(4, "leaf", {"top"})),
             Contains("it asks 'top', which asks 'middle', which asks 'leaf' (take a handle out"));
  CHECK(!graph.find("leaf"));
  CHECK(why(graph.add(4, "leaf", {})) == "");
}

TEST_CASE("the handles of a struct are found at any depth, and cross as their names") {
  const Pipeline sent{
      Handle("a"), {Handle("b"), Handle("c")}, {{"cat", Handle("d")}, {"dog", Handle("a")}}, 7};
  CHECK(asked_by(sent) == std::set<std::string>{"a", "b", "c", "d"});
  CHECK(asked_by(7).empty());
  const auto back = wire::decode<Pipeline>(wire::encode(sent));
  REQUIRE(back);
  CHECK(back->others[1].deployment() == "c");
  CHECK(back->by_class.at("cat").deployment() == "d");
}

TEST_CASE("a handle asks for a struct that computes, and for nobody else") {
  const Handle handle("digits");
  const data::Tensor one(data::DType::kFloat32, {1, 2});
  CHECK_THROWS_WITH(handle.predict(one), Contains("cannot ask 'digits'") && Contains("Served::predict"));
  const ReplicaCalls none;
  const CallScope scope(none, MonotonicClock().now() + 1s);
  CHECK_THROWS_AS(handle.predict(one), BadConfig);
}

TEST_CASE("backpressure of the other deployment fails a whole batch; a bad request fails alone") {
  const CallFailed full("digits", Failure::kQueueFull, "1024 rows wait", 3s);
  CHECK(full.code() == ErrorCode::kLimit);
  CHECK(fails_all(full));
  const Verdict verdict = verdict_of(full);
  CHECK(verdict.what == Verdict::What::kRefused);
  CHECK(verdict.failure == Failure::kQueueFull);
  CHECK(Duration(verdict.retry_after_ns) == 3s);
  CHECK(verdict.why == "'digits' has no answer: 1024 rows wait");
  CHECK(fails_all(CallFailed("digits", Failure::kUnavailable, "it ends")));
  CHECK(fails_all(CallFailed("digits", Failure::kDeadline, "no time")));
  CHECK(!fails_all(CallFailed("digits", Failure::kModel, "a number above 100")));
  CHECK(!fails_all(CallFailed("digits", Failure::kReplicaDied, "two replicas died")));
}
