// Calls of an actor that is started again when it dies: its place is looked up, and no life's answer is taken
// for another's.
#include <catch2/catch.hpp>

#include "runtime/client/session.hpp"
#include "runtime/host/process.hpp"
#include "tests/runtime/host/fake_node.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using test::FakeNode;

namespace {

const ActorId kActor = placed_actor_id(77, true);
constexpr std::uint64_t kFirst = 20, kSecond = 21;  // the processes of its lives

/// Of the first life: answers only what is asked of all lives.
struct Living {
  explicit Living(int number) : life(number) {}
  int life;
  int noted = 0;
  std::vector<Promise<int>> kept;
  int which() { return life; }
  void note(int n) { noted = 10 * noted + n; }
  int notes() { return noted; }
  Future<int> slowly() {
    Promise<int> answer;
    if (life == 1) kept.push_back(answer);
    if (life == 2) answer.set(life);
    return answer.future();
  }
  /// What another actor's death looks like when it is passed on.
  Future<int> of_another() {
    Promise<int> answer;
    answer.fail({ErrorCode::kActorDied, "the actor is gone", "another one", ""});
    return answer.future();
  }
};

struct Lives {
  explicit Lives(int retries = 0) : max_task_retries(retries) {
    start(kFirst, 1);
    start(kSecond, 2);
    actor.tell<&Living::note>(0);  // asks where it is: nobody is told who did not
  }
  void start(std::uint64_t process, int life) {
    using Entry = detail::ConstructorEntry<Living, int>;
    (void)&Entry::registered;
    auto& made = process == kFirst ? first : second;
    made = node.make(2, process);
    node.tell(2, process, wire::StartActorHere{kActor, true, Entry::kId, wire::encode(life)});
  }
  void lives(std::uint64_t process, std::uint32_t incarnation) {
    node.tell(1, 10,
              wire::ActorAt{
                  {kActor, incarnation, cluster::ActorLife::kLives, {{2}, {process}}, "", max_task_retries}});
  }
  void dies(std::uint64_t process) { node.tell(1, 10, wire::ProcessDown{{{2}, {process}}, "signal 9"}); }
  void is(cluster::ActorLife life, std::uint32_t incarnation) {
    node.tell(1, 10, wire::ActorAt{{kActor, incarnation, life, {}, "signal 9", max_task_retries}});
  }

  const int max_task_retries;
  FakeNode node;
  std::unique_ptr<Process> near = node.make(1, 10), first, second;
  ActorHandle<Living> actor{near.get(), {{2}, {kFirst}, kActor}};
};

/// Sorted: a link that comes back may refuse a call and take the one behind it.
std::string digits(int number) {
  std::string all = std::to_string(number);
  std::sort(all.begin(), all.end());
  return all;
}

ErrorInfo error_of(const Future<int>& future) {
  try {
    future.get(10s);
  } catch (const Error& error) {
    return error.info();
  }
  FAIL("it did not throw");
  return {};
}

}  // namespace

TEST_CASE("calls wait until it is known where the actor lives, and keep their order from life to life") {
  Lives of;
  for (int i = 1; i <= 3; ++i) of.actor.tell<&Living::note>(i);
  const auto before = of.actor.call<&Living::notes>();
  of.lives(kFirst, 1);
  CHECK(before.get(10s) == 123);
  CHECK(of.actor.call<&Living::which>().get(10s) == 1);

  const auto lost = of.actor.call<&Living::slowly>();
  of.dies(kFirst);
  of.is(cluster::ActorLife::kRestarts, 2);
  const ErrorInfo error = error_of(lost);
  CHECK(error.code == ErrorCode::kUnavailable);  // it may have run, and the actor is not dead
  // Was: "look at what the actor does", of an actor that was not there.
  const auto waits = of.actor.call<&Living::which>();
  CHECK_THROWS_WITH(waits.get(0s), Catch::Contains("it still waits: its actor is started again: signal 9"));
  CHECK(error.why.find("signal 9") != std::string::npos);
  for (int i = 4; i <= 6; ++i) of.actor.tell<&Living::note>(i);
  const auto after = of.actor.call<&Living::notes>();
  of.lives(kSecond, 2);
  CHECK(after.get(10s) == 456);
  CHECK(waits.get(10s) == 2);
  CHECK(waits.waits_for().empty());
  CHECK(of.actor.call<&Living::which>().get(10s) == 2);

  const auto last = of.actor.call<&Living::which>();
  CHECK(last.get(10s) == 2);
  of.is(cluster::ActorLife::kEnded, 2);
  CHECK(error_of(of.actor.call<&Living::which>()).code == ErrorCode::kActorDied);
  CHECK(of.near->calls_under_way() == 0);
}

TEST_CASE("a call that died with a life is sent again as often as the actor's options say") {
  Lives of(1);
  of.lives(kFirst, 1);
  const auto slow = of.actor.call<&Living::slowly>();
  CHECK(of.actor.call<&Living::which>().get(10s) == 1);
  of.dies(kFirst);
  const auto next = of.actor.call<&Living::which>();
  SECTION("to the next life, before what was called later") {
    of.is(cluster::ActorLife::kRestarts, 2);
    of.lives(kSecond, 2);
    CHECK(slow.get(10s) == 2);
    CHECK(next.get(10s) == 2);
  }
  SECTION("also if the restart itself was not heard of") {
    of.lives(kSecond, 2);
    CHECK(slow.get(10s) == 2);
  }
  SECTION("but not after the last one") {
    of.is(cluster::ActorLife::kEnded, 1);
    CHECK(error_of(slow).code == ErrorCode::kActorDied);
    CHECK(error_of(next).code == ErrorCode::kActorDied);
  }
}

// A node that was killed is often noticed by its link first, and declared dead later.
TEST_CASE("a call that the link could not take is sent again where it may be, and runs once") {
  Lives of(1);
  of.lives(kFirst, 1);
  CHECK(of.actor.call<&Living::which>().get(10s) == 1);
  of.node.unavailable = 3;
  std::vector<Future<void>> noted;
  for (int i = 1; i <= 3; ++i) noted.push_back(of.actor.call<&Living::note>(i));
  SECTION("by the link that is there again") {
    for (const auto& one : noted) one.get(10s);
    CHECK(digits(of.actor.call<&Living::notes>().get(10s)) == "123");
  }
  SECTION("to the next life, once the death is known") {
    of.dies(kFirst);
    of.is(cluster::ActorLife::kRestarts, 2);
    of.lives(kSecond, 2);
    for (const auto& one : noted) one.get(10s);
    CHECK(digits(of.actor.call<&Living::notes>().get(10s)) == "123");
  }
  SECTION("and fails with the last life") {
    of.is(cluster::ActorLife::kEnded, 1);
    const auto last = of.actor.call<&Living::notes>();
    CHECK(error_of(last).code == ErrorCode::kActorDied);
  }
}

TEST_CASE("a call that the link could not take fails where it may not be sent again") {
  Lives of;
  of.lives(kFirst, 1);
  CHECK(of.actor.call<&Living::which>().get(10s) == 1);
  of.node.unavailable = 1;
  CHECK(error_of(of.actor.call<&Living::which>()).code == ErrorCode::kUnavailable);
  CHECK(of.actor.call<&Living::which>().get(10s) == 1);
}

TEST_CASE("the death of another actor that a method passes on is not the death of this one") {
  Lives of;
  of.lives(kFirst, 1);
  const ErrorInfo error = error_of(of.actor.call<&Living::of_another>());
  CHECK(error.code == ErrorCode::kActorDied);
  CHECK(error.origin.find("of_another") != std::string::npos);
  CHECK(of.actor.call<&Living::which>().get(10s) == 1);
}

TEST_CASE("monitors are told of each death, and whether another life follows") {
  Lives of;
  const Session session(*of.near);
  std::vector<std::string> deaths;
  Promise<std::string> gone;
  Promise<void> once;
  session.monitor(of.actor, [&deaths, once](const Death& death) mutable {
    deaths.push_back(death.reason + (death.restarts ? ", restarts" : ", ends"));
    once.set();
  });
  session.monitor(of.actor, [gone](const std::string& reason) mutable { gone.set(reason); });
  of.lives(kFirst, 1);
  of.is(cluster::ActorLife::kRestarts, 2);
  once.future().get(10s);
  CHECK_FALSE(gone.future().ready());
  of.lives(kSecond, 2);
  of.is(cluster::ActorLife::kEnded, 2);
  CHECK(gone.future().get(10s) == "signal 9");
  CHECK(deaths == std::vector<std::string>{"signal 9, restarts", "signal 9, ends"});
}

TEST_CASE("who loses its node hears so of all calls, those that wait too") {
  FakeNode node;
  auto near = node.make(1, 10);
  const ActorHandle<Living> actor{near.get(), {{2}, {kFirst}, kActor}};
  const auto waits = actor.call<&Living::which>();
  node.drop(1, 10);
  CHECK(error_of(waits).code == ErrorCode::kUnavailable);
  CHECK(error_of(actor.call<&Living::which>()).code == ErrorCode::kUnavailable);
}
