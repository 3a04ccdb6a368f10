// Methods that wait by co_await: the mailbox goes on meanwhile, chains take no stack, and what still waits
// when its actor ends is destroyed before the object, and its caller hears of it.
#include <catch2/catch.hpp>

#include "runtime/client/session.hpp"
#include "runtime/host/process.hpp"
#include "tests/runtime/host/fake_node.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using test::FakeNode;

namespace {

std::atomic<int> frames{0};
std::atomic<bool> object_outlived_frames{false};

/// A local variable of a coroutine.
struct Counted {
  Counted() { ++frames; }
  ~Counted() { --frames; }
  Counted(const Counted&) = delete;
};

struct Gate {
  std::map<int, Promise<int>> promises;
  Future<int> wait(int of) { return promises[of].future(); }
  void open(int of, int value) { promises[of].set(value); }
  void fail(int of) { promises[of].fail({ErrorCode::kUnavailable, "the gate is broken", "rust", "oil it"}); }
  int throws() { throw std::out_of_range("there is no 7"); }
};

struct Asker {
  ActorHandle<Gate> gate;
  int answers = 0;
  explicit Asker(ActorHandle<Gate> to) : gate(std::move(to)) {}
  ~Asker() { object_outlived_frames = frames == 0; }

  int answered() { return answers; }
  /// Its parameter refers to the arguments of the call, which live as long as it does.
  Task<std::string> ask(const std::string& name, std::string_view more) {
    const Counted counted;
    const int value = co_await gate.call<&Gate::wait>(0);
    ++answers;
    co_return name + std::string(more) + std::to_string(value);
  }
  Task<> nothing() { co_return; }
  Task<int> deep(int levels) {
    if (levels == 0) co_return co_await gate.call<&Gate::wait>(0);
    const int below = co_await deep(levels - 1);
    co_return below + 1;
  }
  Task<int> hop(ActorHandle<Asker> next, int left) {
    if (left == 0) co_return 0;
    const auto self = this_actor().self<Asker>();
    const int below = co_await next.call<&Asker::hop>(self, left - 1);
    co_return below + 1;
  }
  Task<int> inner() { co_return co_await gate.call<&Gate::throws>(); }
  Task<int> rethrows() { co_return co_await inner(); }
  Task<std::string> catches() {
    std::string text;
    try {
      co_await inner();
    } catch (const TaskFailed& error) {
      text = error.info().type + ": " + error.info().why;
    }
    co_await nothing();
    co_return text;
  }
  Task<std::vector<int>> all() {
    std::vector<Future<int>> asked{gate.call<&Gate::wait>(1), gate.call<&Gate::wait>(2)};
    co_return co_await when_all(asked);
  }
  /// The index of the first, and how it ended.
  Task<std::string> any() {
    std::vector<Future<int>> asked{gate.call<&Gate::wait>(1), gate.call<&Gate::wait>(2)};
    const std::size_t first = co_await when_any(asked);
    std::string text = std::to_string(first) + " ";
    try {
      text += std::to_string(co_await asked[first]);
    } catch (const Error& error) {
      text += error.info().why;
    }
    co_return text;
  }
  /// Which of two are ready once so many are, or the time is over.
  Task<std::vector<std::size_t>> some(std::size_t count, std::int64_t timeout_ms) {
    std::vector<Future<int>> asked{gate.call<&Gate::wait>(1), gate.call<&Gate::wait>(2)};
    const Waited waited = co_await troupe::wait(asked, count, std::chrono::milliseconds(timeout_ms));
    co_return waited.ready;
  }
  Task<int> moved_from() {
    Task<int> task = inner();
    Task<int> other = std::move(task);
    co_return co_await std::move(task);
  }
  int waits() { return gate.call<&Gate::wait>(1).get(1s); }
};

template <class F>
ErrorInfo error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.info();
  }
  FAIL("it did not throw");
  return {};
}

struct Host {
  FakeNode node;
  std::unique_ptr<Process> process = node.make(1, 10);
  Session session{*process};
  ActorHandle<Gate> gate = session.spawn<Gate>({.here = true});
  ActorHandle<Asker> asker = session.spawn<Asker>({.here = true}, gate);
};

}  // namespace

TEST_CASE("while a method waits by co_await, the mailbox goes on") {
  Host host;
  std::vector<Future<std::string>> asked;
  for (int i = 0; i < 100; ++i)
    asked.push_back(host.asker.call<&Asker::ask>("a long enough name to be on the heap ", std::to_string(i)));
  CHECK(host.asker.call<&Asker::answered>().get(10s) == 0);  // they all wait, and it answers
  host.gate.call<&Gate::open>(0, 7).get(10s);
  for (int i = 0; i < 100; ++i)
    CHECK(asked[std::size_t(i)].get(10s) ==
          "a long enough name to be on the heap " + std::to_string(i) + "7");
  CHECK(host.asker.call<&Asker::answered>().get(10s) == 100);
  CHECK(frames == 0);
  host.asker.call<&Asker::nothing>().get(10s);
}

TEST_CASE("chains of co_await take no stack, whether they end or their actor does") {
  Host host;
  constexpr int kDeep = 200'000;
  const auto deep = host.asker.call<&Asker::deep>(kDeep);
  SECTION("it ends") {
    host.gate.call<&Gate::open>(0, 1).get(10s);
    CHECK(deep.get(60s) == kDeep + 1);
  }
  SECTION("it is killed in the middle") {
    host.asker.call<&Asker::answered>().get(60s);  // it waits by now
    host.session.kill(host.asker);
    CHECK(error_of([&] { deep.get(60s); }).code == ErrorCode::kActorDied);
  }
  SECTION("from actor to actor and back") {
    const auto other = host.session.spawn<Asker>({.here = true}, host.gate);
    CHECK(host.asker.call<&Asker::hop>(other, 2'000).get(60s) == 2'000);
  }
}

TEST_CASE("an exception keeps its type, text and origin through co_await") {
  Host host;
  const ErrorInfo error = error_of([&] { host.asker.call<&Asker::rethrows>().get(10s); });
  CHECK(error.code == ErrorCode::kTaskFailed);
  CHECK(error.type == "std::out_of_range");
  CHECK(error.why == "there is no 7");
  CHECK(error.origin.find("Gate::throws") != std::string::npos);
  CHECK(host.asker.call<&Asker::catches>().get(10s) == "std::out_of_range: there is no 7");
  CHECK(error_of([&] { host.asker.call<&Asker::moved_from>().get(10s); }).code == ErrorCode::kBadConfig);
}

TEST_CASE("an actor that ends destroys what waits before itself, and the callers hear of it") {
  Host host;
  const auto asked = host.asker.call<&Asker::ask>("name", "");
  CHECK(host.asker.call<&Asker::answered>().get(10s) == 0);
  CHECK(frames == 1);
  host.session.kill(host.asker);
  CHECK(error_of([&] { asked.get(10s); }).code == ErrorCode::kActorDied);
  Promise<std::string> gone;
  host.session.monitor(host.asker, [gone](const std::string& why) mutable { gone.set(why); });
  gone.future().get(10s);
  CHECK(object_outlived_frames);
  host.gate.call<&Gate::open>(0, 7).get(10s);  // the answer that nobody waits for any more
  CHECK(host.gate.call<&Gate::wait>(0).get(10s) == 7);
}

TEST_CASE("when_all and when_any, also of one that failed") {
  Host host;
  const auto all = host.asker.call<&Asker::all>();
  const auto any = host.asker.call<&Asker::any>();
  SECTION("answers") {
    host.gate.call<&Gate::open>(2, 20).get(10s);
    CHECK(any.get(10s) == "1 20");
    host.gate.call<&Gate::open>(1, 10).get(10s);
    CHECK(all.get(10s) == std::vector<int>{10, 20});
  }
  SECTION("a failure") {
    host.gate.call<&Gate::fail>(1).get(10s);
    CHECK(any.get(10s) == "0 rust");
    CHECK(error_of([&] { all.get(10s); }).why == "rust");
    host.gate.call<&Gate::open>(2, 20).get(10s);
  }
  CHECK_THROWS_AS(when_any(std::vector<Future<int>>()), BadConfig);
}

TEST_CASE("wait for some of several, or until a time is over") {
  Host host;
  const auto one = host.asker.call<&Asker::some>(1, 60'000);
  const auto two = host.asker.call<&Asker::some>(2, 60'000);
  const auto none = host.asker.call<&Asker::some>(1, 1);
  CHECK(none.get(10s).empty());
  host.gate.call<&Gate::open>(2, 20).get(10s);
  CHECK(one.get(10s) == std::vector<std::size_t>{1});
  CHECK_FALSE(two.ready());
  CHECK(host.asker.call<&Asker::some>(2, 1).get(10s) == std::vector<std::size_t>{1});
  host.gate.call<&Gate::fail>(1).get(10s);
  CHECK(two.get(10s) == std::vector<std::size_t>{0, 1});
}

TEST_CASE("what waits in a light actor is told to co_await") {
  Host host;
  CHECK(error_of([&] { host.asker.call<&Asker::waits>().get(10s); }).todo.find("co_await") !=
        std::string::npos);
}
