// Processes over a node that is a thread of the test: calls, monitors, rings, windows, what a broken link
// does.
#include "runtime/host/process.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <set>

#include "runtime/client/session.hpp"
#include "tests/runtime/host/fake_node.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using test::eventually;
using test::FakeNode;

namespace {

std::atomic<int> carried_out{0};
std::atomic<bool> gate_open{true};
std::atomic<bool> is_ending{false};
/// Of a text that travels in a message. A larger one is an object, for which FakeNode has no memory.
constexpr int kLong = 250'000;

struct Worker {
  int add(int a, int b) { return a + b; }
  std::string echo(std::string text) { return text; }
  std::size_t count(const std::vector<double>& numbers) { return numbers.size(); }
  std::string make(int bytes) { return ++carried_out, std::string(static_cast<std::size_t>(bytes), 'w'); }
  void note(std::string text) {
    while (!gate_open) std::this_thread::sleep_for(1ms);
    carried_out += text.empty() ? 0 : 1;
  }
  void end() { this_actor().stop("it was asked to"); }
  /// Calls that come before the gate opens are behind its end.
  void end_slowly() {
    end();
    is_ending = true;
    while (!gate_open) std::this_thread::sleep_for(1ms);
  }
  Future<int> later() { throw std::runtime_error("boom"); }
  int long_text() { throw std::runtime_error(std::string(70'000'000, 'x')); }
  bool blocks_signals() {
    sigset_t now;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &now);
    return ::sigismember(&now, SIGTERM) == 1;
  }
};

/// Its methods meet each other.
struct Meeting {
  static inline std::atomic<int> waiting{0};
  static inline std::atomic<bool> open{false};
  std::atomic<int> here{0};
  int meet(int count) {
    ++here;
    while (here < count) std::this_thread::sleep_for(1ms);
    return ::gettid();
  }
  int wait() {
    ++waiting;
    while (!open) std::this_thread::sleep_for(1ms);
    return 3;
  }
  int count() { return here; }
  Task<int> later() { co_return 1; }
  int ask_itself() { return this_actor().self<Meeting>().call<&Meeting::count>().get(10s); }
  std::uint64_t me() { return this_actor().address().actor.value; }
};

/// Waits for itself, or seems to.
struct Selfish {
  static inline Promise<int> of_another;
  std::optional<Future<int>> asked;
  int one() { return 1; }
  Future<int> from_another() { return of_another.future(); }
  Future<int> ask_one() { return this_actor().self<Selfish>().call<&Selfish::one>(); }
  /// Ready after a while.
  static Future<int> other() {
    Promise<int> promise;
    this_actor().process().later(20ms, [promise]() mutable { promise.set(2); });
    return promise.future();
  }

  std::size_t all_of_it_and_another() { return when_all(std::vector{ask_one(), other()}).get(10s).size(); }
  std::size_t both_of_it_and_another() {
    return troupe::wait(std::vector{ask_one(), other()}, 2).get(10s).ready.size();
  }
  std::size_t any_of_it() { return when_any(std::vector{ask_one(), ask_one()}).get(10s); }
  std::size_t all_nested() {
    const auto place = when_any(std::vector{ask_one()});
    return when_all(std::vector{place}).get(10s).size();
  }

  std::size_t any_of_it_and_another() { return when_any(std::vector{ask_one(), other()}).get(10s); }
  std::size_t one_of_it_and_another() {
    return troupe::wait(std::vector{ask_one(), other()}).get(10s).ready.at(0);
  }
  std::size_t it_for_a_while() {
    return troupe::wait(std::vector{ask_one()}, 1, 20ms).get(10s).pending.size();
  }
  bool looks_at_it() { return ask_one().wait(0s); }
  void ask_for_another() { asked = this_actor().self<Selfish>().call<&Selfish::from_another>(); }
  int wait_for_another() { return asked->get(10s); }
  Future<int> from_itself() { return *asked; }
  void ask_for_itself() { asked = this_actor().self<Selfish>().call<&Selfish::from_itself>(); }
  bool comes_soon() { return asked->wait(20ms); }
  /// Whether it is told that a call of its own is at the end.
  bool waits_for_a_long_chain() {
    std::vector<std::shared_ptr<CallState>> chain(300'000);
    for (auto& state : chain) state = std::make_shared<CallState>(nullptr);
    for (std::size_t at = 0; at + 1 < chain.size(); ++at) chain[at]->set_parts({chain[at + 1]}, 1);
    chain.back()->set_own_call(current_actor());
    try {
      return chain.front()->wait(20ms);
    } catch (const BadConfig&) {
      return true;
    }
  }
};

/// Its answers stand on others': also on those that stand on them.
struct Circle {
  static inline std::vector<Future<int>> answers;
  static inline std::atomic<bool> are_there{false};
  static Future<int> of(int place) {
    while (!are_there) std::this_thread::sleep_for(1ms);
    return answers.at(static_cast<std::size_t>(place));
  }
  bool comes_behind() const { return are_there; }
  Future<int> passes_on(int place) { return of(place); }
  Task<int> awaits(int place) { co_return co_await of(place) + 1; }
  int gets(int place) { return of(place).get(20s) + 1; }
  Task<int> awaits_all(int place) {
    const auto all = when_all(std::vector{of(place), of(2)});
    co_return (co_await all).front();
  }
  Task<int> awaits_any(int place) {
    const auto any = when_any(std::vector{of(place), of(2)});
    co_return static_cast<int>(co_await any);
  }
};

struct Slow {
  Slow() {
    while (!gate_open) std::this_thread::sleep_for(1ms);
  }
};

/// What this process writes to standard error while this lives.
class StandardError {
 public:
  StandardError() : before_(::dup(STDERR_FILENO)), file_(::memfd_create("stderr", MFD_CLOEXEC)) {
    ::dup2(file_, STDERR_FILENO);
  }
  ~StandardError() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(file_);
  }
  std::string text() const {
    std::string all(1 << 16, '\0');
    const auto bytes = ::pread(file_, all.data(), all.size(), 0);
    all.resize(bytes < 0 ? 0 : static_cast<std::size_t>(bytes));
    return all;
  }

 private:
  const int before_, file_;
};

/// A light actor that calls a peer from its turn.
struct Asker {
  ActorHandle<Worker> worker;
  Future<int> ask() {
    Promise<int> answer;
    worker.call<&Worker::add>(20, 22).then([answer](Result<int> got) mutable {
      if (got) answer.set(*got);
      if (!got) answer.fail(got.error());
    });
    return answer.future();
  }
};

template <class T>
ActorHandle<T> at(Process& from, const ActorHandle<T>& actor) {
  return {&from, actor.address()};
}

template <class Call>
ErrorCode error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kInternal;
}

/// Two processes; `other_node`: the second one is reached through the nodes.
struct Two {
  explicit Two(bool other_node) : near(node.make(1, 10)), far(node.make(other_node ? 2 : 1, 20)) {
    worker = at(*near, Session(*far).spawn<Worker>({.isolated = true, .here = true}));
  }
  FakeNode node;
  std::unique_ptr<Process> near, far;
  ActorHandle<Worker> worker;
};

}  // namespace

TEST_CASE("calls are answered, over a ring and through the nodes") {
  Two two(GENERATE(false, true));
  CHECK(two.worker.call<&Worker::add>(1, 2).get(10s) == 3);
  const std::string large(kLong, 'x');
  CHECK(two.worker.call<&Worker::echo>(large).get(10s) == large);
  std::vector<Future<int>> answers;
  for (int i = 0; i < 5000; ++i) answers.push_back(two.worker.call<&Worker::add>(i, 1));
  bool all = true;
  for (int i = 0; i < 5000; ++i) all &= answers[static_cast<std::size_t>(i)].get(10s) == i + 1;
  CHECK(all);
  CHECK(two.near->calls_under_way() == 0);
}

TEST_CASE("two light actors that meet new peers do not block the threads that their answers need") {
  // Each asked its node for a ring and blocked a CAF worker until it came. Two did so at once: the answer
  // needed a third one. After 30 s both calls failed with a false ActorDied.
  Two two(false);
  two.node.no_rings = true;
  const Session session(*two.near);
  std::vector<Future<int>> answers;
  for (int i = 0; i < 8; ++i) {
    const auto asker = session.spawn<Asker>({.here = true}, two.worker);
    answers.push_back(asker.call<&Asker::ask>());
  }
  const auto neighbour = session.spawn<Worker>({.here = true});
  CHECK(neighbour.call<&Worker::add>(1, 1).get(10s) == 2);  // everybody else goes on meanwhile
  two.node.no_rings = false;
  for (const auto& answer : answers) CHECK(answer.get(10s) == 42);
}

TEST_CASE("a ring that could not be made is no death: the next call asks again") {
  // The simulator found it: the process at the other end counted as dead for good, and its actors, too.
  Two two(false);
  two.node.rings_fail = 1;
  CHECK(error_of([&] { two.worker.call<&Worker::add>(1, 2).get(10s); }) == ErrorCode::kUnavailable);
  CHECK(two.worker.call<&Worker::add>(1, 2).get(10s) == 3);
}

TEST_CASE("a leased process that died behind a broken link is not used for ever") {
  // Was: its death is not told over a link that is down, and the lease was kept: every later light spawn on
  // that node failed with ActorDied.
  Two two(true);
  two.node.lease(2, 30);  // nobody is there any more
  const Session session(*two.near);
  CHECK(error_of([&] { session.spawn<Worker>({.node = {2}}); }) == ErrorCode::kActorDied);
  two.node.lease(2, 20);
  two.node.tell_all(wire::NodeLost{{2}, "the connection broke"});
  REQUIRE(eventually(
      [&] {
        return error_of([&] { session.spawn<Worker>({.node = {2}}); }) == ErrorCode::kInternal;  // none
      },
      5s));
}

TEST_CASE("a light actor is constructed in the leased process, and killed there") {
  Two two(GENERATE(false, true));
  two.node.lease(two.far->address().node.value, 20);
  const Session session(*two.near);
  auto actor = session.spawn<Worker>({.node = two.far->address().node});
  CHECK(actor.address().home() == two.far->address());
  CHECK(actor.call<&Worker::add>(3, 4).get(10s) == 7);
  std::atomic<int> told{0};
  session.monitor(actor, [&](const std::string& why) { told += why == "no longer needed" ? 1 : 100; });
  session.kill(actor, "no longer needed");
  CHECK(eventually([&] { return told == 1; }));
  CHECK(error_of([&] { actor.call<&Worker::add>(3, 4).get(10s); }) == ErrorCode::kActorDied);
}

// Was: "it ended before it answered", without the reason.
TEST_CASE("a call that an actor did not come to before it ended hears why that ended") {
  Two two(GENERATE(false, true));
  const auto other = at(*two.near, Session(*two.far).spawn<Worker>({.isolated = true, .here = true}));
  gate_open = is_ending = false;
  const auto ends = two.worker.call<&Worker::end_slowly>();
  REQUIRE(eventually([] { return is_ending.load(); }));
  const auto behind = two.worker.call<&Worker::add>(1, 1);
  CHECK(other.call<&Worker::add>(1, 1).get(10s) == 2);  // came after it
  gate_open = true;
  ends.get(10s);
  try {
    behind.get(10s);
    FAIL("it was carried out");
  } catch (const ActorDied& died) {
    CHECK(died.info().why == "it ended before it answered: it was asked to");
  }
}

TEST_CASE("a monitor is told once, whatever ended the actor and also when that was before") {
  Two two(GENERATE(false, true));
  const Session session(*two.near);
  std::atomic<int> told{0};
  std::string reason;
  SECTION("it stopped itself") {
    session.monitor(two.worker, [&](const std::string& why) { reason = why, ++told; });
    two.worker.tell<&Worker::end>();
    CHECK(eventually([&] { return told == 1; }));
    CHECK(reason == "it was asked to");
  }
  SECTION("it had ended before") {
    two.worker.call<&Worker::end>().get(10s);
    REQUIRE(eventually([&] {
      return error_of([&] { two.worker.call<&Worker::add>(1, 1).get(10s); }) == ErrorCode::kActorDied;
    }));
    session.monitor(two.worker, [&](const std::string& why) { reason = why, ++told; });
    CHECK(eventually([&] { return told == 1; }));
    CHECK(reason == "it was asked to");
  }
  SECTION("its process died") {
    session.monitor(two.worker, [&](const std::string& why) { reason = why, ++told; });
    two.worker.call<&Worker::add>(1, 1).get(10s);
    two.node.tell_all(wire::ProcessDown{two.far->address(), "killed by signal 9"});
    CHECK(eventually([&] { return told == 1; }));
    CHECK(reason == "killed by signal 9");
    // And one that is set afterwards.
    session.monitor(two.worker, [&](const std::string& why) { reason = why, ++told; });
    CHECK(eventually([&] { return told == 2; }));
  }
  SECTION("its node died") {
    if (two.far->address().node == two.near->address().node) return;
    session.monitor(two.worker, [&](const std::string& why) { reason = why, ++told; });
    two.node.tell_all(wire::NodeDown{two.far->address().node, "no heartbeat"});
    CHECK(eventually([&] { return told == 1; }));
    CHECK(reason == "no heartbeat");
  }
}

TEST_CASE("a link that breaks fails what was under way, and nobody is dead") {
  // Calls and replies between nodes vanished with the link: their callers waited for ever.
  Two two(true);
  const Session session(*two.near);
  std::atomic<int> told{0};
  session.monitor(two.worker, [&](const std::string&) { ++told; });
  two.worker.call<&Worker::add>(1, 1).get(10s);
  two.node.hold(2, 20, true);
  std::vector<Future<int>> lost;
  for (int i = 0; i < 100; ++i) lost.push_back(two.worker.call<&Worker::add>(i, 1));
  two.node.tell_all(wire::NodeLost{{2}, "the connection broke"});
  for (const auto& call : lost) CHECK(error_of([&] { call.get(10s); }) == ErrorCode::kUnavailable);
  two.node.hold(2, 20, false);
  CHECK(two.worker.call<&Worker::add>(2, 2).get(10s) == 4);
  CHECK(told == 0);
  two.worker.tell<&Worker::end>();
  CHECK(eventually([&] { return told == 1; }));
}

// Was: they went with the call, before their owner had heard of whom the callee had passed them on to.
TEST_CASE("arguments of a call whose callee died stay a while: it may have passed them on") {
  Two two(true);
  const auto third = two.node.make(3, 30);
  two.node.hold(2, 20, true);
  auto numbers = Session(*two.near).put(std::vector<double>{1, 2, 3});
  const auto name = numbers.handle()->name();
  const auto lost = two.worker.call<&Worker::count>(numbers);
  numbers = {};
  two.node.tell(1, 10, wire::ProcessDown{two.far->address(), "killed"});
  CHECK(error_of([&] { lost.get(60s); }) == ErrorCode::kActorDied);
  Promise<std::size_t> owned;  // behind the end of the call
  two.near->later(Duration::zero(),
                  [owned, near = two.near.get()]() mutable { owned.set(near->objects()->counts().owned); });
  CHECK(owned.future().get(60s) == 1);
  {
    const auto held = third->objects()->hold(name);
    const auto fetch = third->objects()->fetch(name);
    REQUIRE(fetch->done.wait(60s));
    CHECK(fetch->done.outcome().ok());
  }
  CHECK(eventually([&] { return two.near->objects()->counts().owned == 0; }, 60s));
  two.node.hold(2, 20, false);
}

TEST_CASE("who outruns a receiver that does not read is held back, and the node keeps little") {
  Two two(true);
  two.worker.call<&Worker::add>(1, 1).get(10s);
  two.node.hold(2, 20, true);
  std::atomic<int> sent{0};
  std::vector<Future<std::string>> answers(400);
  std::thread caller([&] {
    for (auto& answer : answers) answer = two.worker.call<&Worker::echo>(std::string(kLong, 'y')), ++sent;
  });
  REQUIRE(eventually([&] { return two.node.held_bytes(2, 20) > 6'000'000; }));
  std::this_thread::sleep_for(100ms);  // time to send more, were it not held back
  CHECK(two.node.held_bytes(2, 20) < 10'000'000);
  CHECK(sent < 80);
  two.node.hold(2, 20, false);
  caller.join();
  for (const auto& answer : answers) CHECK(answer.get(20s).size() == kLong);
}

TEST_CASE("mailboxes are bounded: calls and one-ways that are not carried out hold their caller back") {
  Two two(GENERATE(false, true));
  carried_out = 0;
  gate_open = false;
  std::atomic<int> sent{0};
  constexpr int kCalls = 400;
  std::thread caller([&] {
    for (int i = 0; i < kCalls; ++i) two.worker.tell<&Worker::note>(std::string(100'000, 'z')), ++sent;
  });
  REQUIRE(eventually([&] { return sent > 100; }));
  std::this_thread::sleep_for(100ms);
  const bool held = sent < kCalls;
  gate_open = true;
  caller.join();
  CHECK(eventually([&] { return carried_out == kCalls; }));
  CHECK(held);
}

TEST_CASE("a caller that does not read its answers gets few made, and in the end all") {
  Two two(true);
  two.worker.call<&Worker::add>(1, 1).get(10s);
  two.node.hold(1, 10, true);
  carried_out = 0;
  std::vector<Future<std::string>> answers;
  for (int i = 0; i < 800; ++i) answers.push_back(two.worker.call<&Worker::make>(kLong));
  REQUIRE(eventually([&] { return carried_out > 120; }));
  std::this_thread::sleep_for(200ms);  // time to make more, were it not held back
  CHECK(carried_out < 400);
  CHECK(two.node.held_bytes(1, 10) < 10'000'000);
  two.node.hold(1, 10, false);
  for (const auto& answer : answers) CHECK(answer.get(20s).size() == kLong);
}

// Was: every call waited behind those of the caller that did not read.
// Was: 70 MiB of reason went nowhere, and the actor lived.
TEST_CASE("an actor is killed whatever the reason's length is") {
  Two two(GENERATE(false, true));
  Session(*two.near).kill(two.worker, std::string(70'000'000, 'r'));
  CHECK(error_of([&] {
          for (int i = 0; i < 10'000; ++i) {
            two.worker.call<&Worker::add>(1, 2).get(10s);
            std::this_thread::sleep_for(1ms);
          }
        }) == ErrorCode::kActorDied);
}

TEST_CASE("a caller that does not read its answers holds up no other caller of the actor") {
  Two two(true);
  two.worker.call<&Worker::add>(1, 1).get(10s);
  const auto other = two.node.make(1, 30);
  two.node.hold(1, 10, true);
  carried_out = 0;
  std::vector<Future<std::string>> answers;
  for (int i = 0; i < 800; ++i) answers.push_back(two.worker.call<&Worker::make>(kLong));
  REQUIRE(eventually([&] { return carried_out > 120; }));
  // What the slow caller asked for before is made first; then the other one's call is at hand.
  const auto worker = at(*other, two.worker);
  for (int i = 0; i < 20; ++i) CHECK(worker.call<&Worker::add>(i, 1).get(20s) == i + 1);
  CHECK(carried_out < 400);
  two.node.hold(1, 10, false);
  for (const auto& answer : answers) CHECK(answer.get(20s).size() == kLong);
}

TEST_CASE("a method that returns a Future and throws fails its call with that, and its actor lives") {
  // The responder moved before the method ran: the caller heard that a living actor had died.
  Two two(false);
  CHECK(error_of([&] { two.worker.call<&Worker::later>().get(10s); }) == ErrorCode::kTaskFailed);
  CHECK(two.worker.call<&Worker::add>(1, 1).get(10s) == 2);
}

TEST_CASE("the text of an exception is cut before it is longer than a frame") {
  // The worker aborted, and thousands of light actors with it.
  Two two(GENERATE(false, true));
  CHECK(error_of([&] { two.worker.call<&Worker::long_text>().get(10s); }) == ErrorCode::kTaskFailed);
  CHECK(two.worker.call<&Worker::add>(1, 1).get(10s) == 2);
}

TEST_CASE("a callback that throws silences no other") {
  Two two(false);
  std::atomic<int> ran{0};
  two.worker.call<&Worker::add>(1, 1).then([](Result<int>) { throw std::runtime_error("oops"); });
  for (int i = 0; i < 5; ++i) two.worker.call<&Worker::add>(1, 1).then([&](Result<int>) { ++ran; });
  CHECK(eventually([&] { return ran == 5; }));
}

TEST_CASE("an isolated actor takes signals as the main program does") {
  Two two(false);
  CHECK_FALSE(two.worker.call<&Worker::blocks_signals>().get(10s));
}

TEST_CASE("with max_concurrency methods of an isolated actor run at a time, so many") {
  FakeNode node;
  const auto process = node.make(1, 10);
  const Session session(*process);
  const ActorOptions options{.isolated = true, .here = true, .max_concurrency = 3};
  const auto meeting = session.spawn<Meeting>(options);
  std::vector<Future<int>> threads;
  for (int i = 0; i < 3; ++i) threads.push_back(meeting.call<&Meeting::meet>(3));
  std::set<int> different;
  for (const auto& thread : threads) different.insert(thread.get(10s));
  CHECK(different.size() == 3);
  CHECK(meeting.call<&Meeting::me>().get(10s) == meeting.address().actor.value);

  Meeting::open = false;
  Meeting::waiting = 0;
  for (int i = 0; i < 3; ++i) meeting.tell<&Meeting::wait>();
  const auto behind = meeting.call<&Meeting::count>();
  CHECK(eventually([] { return Meeting::waiting == 3; }));
  CHECK_FALSE(behind.wait(50ms));
  Meeting::open = true;
  CHECK(behind.get(10s) == 3);

  CHECK(meeting.call<&Meeting::ask_itself>().get(10s) == 3);  // another thread answers
  try {
    meeting.call<&Meeting::later>().get(10s);
    FAIL("it waited by co_await");
  } catch (const BadConfig& error) {
    CHECK(std::string(error.what()).find("several threads run this actor's methods") != std::string::npos);
  }
  CHECK_THROWS_AS(session.spawn<Meeting>({.here = true, .max_concurrency = 2}), BadConfig);
  CHECK_THROWS_AS(session.spawn<Meeting>({.isolated = true, .max_concurrency = 0}), BadConfig);
}

// Was: it waited an hour, or as long as it said.
TEST_CASE("an actor that waits for its own answer is told so") {
  FakeNode node;
  const auto process = node.make(1, 10);
  const auto actor = Session(*process).spawn<Meeting>({.isolated = true, .here = true});
  try {
    actor.call<&Meeting::ask_itself>().get(10s);
    FAIL("it had an answer");
  } catch (const BadConfig& error) {
    CHECK(std::string(error.what()).find("an actor waits for itself") != std::string::npos);
  }
  CHECK(actor.call<&Meeting::count>().get(10s) == 0);
}

TEST_CASE("an actor that waits for several is told where it cannot go on without itself, and there alone") {
  FakeNode node;
  const auto process = node.make(1, 10);
  const auto actor = Session(*process).spawn<Selfish>({.isolated = true, .here = true});
  const auto told = [](const auto& future) {
    try {
      future.get(20s);
    } catch (const BadConfig& error) {
      return std::string(error.what()).find("an actor waits for itself") != std::string::npos;
    }
    return false;
  };
  // Was: it waited for an hour, or as long as it said.
  CHECK(told(actor.call<&Selfish::all_of_it_and_another>()));
  CHECK(told(actor.call<&Selfish::both_of_it_and_another>()));
  CHECK(told(actor.call<&Selfish::any_of_it>()));
  CHECK(told(actor.call<&Selfish::all_nested>()));
  CHECK(actor.call<&Selfish::any_of_it_and_another>().get(20s) == 1);
  CHECK(actor.call<&Selfish::one_of_it_and_another>().get(20s) == 1);
  CHECK(actor.call<&Selfish::it_for_a_while>().get(20s) == 1);
  CHECK_FALSE(actor.call<&Selfish::looks_at_it>().get(20s));
  // Was: told, though the method had returned, and another thread had the answer.
  Selfish::of_another = Promise<int>();
  actor.call<&Selfish::ask_for_another>().get(20s);
  const auto waits = actor.call<&Selfish::wait_for_another>();
  CHECK_FALSE(waits.wait(50ms));
  Selfish::of_another.set(5);
  CHECK(waits.get(20s) == 5);
}

// Was: none of these ever had an answer.
TEST_CASE("who waits for its own answer is told so, whatever it waits by") {
  FakeNode node;
  const auto process = node.make(1, 10);
  const Session session(*process);
  const ActorOptions own_thread{.isolated = true, .here = true};
  const auto a = session.spawn<Circle>(own_thread), b = session.spawn<Circle>(own_thread);
  const auto several = session.spawn<Circle>({.isolated = true, .here = true, .max_concurrency = 2});
  const Promise<int> other;
  const auto all_have = [&](std::vector<Future<int>> answers) {
    answers.resize(2);
    answers.push_back(other.future());
    Circle::answers = std::move(answers);
    Circle::are_there = true;
  };
  const auto told = [&](std::vector<Future<int>> answers, const std::string& how) {
    all_have(answers);
    for (const auto& answer : answers) {
      CHECK_THROWS_AS(answer.get(20s), BadConfig);
      CHECK_THROWS_WITH(answer.get(0s), Catch::Contains(how));
    }
    Circle::are_there = false;
  };
  const std::string returned = "Circle::passes_on gave no answer: it returned the Future of its own call";
  told({a.call<&Circle::passes_on>(0)}, returned);
  told({a.call<&Circle::passes_on>(1), b.call<&Circle::passes_on>(0)}, returned);
  const std::string awaited = "a Task waits for its own answer";
  told({a.call<&Circle::awaits>(0)}, awaited);
  told({a.call<&Circle::awaits>(1), b.call<&Circle::awaits>(0)}, awaited);
  told({a.call<&Circle::awaits_all>(0)}, awaited);
  told({several.call<&Circle::gets>(0)}, "a method or task waits for its own answer");
  told({a.call<&Circle::gets>(0)}, "a method or task waits for its own answer");

  const auto any = a.call<&Circle::awaits_any>(0);
  const auto passes_on = b.call<&Circle::passes_on>(2);
  const auto waits = several.call<&Circle::awaits>(2), behind = a.call<&Circle::awaits>(1);
  all_have({any, passes_on});
  CHECK_THROWS_AS(waits.get(20s), BadConfig);       // several threads
  CHECK(a.call<&Circle::comes_behind>().get(20s));  // the other two wait by now
  CHECK_FALSE(any.ready());
  CHECK_THROWS_WITH(behind.get(0s), Catch::Contains("Circle::passes_on gave no answer: within 0 s"));
  Promise<int>(other).set(7);
  CHECK(any.get(20s) == 1);
  CHECK(passes_on.get(20s) == 7);
  CHECK(behind.get(20s) == 8);
  Circle::are_there = false;
  Circle::answers.clear();
}

TEST_CASE("an answer that stands on itself fails, and one behind 300,000 others is waited for as any") {
  // Was: the stack of whoever waited came to its end.
  FakeNode node;
  const auto process = node.make(1, 10);
  const auto actor = Session(*process).spawn<Selfish>({.isolated = true, .here = true});
  actor.call<&Selfish::ask_for_itself>().get(20s);
  CHECK(actor.call<&Selfish::comes_soon>().get(20s));
  CHECK(actor.call<&Selfish::waits_for_a_long_chain>().get(20s));
}

TEST_CASE(
    "of an actor with max_concurrency that is killed what runs comes to its end, and the rest hears why") {
  FakeNode node;
  const auto process = node.make(1, 10);
  const Session session(*process);
  Meeting::open = false;
  Meeting::waiting = 0;
  const auto actor = session.spawn<Meeting>({.isolated = true, .here = true, .max_concurrency = 2});
  const auto first = actor.call<&Meeting::wait>(), second = actor.call<&Meeting::wait>();
  CHECK(eventually([] { return Meeting::waiting == 2; }));
  const auto behind = actor.call<&Meeting::count>();
  Promise<std::string> death;
  session.monitor(actor, [death](const std::string& why) mutable { death.set(why); });
  session.kill(actor, "enough");
  CHECK_FALSE(death.future().wait(50ms));
  Meeting::open = true;
  CHECK(first.get(10s) + second.get(10s) == 6);
  CHECK(death.future().get(10s) == "enough");
  try {
    behind.get(10s);
    FAIL("it ran");
  } catch (const ActorDied& error) {
    CHECK(std::string(error.what()).find("enough") != std::string::npos);
  }
}

TEST_CASE("another job's process is refused") {
  FakeNode node;
  const auto mine = node.make(1, 10, {7});
  const auto other = node.make(1, 20, {8});
  const auto actor = Session(*mine).spawn<Worker>({.isolated = true, .here = true});
  const auto forged = at(*other, actor);
  CHECK(error_of([&] { forged.call<&Worker::add>(1, 1).get(10s); }) == ErrorCode::kRefused);
  Session(*other).kill(forged, "mischief");
  CHECK(actor.call<&Worker::add>(1, 1).get(10s) == 2);
}

TEST_CASE("a node that is gone ends every call and monitor, and every later one") {
  auto node = std::make_unique<FakeNode>();
  const auto near = node->make(1, 10);
  auto far = node->make(2, 20);
  const auto worker = at(*near, Session(*far).spawn<Worker>({.isolated = true, .here = true}));
  worker.call<&Worker::add>(1, 1).get(10s);
  node->hold(2, 20, true);
  const auto call = worker.call<&Worker::add>(1, 1);
  std::atomic<int> told{0};
  Session(*near).monitor(worker, [&](const std::string&) { ++told; });
  node.reset();
  CHECK(error_of([&] { call.get(10s); }) == ErrorCode::kUnavailable);
  CHECK(error_of([&] { worker.call<&Worker::add>(1, 1).get(10s); }) == ErrorCode::kUnavailable);
  CHECK(error_of([&] { Session(*near).nodes(); }) == ErrorCode::kUnavailable);
  CHECK(eventually([&] { return told == 1; }));
}

// Was: an answer's callbacks mostly hold it, and where its process ended first nobody resolved it: a program
// lost that memory with each session, and had a Future that is never ready.
TEST_CASE("a process that ends fails what waits for its calls, and gives it back") {
  Two two(true);
  two.node.hold(2, 20, true);
  ActorSpawn placed;
  placed.isolated = true;
  const ActorHandle<Worker> moving{two.near.get(), {{2}, {20}, placed_actor_id(77, true)}};
  std::vector open{two.worker.call<&Worker::add>(1, 1).state(), moving.call<&Worker::add>(1, 1).state(),
                   two.near->spawn(placed)};
  const auto failed = std::make_shared<std::atomic<int>>(0);
  for (const auto& call : open) {
    call->on_ready([call, failed] {
      if (call->failure() != nullptr && call->failure()->code == ErrorCode::kUnavailable) ++*failed;
    });
  }
  open.push_back(detail::all_of(open, false));
  two.near.reset();
  CHECK(*failed == 3);
  CHECK(failed.use_count() == 1);
  for (const auto& call : open) {
    CHECK(call->ready());
    CHECK(call.use_count() == 1);
  }
}

// Was: nothing was said until its spawn was given up, two minutes later.
TEST_CASE("a constructor that does not return is told by its process, once") {
  FakeNode node;
  const auto process = node.make(1, 10);
  const StandardError error;
  gate_open = false;
  const auto slow = Session(*process).spawn_async<Slow>({.isolated = true, .here = true});
  const std::string said = "Slow (actor ";
  CHECK(eventually([&] { return error.text().find(said) != std::string::npos; }, 60s));
  CAPTURE(error.text());
  CHECK(error.text().find("look at process " + std::to_string(::getpid())) != std::string::npos);
  gate_open = true;
  slow.get(10s);
}
