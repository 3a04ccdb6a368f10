// Futures and promises.
#include "runtime/client/future.hpp"

#include <catch2/catch.hpp>
#include <thread>

using namespace troupe;
using namespace std::chrono_literals;

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

TEST_CASE("then is called with the answer, and with the failure") {
  int seen = 0;
  Promise<int> promise;
  promise.future().then([&](Result<int> value) { seen = *value; });
  promise.set(3);
  CHECK(seen == 3);
  promise.future().then([&](Result<int> value) { seen += *value; });
  CHECK(seen == 6);
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
