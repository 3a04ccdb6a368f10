// Futures and promises.
#include "runtime/client/future.hpp"

#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "runtime/client/session.hpp"
#include "runtime/client/start_group.hpp"
#include "runtime/host/this_thread.hpp"
#include "tests/runtime/client/local_gate.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using testing::LocalGate;

namespace {

/// A light actor.
struct Reader {
  static inline Future<int> asked;
  int look() { return asked.answer(); }
  Task<int> read() { co_return co_await asked; }
};

}  // namespace

// A call with references, or of an actor that saves, is answered by way of another state.
TEST_CASE("what an answer waits for is known behind what passes it on, too") {
  const auto own = std::make_shared<CallState>(nullptr), answer = std::make_shared<CallState>(nullptr);
  const auto other = std::make_shared<CallState>(nullptr);
  ActorContext* const turn = reinterpret_cast<ActorContext*>(&this_thread);  // any address
  own->set_own_call(turn);
  const auto waits = [&] {
    this_thread.turn = turn;
    bool told = false;
    try {
      own->wait(1ms);
    } catch (const BadConfig&) {
      told = true;
    }
    this_thread.turn = nullptr;
    return !told;
  };
  CHECK_FALSE(waits());
  Responder outer(own);
  outer.passes_on(*answer);
  Responder(answer).comes_with(other);
  CHECK(waits());
  other->set_own_call(turn);
  CHECK_FALSE(waits());
}

TEST_CASE("a promise fills its future once") {
  Promise<std::string> promise;
  const auto future = promise.future();
  CHECK_FALSE(future.ready());
  CHECK_THROWS_AS(future.get(1ms), Timeout);
  CHECK_FALSE(future.wait(1ms));
  for (const auto timeout : {Duration(0), Duration(-1)}) {  // was: "-0.000000 s passed"
    try {
      future.get(timeout);
      FAIL("it did not throw");
    } catch (const Timeout& error) {
      CHECK(std::string(error.what()).find("within 0 s") != std::string::npos);
    }
  }
  promise.set("first");
  promise.set("second");
  promise.fail({ErrorCode::kInternal, "third", "", ""});
  CHECK(future.wait(Duration(0)));
  CHECK(future.get() == "first");
  Promise<void> done;
  done.set();
  CHECK_NOTHROW(done.future().get());
}

// Was: they went at once, and the callee, which had not begun, found them gone.
TEST_CASE("what a cancelled call refers to is kept until its callee has answered") {
  auto object = std::make_shared<int>(1);
  const std::weak_ptr<int> lives = object;
  CallState call(nullptr);
  call.keep({std::move(object)});
  call.cancel(detail::not_wanted());
  CHECK(call.failure()->code == ErrorCode::kCancelled);
  CHECK_FALSE(lives.expired());
  CHECK_FALSE(call.resolve(wire::Bytes{}));
  CHECK(lives.expired());
  CHECK(call.failure()->code == ErrorCode::kCancelled);

  object = std::make_shared<int>(2);
  const std::weak_ptr<int> of_task = object;
  CallState task(nullptr);  // who cancels it ends it
  task.set_on_cancel([](Duration) {});
  task.keep({std::move(object)});
  task.cancel(detail::not_wanted());
  CHECK(of_task.expired());
}

// Was: spawn_group was silent for two minutes, and then threw.
TEST_CASE("who waits for a spawn is told what it waits for, each reason once") {
  CallState spawn(nullptr);
  std::vector<std::string> said;
  const auto say = [&](const std::string& why) {
    said.push_back(why);
    if (said.size() == 1) spawn.set_waits_for("no GPU");
    if (said.size() == 2) spawn.resolve(wire::Bytes{});
  };
  CHECK_FALSE(detail::wait_and_say(spawn, 5ms, 1ms, say));
  CHECK(said.empty());  // nothing is known
  spawn.set_waits_for("no CPU");
  CHECK(detail::wait_and_say(spawn, 60s, 1ms, say));
  CHECK(said == std::vector<std::string>{"no CPU", "no GPU"});
  CHECK(detail::wait_and_say(spawn, -1s, 1ms, say));
}

TEST_CASE("a dropped promise fails its future") {
  // A caller of a method whose promise was lost waited for an hour.
  Future<int> future;
  {
    Promise<int> promise;
    future = promise.future();
    const Promise<int> copy = promise;
    promise = Promise<int>();
    CHECK_FALSE(future.ready());
  }
  CHECK_THROWS_AS(future.get(), TaskFailed);
}

TEST_CASE("a waiting thread is woken by the answer of another one") {
  Promise<int> promise;
  std::thread other([promise]() mutable { promise.set(7); });
  CHECK(promise.future().get(60s) == 7);
  other.join();
}

// A task's own task whose worker died came back while the task waited: nobody looked for it any more, and
// both waited for good for the CPU that the first one held.
TEST_CASE("who helps while it waits looks again for what there is to do") {
  struct LateHelper final : Helper {
    explicit LateHelper(std::shared_ptr<CallState> of) : state(std::move(of)) {}
    std::uint64_t number() const override { return 1; }
    void help(const CallState&, Instant) override {
      if (++looks == 2) state->resolve(wire::Bytes{});
    }
    void goes_on() override { ++ends; }
    std::shared_ptr<CallState> state;
    int looks = 0, ends = 0;
  };
  const auto state = std::make_shared<CallState>(nullptr);
  LateHelper helper(state);
  Helper* const before = std::exchange(this_thread.helper, &helper);
  CHECK(state->wait(60s));
  CHECK(helper.looks == 2);
  CHECK(helper.ends == 1);
  CHECK_FALSE(CallState(nullptr).wait(1ms));
  CHECK(helper.ends == 2);
  this_thread.helper = before;
}

TEST_CASE("when_all gathers answers in order, whatever order they come in") {
  std::vector<Promise<std::string>> promises(3);
  std::vector<Future<std::string>> futures;
  for (const auto& promise : promises) futures.push_back(promise.future());
  const auto all = when_all(futures);
  for (const int i : {2, 0, 1}) {
    CHECK_FALSE(all.ready());
    promises[static_cast<std::size_t>(i)].set(std::to_string(i));
  }
  CHECK(all.get() == std::vector<std::string>{"0", "1", "2"});
  CHECK(when_all(std::vector<Future<int>>{}).get().empty());
}

TEST_CASE("when_all fails with the first failure, before the other answers are there") {
  Promise<float> good, bad;
  const auto all = when_all(std::vector{good.future(), bad.future()});
  bad.fail({ErrorCode::kActorDied, "gone", "", ""});
  CHECK_THROWS_AS(all.get(), ActorDied);
  good.set(1.0F);
  Promise<void> one, two;
  const auto done = when_all(std::vector{one.future(), two.future()});
  one.set();
  CHECK_FALSE(done.ready());
  two.set();
  CHECK_NOTHROW(done.get());
}

TEST_CASE("wait gives as many as are wanted, in order, or those that are ready in time") {
  testing::LocalGate gate;
  std::vector<Promise<int>> promises(4);
  std::vector<Future<int>> futures;
  for (const auto& promise : promises) futures.push_back(promise.future());
  const auto two = wait(futures, 2), three = wait(futures, 3, 1s), all = wait(futures, 4);
  promises[3].set(3);
  CHECK_FALSE(two.ready());
  promises[1].fail({ErrorCode::kActorDied, "gone", "", ""});  // a failure is an answer
  CHECK(two.get().ready == std::vector<std::size_t>{1, 3});
  CHECK(two.get().pending == std::vector<std::size_t>{0, 2});
  CHECK(wait(futures).get().ready == std::vector<std::size_t>{1});  // one, though two are ready
  CHECK(wait(futures, 3, 0s).get().ready == std::vector<std::size_t>{1, 3});
  CHECK_FALSE(three.ready());
  REQUIRE(gate.delayed.size() == 1);
  gate.delayed[0]();  // a second has passed
  CHECK(three.get().ready == std::vector<std::size_t>{1, 3});
  // Was: each wait for an hour left its timer for that hour, though it was answered at once.
  const auto hour = wait(futures, 3, 1h);
  REQUIRE(gate.delayed.size() == 2);
  const auto a_second_later = [&](std::size_t timer) { std::function<void()>(gate.delayed[timer])(); };
  a_second_later(1);  // it still waits
  REQUIRE(gate.delayed.size() == 3);
  promises[0].set(0), promises[2].set(2);
  CHECK(hour.get().ready == std::vector<std::size_t>{0, 1, 3});
  a_second_later(2);
  CHECK(gate.delayed.size() == 3);
  CHECK(all.get().ready == std::vector<std::size_t>{0, 1, 2, 3});
  CHECK(all.get().pending.empty());
  for (const std::size_t count : {0, 5}) CHECK_THROWS_AS(wait(futures, count), BadConfig);
  CHECK_THROWS_AS(wait(std::vector<Future<int>>{}), BadConfig);
  CHECK_THROWS_AS(wait(std::vector<Future<int>>(1)), BadConfig);
}

// Each wait for the next of many left a callback in all others: memory of the square of their number.
TEST_CASE("waiting for one after another leaves nothing in those that are pending") {
  std::vector<Promise<int>> promises(50);
  std::vector<Future<int>> futures;
  for (const auto& promise : promises) futures.push_back(promise.future());
  const auto state = std::weak_ptr(futures.back().state());
  const auto held = state.use_count();
  for (std::size_t i = 0; i + 1 < promises.size(); ++i) {
    const auto any = when_any(futures);
    const auto some = wait(futures);
    const auto forgotten = wait(futures, futures.size());
    promises[i].set(1);
    CHECK(any.get() == 0);
    CHECK(some.get().ready == std::vector<std::size_t>{0});
    futures.erase(futures.begin());
  }
  CHECK(state.use_count() == held);
}

TEST_CASE("then is called with the answer, and with the failure") {
  int seen = 0;
  Promise<int> promise;
  promise.future().then([&](Result<int> value) { seen = *value; });
  promise.set(3);
  CHECK(seen == 3);
  promise.future().then([&](Result<int> value) { seen += *value; });
  CHECK(seen == 6);
}

// Was: an answer that nobody read lay in its caller's memory.
TEST_CASE("a stored answer is loaded by who reads it, once, and let go of when nobody does") {
  std::atomic<int> loads = 0;
  std::vector<std::function<void(Outcome)>> waiting;
  auto stored = std::make_shared<int>();
  const std::weak_ptr<int> held = stored;
  auto load = [&, stored = std::exchange(stored, nullptr)](std::function<void(Outcome)> then) {
    waiting.push_back(std::move(then));
    ++loads;
  };
  auto state = std::make_shared<CallState>(nullptr);
  Future<int> future(state);
  int seen = 0;
  state->watch(&seen, [&] { ++seen; });
  CHECK_FALSE(state->is_awaited());
  REQUIRE(state->resolve_stored(std::move(load)));
  CHECK_FALSE(state->resolve(wire::encode(9)));
  CHECK(seen == 1);
  CHECK(future.ready());
  CHECK_FALSE(state->is_here());
  CHECK(state->failure() == nullptr);
  CHECK(loads == 0);
  SECTION("it is read") {
    std::vector<int> got;
    future.then([&](Result<int> answer) { got.push_back(answer.value()); });
    future.then([&](Result<int> answer) { got.push_back(answer.value()); });
    CHECK_FALSE(state->load(1ms));
    REQUIRE(loads == 1);
    CHECK(got.empty());
    waiting[0](wire::encode(7));
    CHECK(got == std::vector<int>{7, 7});
    CHECK(future.get(Duration(0)) == 7);
    CHECK(loads == 1);
  }
  SECTION("it cannot be read") {
    std::thread reader([&] {
      while (loads == 0) std::this_thread::yield();
      waiting[0](ErrorInfo{ErrorCode::kObjectLost, "it is lost", "", ""});
    });
    const auto gone = std::make_shared<CallState>(nullptr);
    gone->resolve_as(*state);
    state = gone;
    CHECK_THROWS_AS(Future<int>(gone).get(60s), ObjectLost);
    CHECK(gone->failure()->what == "it is lost");
    reader.join();
  }
  SECTION("a light actor reads it") {
    LocalGate gate;
    const auto actor = Session(gate).spawn<Reader>();
    Reader::asked = future;
    CHECK_THROWS_AS(actor.call<&Reader::look>().get(60s), BadConfig);
    REQUIRE(loads == 1);
    const auto answer = actor.call<&Reader::read>();
    CHECK_FALSE(answer.ready());
    waiting[0](wire::encode(8));
    CHECK(answer.get(60s) == 8);
    Reader::asked = {};
  }
  SECTION("nobody reads it") {
    auto next = std::make_shared<CallState>(nullptr);
    next->resolve_as(*state);
    CHECK(next->ready());
    CHECK_FALSE(held.expired());
    next = nullptr;
    CHECK(held.expired());
    CHECK(loads == 0);
  }
}

TEST_CASE("an answer is awaited while somebody waits for it, here or where it goes") {
  const auto state = std::make_shared<CallState>(nullptr), next = std::make_shared<CallState>(nullptr);
  state->passes_on_to(next);
  CHECK_FALSE(state->is_awaited());
  std::thread waits([&] { next->wait(60s); });
  while (!state->is_awaited()) std::this_thread::yield();
  next->resolve(wire::Bytes{});
  waits.join();
  CHECK_FALSE(state->is_awaited());
  state->on_ready([] {});
  CHECK(state->is_awaited());
}

TEST_CASE("a chain of a hundred thousand futures resolves on a small stack") {
  // Story: ten thousand calls, each of which waited for the next, ended their process with a stack overflow.
  constexpr std::size_t kDeep = 100'000;
  const auto chain = [](bool drop) {
    std::vector<Promise<int>> promises(kDeep);
    const auto last = promises.back().future();
    for (std::size_t i = 0; i + 1 < kDeep; ++i) {
      promises[i].future().then([next = promises[i + 1]](const Result<int>& value) mutable {
        if (value) next.set(*value + 1);  // otherwise its last copy goes here
      });
    }
    Promise<int> first = promises[0];
    promises.clear();
    if (!drop) first.set(1);
    first = Promise<int>();
    return last;
  };
  CHECK(chain(false).get(60s) == kDeep);
  CHECK_THROWS_AS(chain(true).get(60s), TaskFailed);
}

// Was: a stack overflow, where no session was to give each callback a turn.
TEST_CASE("a hundred thousand callbacks, each set by the one before it, run on a small stack") {
  constexpr int kDeep = 100'000;
  Promise<int> ready;
  ready.set(1);
  int calls = 0;
  std::function<void(const Result<int>&)> next = [&](const Result<int>&) {
    if (++calls < kDeep) ready.future().then(next);
  };
  ready.future().then(next);
  CHECK(calls == kDeep);
}

TEST_CASE("a callback that throws keeps no other from being called") {
  Promise<int> promise;
  int seen = 0;
  promise.future().then([](const Result<int>&) { throw std::runtime_error("no"); });
  promise.future().then([&](const Result<int>& value) { seen = *value; });
  CHECK_THROWS_AS(promise.set(3), std::runtime_error);
  CHECK(seen == 3);
}

TEST_CASE("a promise and a future that were moved from say so") {
  // Was: SIGSEGV.
  Promise<int> promise;
  const Promise<int> taken = std::move(promise);
  CHECK_THROWS_AS(promise.set(1), BadConfig);    // NOLINT: used after it was moved
  CHECK_THROWS_AS(promise.fail({}), BadConfig);  // NOLINT
  CHECK_THROWS_AS(promise.future(), BadConfig);  // NOLINT
  Promise<void> done;
  const Promise<void> other = std::move(done);
  CHECK_THROWS_AS(done.set(), BadConfig);  // NOLINT
  Future<int> future = taken.future();
  const Future<int> moved = std::move(future);
  CHECK_THROWS_AS(future.get(), BadConfig);                            // NOLINT
  CHECK_THROWS_AS(future.ready(), BadConfig);                          // NOLINT
  CHECK_THROWS_AS(future.then([](const Result<int>&) {}), BadConfig);  // NOLINT
}
