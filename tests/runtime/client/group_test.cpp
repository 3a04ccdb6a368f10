// Groups of actors: their shapes, and calls of all, of one and of any.
#include <catch2/catch.hpp>

#include "runtime/client/session.hpp"
#include "tests/runtime/client/local_gate.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using troupe::testing::LocalGate;

namespace {

struct Member {
  std::size_t place = 0;
  std::string text;
  std::vector<Promise<int>> promises;
  Member() = default;
  Member(std::size_t at, std::string name) : place(at), text(std::move(name)) {
    if (text == "picky" && place == 2) throw std::invalid_argument("not at 2");
  }
  std::string name(const std::string& before) { return before + text + std::to_string(place); }
  std::size_t scaled(std::size_t by) { return place * by; }
  std::size_t odd() {
    if (place % 2 == 1) throw std::out_of_range("odd");
    return place;
  }
  std::size_t throws_at(std::size_t which) {
    if (place == which) throw std::out_of_range("not I");
    return place;
  }
  void nothing() {}
  Future<int> later() { return promises.emplace_back().future(); }
  void answer() { promises.back().set(int(place)); }
  std::size_t others(const ActorGroup<Member>& all) { return all.size() * 10 + all.slice("row", 1).size(); }
};

using Places = std::vector<std::size_t>;

/// The second spawn is refused, and the others have no answer.
struct RefusingGate : LocalGate {
  RefusingGate() { answers_spawns = false; }
  std::shared_ptr<CallState> spawn(ActorSpawn spawn) override {
    auto state = LocalGate::spawn(std::move(spawn));
    if (spawns == 2) state->resolve(ErrorInfo{ErrorCode::kIo, "cannot spawn", "the disk is full", ""});
    return state;
  }
};

std::size_t sum_of(std::size_t a, std::size_t b) {
  return a + b;
}
int sum_of_ints(int a, int b) {
  return a + b;
}
std::size_t no_sum(std::size_t, std::size_t) {
  throw std::length_error("no sum");
}

}  // namespace

TEST_CASE("shapes: places, coordinates, names and slices") {
  const GroupShape shape{{"host", 2}, {"gpu", 3}};
  CHECK(shape.size() == 6);
  CHECK(shape.place_of({1, 2}) == 5);
  CHECK(shape.place_of({0, 1}) == 1);
  CHECK(shape.name_of(5) == "member 5 (host=1, gpu=2)");
  CHECK(GroupShape(4).name_of(3) == "member 3");
  CHECK(shape.slice("host", 1) == std::pair(Places{3, 4, 5}, GroupShape{{"gpu", 3}}));
  CHECK(shape.slice("gpu", 2) == std::pair(Places{2, 5}, GroupShape{{"host", 2}}));
  CHECK(GroupShape(4).slice("member", 2) == std::pair(Places{2}, GroupShape(1)));
  CHECK(GroupShape().size() == 0);
  CHECK_THROWS_WITH(shape.place_of({1}), Catch::Contains("host=2 gpu=3"));
  CHECK_THROWS_AS(shape.place_of({2, 0}), BadConfig);
  CHECK_THROWS_AS(shape.slice("gpu", 3), BadConfig);
  CHECK_THROWS_AS(shape.slice("rank", 0), BadConfig);
  CHECK_THROWS_AS(GroupShape(0), BadConfig);
  CHECK_THROWS_WITH(GroupShape(std::size_t(-3)), Catch::Contains("member = -3 ("));
  CHECK_THROWS_AS((GroupShape{{"a", 1U << 20}, {"b", 1ULL << 44}}), BadConfig);
  CHECK_THROWS_AS((GroupShape{{"a", 1}, {"a", 2}}), BadConfig);
  CHECK_THROWS_AS((GroupShape{{"", 1}}), BadConfig);
}

// Was: they were waited for in order, so a refusal was heard of when those before it had started, or never.
TEST_CASE("a member that is refused takes the others back at once") {
  RefusingGate gate;
  const Session session(gate);
  CHECK_THROWS_WITH(session.spawn_group<Member>(4),
                    Catch::StartsWith("member 1 of 4: cannot spawn: the disk is full"));
  CHECK(gate.spawns == 4);
  CHECK(gate.cancelled == 3);
}

TEST_CASE("a call of all members has their answers in order, and its failure names the member") {
  LocalGate gate;
  const Session session(gate);
  const auto group = session.spawn_group<Member>({{"row", 2}, {"column", 3}}, {}, kPlace, "m");
  REQUIRE(group.size() == 6);
  CHECK(group.call_all<&Member::name>("a ").get() ==
        std::vector<std::string>{"a m0", "a m1", "a m2", "a m3", "a m4", "a m5"});
  CHECK(group.call_all<&Member::scaled>(2).get() == Places{0, 2, 4, 6, 8, 10});
  CHECK(group.slice("column", 1).call_all<&Member::scaled>(1).get() == Places{1, 4});
  CHECK(group.without({0, 3}).call_all<&Member::scaled>(1).get() == Places{1, 2, 4, 5});
  CHECK_THROWS_WITH(group.without({0, 6}),
                    Catch::Contains("a group has no member 6: it has 6, numbered from 0"));
  CHECK(group.at({1, 0}).call<&Member::scaled>(1).get() == 3);
  CHECK(group[4].call<&Member::others>(group).get() == 63);  // it crosses processes
  group.call_all<&Member::nothing>().get();
  CHECK_THROWS_WITH(group.call_all<&Member::odd>().get(),
                    Catch::Contains("member 1 (row=0, column=1)") && Catch::Contains("odd"));
  CHECK_THROWS_WITH(group.slice("row", 1).call_all<&Member::odd>().get(),
                    Catch::Contains("member 3 (row=1, column=0)"));
  const auto outcomes = group.call_all<&Member::odd>().outcomes();
  for (std::size_t i = 0; i < 6; ++i) CHECK(outcomes[i].ok() == (i % 2 == 0));
  CHECK(troupe::wait(group.call_all<&Member::scaled>(1), 3).get().ready == Places{0, 1, 2});
  const auto silent = group.call_all<&Member::later>();
  group[1].call<&Member::answer>().get();
  CHECK_THROWS_WITH(silent.get(1ms),
                    Catch::Contains("member 0 (row=0, column=0), member 2 (row=0, column=2)"));
  const auto outcomes_in_time = silent.outcomes(1ms);
  CHECK(outcomes_in_time[1].value() == 1);
  CHECK_THAT(outcomes_in_time[2].error().message(),
             Catch::Contains("member 2 (row=0, column=2) gave no answer: none came within 0.001 s"));
  CHECK(ActorGroup<Member>().call_all<&Member::scaled>(1).get().empty());
  CHECK_THROWS_AS(ActorGroup<Member>({group[0]}, GroupShape(2)), BadConfig);
}

// It was named by each that passed it on, or, as the first of all, by nobody.
TEST_CASE("the failure of a fold names the member that failed, once") {
  LocalGate gate;
  const Session session(gate);
  const auto group = session.spawn_group<Member>(11, {}, kPlace, "m");
  const auto failure = [](const auto& answer) -> std::string {
    try {
      answer.get(1ms);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(group.call_fold<&Member::throws_at, &sum_of>(99).get() == 55);
  for (const std::size_t place : Places{0, 1, 7, 10}) {
    const std::string why = failure(group.call_fold<&Member::throws_at, &sum_of>(place));
    CHECK_THAT(why, Catch::StartsWith("member " + std::to_string(place) + ": ") &&
                        Catch::Contains("throws_at threw std::out_of_range: not I"));
    CHECK(why.find("member", 1) == std::string::npos);
  }
  CHECK_THAT(failure(group.call_fold<&Member::scaled, &no_sum>(1)),
             Catch::StartsWith("member ") && Catch::Contains(": what combines the answers of ") &&
                 Catch::Contains("scaled threw std::length_error: no sum"));
  const auto silent = group.call_fold<&Member::later, &sum_of_ints>();
  CHECK_THAT(failure(silent),
             Catch::StartsWith("a fold gave no answer: within 0.001 s none came from member 0,"));
  for (const auto& member : group) member.call<&Member::answer>().get();
  CHECK(silent.get() == 55);
  for (const std::size_t place : Places{9, 0}) {
    session.kill(group[place]);
    CHECK_THAT(failure(group.call_fold<&Member::throws_at, &sum_of>(99)),
               Catch::StartsWith("member " + std::to_string(place) + ": the actor is gone"));
  }
}

TEST_CASE("a call of any member goes to the living one with the fewest calls") {
  LocalGate gate;
  const Session session(gate);
  const auto group = session.spawn_group<Member>(3, {}, kPlace, "m");
  std::vector<Future<int>> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(group.call_any<&Member::later>());
  for (const auto& member : group) CHECK_NOTHROW(member.call<&Member::answer>().get());
  for (int i = 0; i < 3; ++i) CHECK(waiting[std::size_t(i)].get() == i);  // one each
  const auto busy = group.call_any<&Member::later>();
  CHECK(group.call_any<&Member::scaled>(1).get() == 1);
  session.kill(group[1]);
  CHECK_THROWS_AS(group.call_any<&Member::scaled>(1).get(), ActorDied);  // nobody knew
  CHECK(group.call_any<&Member::scaled>(1).get() == 2);
  group.kill();
  CHECK_THROWS_AS(group.call_any<&Member::scaled>(1).get(), ActorDied);
  CHECK_THROWS_AS(ActorGroup<Member>().call_any<&Member::scaled>(1), BadConfig);
}

TEST_CASE("a group of which a member cannot be started is not there, and says which") {
  LocalGate gate;
  const Session session(gate);
  CHECK_THROWS_WITH(session.spawn_group<Member>(4, {}, kPlace, "picky"),
                    Catch::Contains("member 2 of 4") && Catch::Contains("not at 2"));
  CHECK(gate.living() == 0);
  CHECK_THROWS_AS(session.spawn_group<Member>(2, {.num_cpus = -1}, kPlace, "m"), BadConfig);
  const auto named = session.spawn_group<Member>(2, {.name = "shard"}, kPlace, "m");
  CHECK(session.find<Member>("shard/1") == named[1]);
}
