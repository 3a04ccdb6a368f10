// Which task runs where, without a process.
#include "runtime/tasks/lease_pool.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "runtime/core/random.hpp"
#include "runtime/tasks/pushed_tasks.hpp"

using namespace troupe;
using namespace troupe::tasks;
using namespace std::chrono_literals;

namespace {

const Demand kOneCpu{10000, 0, {}};

/// The pool, and what became of what it asked for.
struct Fixture {
  explicit Fixture(const PoolLimits& limits = {}) : pool(limits) {}

  TaskNumber submit(int retries = 3, std::uint64_t parent = 0, const Demand& demand = kOneCpu,
                    std::uint64_t function = 1) {
    const TaskNumber task = pool.submitted({demand, retries, parent, 10, function}, now, out);
    take();
    return task;
  }
  TaskNumber submit_near(NodeId node) {
    const TaskNumber task = pool.submitted({kOneCpu, 3, 0, 10, 1, node}, now, out);
    return take(), task;
  }
  void grant(LeaseNumber lease, NodeId at = {}) { pool.granted(lease, now, out, at), take(); }
  void end(TaskNumber task) { pool.ended(task, attempt.at(task), now, out), take(); }
  bool cancel(TaskNumber task, Duration grace) {
    const bool was_waiting = pool.cancel(task, grace, now, out);
    take();
    return was_waiting;
  }
  bool throws(TaskNumber task) {
    const bool again = pool.threw(task, attempt.at(task), now, out);
    return take(), again;
  }
  void give_back(TaskNumber task) { pool.taken_back(task, asked_back.at(task), now, out), take(); }
  void die(LeaseNumber lease, LeasePool::Begun begun = LeasePool::Begun::kOldest) {
    pool.lease_lost(lease, begun, {ErrorCode::kActorDied, "gone", "killed by signal 9", ""}, now, out),
        take();
  }
  void lose(TaskNumber task) {
    pool.lost(task, attempt.at(task), {ErrorCode::kUnavailable, "", "the link broke", ""}, now, out), take();
  }
  void tick(Duration later) { now += later, pool.tick(last_wake, now, out), take(); }

  void take() {
    for (const auto& action : std::exchange(out, {})) {
      if (const auto* ask = std::get_if<LeasePool::AskLease>(&action)) asked.push_back(ask->lease);
      if (const auto* cancel = std::get_if<LeasePool::CancelAsk>(&action)) cancelled.insert(cancel->lease);
      if (const auto* back = std::get_if<LeasePool::ReturnLease>(&action))
        returned.insert(back->lease), reason = back->reason;
      if (const auto* retry = std::get_if<LeasePool::Retry>(&action)) ++retried[retry->task];
      if (const auto* fail = std::get_if<LeasePool::Fail>(&action)) failed[fail->task] = fail->error.why;
      if (const auto* push = std::get_if<LeasePool::Push>(&action)) {
        on[push->task] = push->lease;
        pushed.push_back(push->task);
        attempt[push->task] = push->attempt;
      }
      if (const auto* interrupt = std::get_if<LeasePool::Interrupt>(&action))
        interrupted[interrupt->task] = interrupt->lease;
      if (const auto* wake = std::get_if<LeasePool::WakeAt>(&action)) last_wake = wake->number, ++wakes;
      if (const auto* back = std::get_if<LeasePool::TakeBack>(&action))
        asked_back[back->task] = back->attempt;
    }
  }

  LeasePool pool;
  Instant now{1s};
  LeasePool::Actions out;
  std::uint64_t last_wake = 0;
  int wakes = 0;
  std::vector<LeaseNumber> asked;
  std::set<LeaseNumber> cancelled, returned;
  std::string reason;  ///< of the last one that was returned
  std::map<TaskNumber, std::string> failed;
  std::map<TaskNumber, int> retried;  ///< that are used
  std::map<TaskNumber, LeaseNumber> on;
  std::vector<TaskNumber> pushed;
  std::map<TaskNumber, std::uint32_t> attempt;
  std::map<TaskNumber, LeaseNumber> interrupted;
  std::map<TaskNumber, std::uint32_t> asked_back;
};

}  // namespace

TEST_CASE("A task asks for a worker once, and the next one takes the same worker") {
  Fixture f;
  const auto first = f.submit();
  REQUIRE(f.asked.size() == 1);
  f.grant(f.asked[0]);
  CHECK(f.on[first] == f.asked[0]);
  f.end(first);
  const auto second = f.submit();
  CHECK(f.on[second] == f.asked[0]);
  CHECK(f.asked.size() == 1);
  f.end(second);
  CHECK(f.pool.tasks() == 0);
  f.tick(499ms);
  CHECK(f.returned.empty());
  f.tick(1ms);
  CHECK(f.returned == std::set<LeaseNumber>{f.asked[0]});
  CHECK(f.pool.leases() == 0);
}

TEST_CASE("What a task waits for: a worker that was asked for, or those before it") {
  Fixture f;
  const auto first = f.submit(), second = f.submit();
  CHECK(f.pool.waiting(second).asked == f.asked);
  CHECK(f.pool.waiting(second).before == 1);
  CHECK(f.pool.waiting(second).runs_on == 0);
  f.grant(f.asked[0]);
  CHECK(f.pool.waiting(first).runs_on == f.asked[0]);
  CHECK(f.pool.waiting(first).before == 0);
  CHECK(f.pool.waiting(second).before == 0);
  CHECK(f.pool.waiting(second).workers == 1);
}

TEST_CASE("What a task waits for are workers of its own demand that take tasks, and those before it there") {
  const Demand none{};
  Fixture f;
  const auto first = f.submit(), second = f.submit(), third = f.submit();
  const auto other = f.submit(3, 0, none), behind_other = f.submit(3, 0, none);
  const auto own = [&](std::size_t from, std::size_t count) {
    const auto begin = f.asked.begin() + std::ptrdiff_t(from);
    return std::vector<LeaseNumber>(begin, begin + std::ptrdiff_t(count));
  };
  REQUIRE(f.asked.size() == 5);
  CHECK(f.pool.waiting(third).asked == own(0, 3));
  CHECK(f.pool.waiting(third).before == 2);
  CHECK(f.pool.waiting(third).workers == 0);
  CHECK(f.pool.waiting(behind_other).asked == own(3, 2));
  CHECK(f.pool.waiting(behind_other).before == 1);  // not those of another demand
  f.grant(f.asked[3]);
  CHECK(f.pool.waiting(third).workers == 0);
  CHECK(f.pool.waiting(behind_other).workers == 1);
  CHECK(f.pool.waiting(behind_other).asked == own(4, 1));
  f.grant(f.asked[0]);
  f.grant(f.asked[1]);
  CHECK(f.pool.waiting(third).workers == 2);
  f.now += 1ms;
  f.end(first);  // short ones: from now on others stand behind what runs
  f.end(second);
  CHECK(f.pool.waiting(third).workers == 2);  // the other one has none
  std::vector<TaskNumber> more;
  for (int i = 0; i < 8; ++i) more.push_back(f.submit());
  f.now += 1ms;
  f.end(third);
  const auto stands = std::find_if(more.begin(), more.end(), [&](TaskNumber task) {
    return f.pool.waiting(task).runs_on != 0 && f.pool.waiting(task).before != 0;
  });
  REQUIRE(stands != more.end());
  CHECK(f.pool.waiting(*stands).before == 1);
  CHECK(f.pool.waiting(more.back()).runs_on == 0);
  CHECK(f.pool.waiting(more.back()).before == f.pool.queued() - 2);  // behind_other is another's, and itself
  CHECK(f.pool.waiting(more.back()).workers == 2);                   // with one task, and with two
  f.pool.wanted(f.asked[0], "others", f.now, f.out), f.take();
  CHECK(f.pool.waiting(more.back()).workers == 1);
  CHECK(f.pool.contains(other));
}

// Was: the maker of what forty tasks wait for, submitted behind them, began when each of them had a worker.
TEST_CASE("A task that somebody waits for goes before those that were submitted before it") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  std::vector<TaskNumber> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(f.submit());
  const auto maker = waiting[15], other = waiting[10];
  for (int i = 0; i < 1'000'000; ++i) f.pool.hasten(maker);
  f.pool.hasten(other);
  f.pool.hasten(1);    // which runs
  f.pool.hasten(999);  // there is none
  CHECK(f.pool.queued() == 20);
  CHECK(f.pool.waiting(other).before == 0);
  CHECK(f.pool.waiting(maker).before == 1);
  CHECK(f.pool.waiting(waiting[0]).before == 2);
  CHECK(f.pool.waiting(waiting[19]).before == 19);
  std::vector<TaskNumber> order;
  for (int i = 0; i < 20; ++i) {
    f.now += 10ms;
    f.end(f.pushed.back());
    order.push_back(f.pushed.back());
  }
  std::vector<TaskNumber> right{other, maker};
  for (const auto task : waiting) {
    if (task != maker && task != other) right.push_back(task);
  }
  CHECK(order == right);
}

TEST_CASE("A task for which nobody waits lets others go first so often, and no more") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  const auto plain = f.submit(), next = f.submit();
  const auto go_on = [&] {
    const auto wanted = f.submit();
    f.pool.hasten(wanted);
    f.now += 10ms;
    f.end(f.pushed.back());
    return f.pushed.back();
  };
  for (int i = 0; i < 16; ++i) CHECK(go_on() > next);
  CHECK(go_on() == plain);
  for (int i = 0; i < 16; ++i) CHECK(go_on() > next);  // one after another
  CHECK(go_on() == next);
}

TEST_CASE(
    "Those that stand behind a short task are in the same order: one that came later lets nobody go first") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.now += 1us;
  f.end(1);
  f.tick(1s);  // the worker goes; that the function is short is known
  REQUIRE(f.pool.leases() == 0);
  f.pushed.clear();
  const bool has_older = GENERATE(true, false);
  const auto older = has_older ? f.submit() : 0;
  for (int i = 0; i < 20; ++i) f.pool.hasten(f.submit());
  const auto later = f.submit();
  for (int i = 0; i < 40; ++i) f.submit();
  f.grant(f.asked.back());
  for (std::size_t i = 0; i < f.pushed.size(); ++i) f.now += 1us, f.end(f.pushed[i]);
  const auto place = [&](TaskNumber task) {
    return std::find(f.pushed.begin(), f.pushed.end(), task) - f.pushed.begin();
  };
  if (has_older) CHECK(place(older) == 16);
  CHECK(place(later) == (has_older ? 21 : 20));
  CHECK(f.pushed.size() == (has_older ? 62 : 61));
}

TEST_CASE("A task that somebody waits for goes first again when its worker dies") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  const auto plain = f.submit(), wanted = f.submit();
  f.pool.hasten(wanted);
  f.now += 10ms;
  f.end(1);
  REQUIRE(f.on.at(wanted) == f.asked[0]);
  f.die(f.asked[0]);
  f.grant(f.asked[1]);
  CHECK(f.on.at(wanted) == f.asked[1]);
  CHECK_FALSE(f.on.contains(plain));
}

TEST_CASE("A task that somebody waits for takes a worker that is not near its arguments") {
  constexpr NodeId kNear{1}, kFar{2};
  Fixture f;
  f.grant((f.submit(), f.asked[0]), kNear);
  const auto near = f.submit_near(kNear), wanted = f.submit_near(kFar);
  f.pool.hasten(wanted);
  f.now += 10ms;
  f.end(1);
  CHECK(f.on.at(wanted) == f.asked[0]);
  CHECK_FALSE(f.on.contains(near));
}

TEST_CASE("A worker that hangs while it starts is not asked for again") {
  Fixture f;
  const auto task = f.submit();
  CHECK(f.pool.contains(task));
  f.pool.refused(f.asked[0], {ErrorCode::kTimeout, "cannot start it", "it hangs", ""}, f.now, f.out);
  CHECK_FALSE(f.pool.contains(task));  // before anybody was told
  f.take();
  CHECK(f.failed[task] == "it hangs");
  CHECK(f.asked.size() == 1);
}

// Was: after a thousand short tasks four long ones went to two workers, two each, and the others stayed idle.
TEST_CASE("A worker's second place is for short tasks alone, and only where many wait") {
  Fixture f;
  for (int i = 0; i < 4; ++i) f.submit();
  f.grant(f.asked[0]);
  CHECK(f.on.size() == 1);  // nobody knows yet how long they take: another worker may come sooner
  f.now += 1ms;
  f.end(1);
  CHECK(f.on.size() == 3);  // one runs, one is next, and one waits: not enough for two in a row
  f.end(2);
  CHECK(f.on.size() == 3);
  f.submit();
  CHECK(f.on.size() == 4);
}

// Was: two at most, so that a worker and the process that submits woke each other for each task of a
// microsecond.
TEST_CASE("Behind very short tasks stand as many as a worker does in half a millisecond, and no more") {
  Fixture f;
  const auto with = [&](LeaseNumber lease) {
    return std::count_if(f.on.begin(), f.on.end(),
                         [&](const auto& one) { return one.second == lease && f.pool.contains(one.first); });
  };
  f.grant((f.submit(), f.asked[0]));
  SECTION("of 100 us each") {
    f.now += 100us;
    f.end(1);
    for (int i = 0; i < 30; ++i) f.submit();
    CHECK(with(f.asked[0]) == 5);
  }
  SECTION("of 1 us each, over two workers alike") {
    f.now += 1us;
    f.end(1);
    for (int i = 0; i < 100; ++i) f.submit();
    CHECK(with(f.asked[0]) == kPlaces);
    f.grant(f.asked[1]);
    CHECK(with(f.asked[0]) == kPlaces);
    CHECK(with(f.asked[1]) == kPlaces);
    f.tick(20ms);  // the first runs on
    CHECK(f.asked_back.size() == 2 * (kPlaces - 1));
    const TaskNumber behind = f.asked_back.begin()->first;
    f.give_back(behind);
    CHECK_FALSE(f.pool.waiting(behind).runs_on != 0);
  }
}

TEST_CASE("A task whose worker died has a worker to itself from then on: it may be the cause") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.end(1);
  const auto guilty = f.submit(3);
  for (int i = 0; i < 40; ++i) f.submit(3);
  REQUIRE(f.pool.waiting(guilty + 1).runs_on == f.asked[0]);
  f.die(f.asked[0]);
  f.grant(f.asked[1]);
  REQUIRE(f.on.at(guilty) == f.asked[1]);
  CHECK(f.pool.waiting(guilty + 1).runs_on == 0);  // nothing behind it
  f.end(guilty);
  CHECK(f.pool.waiting(guilty + 1).runs_on == f.asked[1]);
  CHECK(f.pool.waiting(guilty + 2).runs_on == f.asked[1]);  // they had not begun
}

// A worker that always has tasks was never given back: whoever else wanted its CPU starved.
TEST_CASE("A worker that others wait for ends what it runs and is given back, though more tasks wait") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.now += 1ms;
  f.end(1);  // short ones
  const auto runs = f.submit(), second = f.submit(), third = f.submit(), fourth = f.submit();
  f.end(runs);
  REQUIRE(f.on.at(third) == f.asked[0]);
  const auto want = [&] { f.pool.wanted(f.asked[0], "an actor waits", f.now, f.out), f.take(); };
  SECTION("it runs one") {
    want();
    CHECK(f.asked_back == std::map<TaskNumber, std::uint32_t>{{third, 1}});
    f.give_back(third);
    f.pool.leaves(f.asked[0], true, f.now, f.out), f.take();  // a drain that is cancelled is another thing
    f.tick(10s);
    CHECK(f.returned.empty());  // however long that takes
    f.end(second);
    CHECK(f.pool.waiting(third).runs_on == 0);
    f.tick(0s);
    CHECK(f.returned == std::set<LeaseNumber>{f.asked[0]});
    CHECK(f.reason == "an actor waits");
    f.grant(f.asked[1]);  // which had been asked for
    CHECK(f.on.at(third) == f.asked[1]);
    f.end(third);
    f.end(fourth);
  }
  SECTION("what stands behind has begun already") {
    want();
    f.end(second);
    f.end(third);
    CHECK(f.pool.waiting(fourth).runs_on == 0);
    f.tick(0s);
    CHECK(f.returned == std::set<LeaseNumber>{f.asked[0]});
    f.grant(f.asked[1]);
    f.end(fourth);
  }
  SECTION("it runs none") {
    for (const auto task : {second, third, fourth}) f.end(task);
    want();
    f.tick(0s);
    CHECK(f.returned == std::set<LeaseNumber>{f.asked[0]});
  }
  SECTION("it dies") {
    want();
    f.die(f.asked[0]);
    f.grant(f.asked[1]);
    for (const auto task : {second, third, fourth}) f.end(task);
  }
  f.tick(1s);
  CHECK(f.pool.tasks() == 0);
  CHECK(f.pool.leases() == 0);
}

// Was: it got tasks for as long as it drained, and those of its last seconds died with it.
TEST_CASE("A worker whose node drains ends what it runs, and gets no more tasks") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.now += 1ms;
  f.end(1);  // short ones
  const auto runs = f.submit(0), second = f.submit(), third = f.submit(), fourth = f.submit();
  f.end(runs);
  REQUIRE(f.on.at(second) == f.asked[0]);
  REQUIRE(f.on.at(third) == f.asked[0]);
  f.pool.leaves(f.asked[0], false, f.now, f.out), f.take();
  CHECK(f.asked_back == std::map<TaskNumber, std::uint32_t>{{third, 1}});
  f.give_back(third);
  CHECK(f.pool.waiting(third).runs_on == 0);
  CHECK(f.pool.waiting(third).workers == 0);
  SECTION("it is given back when another one is up") {
    f.grant(f.asked[1]);
    CHECK(f.on.at(third) == f.asked[1]);
    f.end(second);
    CHECK(f.returned.empty());  // soon
    f.tick(0s);
    CHECK(f.returned == std::set<LeaseNumber>{f.asked[0]});
  }
  SECTION("no other node may hold such a worker") {
    f.pool.refused(f.asked[1], {ErrorCode::kRefused, "", "only there", ""}, f.now, f.out), f.take();
    CHECK(f.failed.empty());  // was: all that waited
    f.end(second);
    CHECK(f.on.at(third) == f.asked[0]);
    CHECK(f.pool.waiting(fourth).runs_on == 0);  // nothing behind it
  }
  SECTION("it dies") {
    f.die(f.asked[0]);
    f.grant(f.asked[1]);
    f.end(second);
  }
  SECTION("the drain is cancelled") {
    f.pool.leaves(f.asked[0], true, f.now, f.out), f.take();
    f.end(second);
    CHECK(f.on.at(third) == f.asked[0]);
  }
  f.end(third);
  f.end(fourth);
  f.tick(1s);
  f.tick(1s);
  CHECK(f.pool.tasks() == 0);
  CHECK(f.pool.leases() == 0);
}

// Was: each round left a timer more behind, for ever.
TEST_CASE("However many rounds of tasks there were, one timer is out") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.now += 1ms;
  f.end(1);
  const int before = f.wakes;
  for (int round = 0; round < 1000; ++round) {
    std::vector<TaskNumber> tasks;
    for (int i = 0; i < 8; ++i) tasks.push_back(f.submit());
    for (const TaskNumber task : tasks) f.end(task);
    f.now += 30ms;
    const int posted = f.wakes;
    for (std::uint64_t wake = 1; wake <= f.last_wake; ++wake) f.pool.tick(wake, f.now, f.out);
    f.take();
    CHECK(f.wakes <= posted + 1);  // those of earlier rounds were asked for in vain
  }
  CHECK(f.wakes - before < 3 * 1000);
}

// Whether the second of a worker's tasks had begun when that died is not always known: it ran twice.
TEST_CASE("A task that may run once alone stands behind no other one") {
  Fixture f;
  for (int i = 0; i < 4; ++i) f.submit(0);
  f.grant(f.asked[0]);
  f.now += 1ms;
  f.end(1);
  CHECK(f.on.size() == 2);  // three wait, and one runs
  f.end(2);
  CHECK(f.on.size() == 3);
}

// Was: after short tasks of one function, four of another that waited for each other came to three workers,
// while a fourth stood by: one lay behind another, and all waited for ever.
TEST_CASE("A task of a function that was never measured, or takes long, has its worker to itself") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.now += 1ms;
  f.end(1);  // function 1 is short
  const auto unknown = f.submit(3, 0, kOneCpu, 2);
  std::vector<TaskNumber> more;
  for (int i = 0; i < 3; ++i) more.push_back(f.submit(3, 0, kOneCpu, 2));
  for (int i = 0; i < 8; ++i) more.push_back(f.submit());
  CHECK(f.on.size() == 1 + 1);  // neither another of function 2 nor a short one goes behind the first
  CHECK(f.on.at(unknown) == f.asked[0]);
  f.now += 1s;
  f.end(unknown);
  CHECK(f.on.size() == 1 + 2);
}

// Was: it waited there for as long as the first one ran, be it for ever: the first may wait for just that.
TEST_CASE("What stands behind a task that runs on, though they are short, goes to another worker") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.now += 1ms;
  f.end(1);  // tasks of this function are short
  const auto runs_on = f.submit(), behind = f.submit(), third = f.submit(), fourth = f.submit();
  REQUIRE(f.on.at(runs_on) == f.asked[0]);
  REQUIRE(f.on.at(behind) == f.asked[0]);
  f.tick(19ms);
  CHECK(f.asked_back.empty());
  f.tick(1ms);
  REQUIRE(f.asked_back == std::map<TaskNumber, std::uint32_t>{{behind, 1}});
  SECTION("its worker had not begun it") {
    f.give_back(behind);
    CHECK(f.attempt.at(behind) == 1);  // nor does it go there again
    f.grant(f.asked[1]);
    CHECK(f.on.at(behind) == f.asked[1]);
    CHECK(f.attempt.at(behind) == 2);
    CHECK_FALSE(f.pool.ended(behind, 1, f.now, f.out));  // what its worker says of it: it was not wanted
  }
  SECTION("its worker says that it has begun it: the first has ended") {
    f.end(runs_on);
    CHECK(f.on.at(behind) == f.asked[0]);
    f.tick(1s);
    f.end(behind);
  }
  SECTION("it was cancelled meanwhile, and is not run anywhere") {
    CHECK_FALSE(f.cancel(behind, 1s));
    f.give_back(behind);
    f.grant(f.asked[1]);
    CHECK(f.on.at(behind) == f.asked[0]);
    f.end(behind);
  }
  f.end(runs_on);
  for (const auto task : {behind, third, fourth}) {
    if (f.pool.contains(task)) f.end(task);
  }
  CHECK(f.pool.tasks() == 0);
  CHECK(f.failed.empty());
}

// The first one waits for what the third computes, which it has been given with it.
TEST_CASE("What stands behind a task that waits for it goes to the next worker, before all others") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.now += 100us;
  f.end(1);
  const auto before = f.submit(), reader = f.submit(), behind = f.submit(), maker = f.submit();
  for (int i = 0; i < 10; ++i) f.submit();
  f.now += 100us;
  f.end(before);
  REQUIRE(f.on.at(maker) == f.asked[0]);
  REQUIRE(f.pool.waiting(maker).before == 2);
  f.pool.hasten(maker);
  f.tick(20ms);
  REQUIRE(f.asked_back.contains(maker));
  for (const auto& [task, attempt] : f.asked_back) f.give_back(task);
  CHECK(f.pool.waiting(maker).before == 0);
  CHECK(f.pool.waiting(behind).before == 1);
  f.grant(f.asked[1]);  // in the room that the reader leaves
  CHECK(f.on.at(maker) == f.asked[1]);
  CHECK(f.pool.waiting(maker).before == 0);
  f.end(maker);
  f.end(reader);
  CHECK(f.failed.empty());
}

TEST_CASE("A task goes to a worker of the node where its arguments are, if one is idle, and waits for none") {
  constexpr NodeId kNear{1}, kFar{2};
  Fixture f;
  const auto first = f.submit(), second = f.submit();
  f.grant(f.asked[0], kNear);
  f.grant(f.asked[1], kFar);
  f.now += 10ms;
  f.end(first);
  f.end(second);
  const auto far = f.submit_near(kFar);
  CHECK(f.on.at(far) == f.asked[1]);
  const auto other = f.submit_near(kFar);  // the other worker has nothing to do
  CHECK(f.on.at(other) == f.asked[0]);
  // Both are busy. Who becomes idle takes what is near, if that is soon after the first.
  std::vector<TaskNumber> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(f.submit_near(kFar));
  const auto near = f.submit_near(kNear);
  f.now += 10ms;
  f.end(other);
  CHECK(f.on.at(waiting[0]) == f.asked[0]);  // that was too far behind
  CHECK(f.on.count(near) == 0);
  for (int i = 0; i < 10; ++i) {
    f.now += 10ms;
    f.end(i == 0 ? far : waiting[std::size_t(i)]);
  }
  f.now += 10ms;
  f.end(waiting[0]);
  CHECK(f.on.at(near) == f.asked[0]);
}

TEST_CASE("A task lets others go first so often, and no more") {
  constexpr NodeId kNear{1}, kFar{2};
  Fixture f;
  f.grant((f.submit(), f.asked[0]), kNear);
  const auto far = f.submit_near(kFar);
  f.submit_near(kNear);
  TaskNumber runs = 1;
  int before = 0;
  while (f.on.count(far) == 0) {
    REQUIRE(++before < 100);
    const auto next = f.submit_near(kNear);
    f.now += 10ms;
    f.end(runs);
    for (const auto& [task, lease] : f.on) runs = task == far ? runs : std::max(runs, task);
    CHECK(next > 0);
  }
  CHECK(before == 17);
}

TEST_CASE("A task that threw is tried again while it has retries, which are those of lost workers, too") {
  Fixture f;
  f.grant((f.submit(2), f.asked[0]));
  CHECK(f.throws(1));
  CHECK(f.on.at(1) == f.asked[0]);
  CHECK(f.attempt.at(1) == 2);
  CHECK(f.retried.at(1) == 1);
  f.die(f.asked[0]);
  f.grant(f.asked[1]);
  CHECK(f.attempt.at(1) == 3);
  CHECK_FALSE(f.throws(1));  // that is its answer
  f.end(1);
  CHECK(f.pool.tasks() == 0);
  const auto cancelled = f.submit(2);
  CHECK_FALSE(f.cancel(cancelled, 1s));
  CHECK_FALSE(f.throws(cancelled));
}

// Was: attempts that threw counted as lost workers.
TEST_CASE("A task that fails with its worker says how often workers were lost, not how often it was tried") {
  Fixture f;
  f.grant((f.submit(1), f.asked[0]));
  CHECK(f.throws(1));
  f.die(f.asked[0]);
  CHECK(f.failed.at(1) == "its worker was lost, 1 time: killed by signal 9");
}

TEST_CASE("Of a worker that dies, what had begun is tried again so often; what had not is not counted") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.end(1);
  const auto guilty = f.submit(1);
  const auto next = f.submit(1);
  f.submit();
  REQUIRE(f.on[next] == f.asked[0]);
  f.die(f.asked[0]);
  CHECK(f.failed.empty());
  CHECK(f.returned.contains(f.asked[0]));
  REQUIRE(f.asked.size() >= 2);
  f.grant(f.asked[1]);
  CHECK(f.on[guilty] == f.asked[1]);
  CHECK(f.attempt[guilty] == 2);
  f.die(f.asked[1]);
  REQUIRE(f.failed.size() == 1);
  CHECK(f.failed.at(guilty) == "its worker was lost, 2 times: killed by signal 9");
  CHECK(f.retried == std::map<TaskNumber, int>{{guilty, 1}});
  f.grant(f.asked[2]);
  f.end(next);
  CHECK(f.pool.tasks() == 1);
}

// Was: of a worker's two tasks the second counted as not begun, whatever ended the lease. When both had run
// and their answers were lost with the link or the node, the second ran again without using a retry.
TEST_CASE("Of a worker that is out of reach, both tasks may have begun: each uses a retry") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.end(1);
  const auto first = f.submit(1), second = f.submit(1), third = f.submit(0);
  REQUIRE(f.on.at(second) == f.asked[0]);
  SECTION("the link broke") {
    f.lose(first);
  }
  SECTION("the node died") {
    f.die(f.asked[0], LeasePool::Begun::kAll);
  }
  CHECK(f.retried == std::map<TaskNumber, int>{{first, 1}, {second, 1}});
  CHECK(f.failed.empty());
  f.grant(f.asked[1]);
  for (const TaskNumber task : {first, second, third}) f.end(task);
  CHECK(f.pool.tasks() == 0);
}

// Was: the same, where the first had ended as its worker was killed for it, and the second had just begun.
TEST_CASE("What stands behind a cancelled task is asked for before its worker is killed") {
  Fixture f;
  f.grant((f.submit(), f.asked[0]));
  f.end(1);
  const auto stuck = f.submit(0), behind = f.submit(1), third = f.submit(0);
  REQUIRE(f.on.at(behind) == f.asked[0]);
  CHECK_FALSE(f.cancel(stuck, 0s));
  f.tick(20ms);
  CHECK(f.asked_back.contains(behind));
  CHECK(f.returned.empty());
  SECTION("its worker had not begun it") {
    f.give_back(behind);
    f.tick(0s);
    CHECK(f.returned.contains(f.asked[0]));
    f.grant(f.asked[1]);
    f.end(behind);
    f.end(third);
    CHECK(f.failed.size() == 1);
  }
  SECTION("its worker does not answer") {
    f.tick(100ms);
    CHECK(f.returned.contains(f.asked[0]));
    CHECK(f.failed.size() == 1);
    CHECK(f.retried == std::map<TaskNumber, int>{{behind, 1}});
  }
}

TEST_CASE("An answer of an attempt that was given up is not the task's") {
  Fixture f;
  const auto task = f.submit();
  f.grant(f.asked[0]);
  f.die(f.asked[0]);
  f.grant(f.asked[1]);
  CHECK_FALSE(f.pool.ended(task, 1, f.now, f.out));
  CHECK(f.pool.ended(task, 2, f.now, f.out));
}

TEST_CASE("What a waiting task submitted is its own to run, if its worker can hold it") {
  Fixture f;
  f.submit(3, 7);
  f.submit(3, 7, {20000, 0, {}});
  f.submit(3, 8);
  CHECK(f.pool.take_own(7, kOneCpu, f.now, f.out).task == 1);
  CHECK(f.pool.take_own(7, kOneCpu, f.now, f.out).task == 0);  // two CPUs are more than it has
  CHECK(f.pool.take_own(7, {20000, 0, {}}, f.now, f.out).task == 2);
  CHECK(f.pool.queued() == 1);
}

// What killed its worker would kill the one of the task that submitted it, too.
TEST_CASE("What comes back from a lost worker is left to a new one for a while") {
  Fixture f;
  const auto task = f.submit(3, 7);
  f.grant(f.asked[0]);
  f.die(f.asked[0]);
  CHECK(f.pool.take_own(7, kOneCpu, f.now, f.out).task == 0);
  const auto own = f.pool.take_own(7, kOneCpu, f.now + PoolLimits().new_worker, f.out);
  CHECK(own.task == task);
  CHECK(own.retries == 2);  // was: all of them again
}

TEST_CASE("A task that asks for the room of a placement group runs in no worker of another room") {
  Fixture f;
  const GroupId group{5};
  f.submit(3, 7, {10000, 0, {}, group, 1});
  CHECK(f.pool.take_own(7, kOneCpu, f.now, f.out).task == 0);
  CHECK(f.pool.take_own(7, {10000, 0, {}, GroupId{6}, 1}, f.now, f.out).task == 0);
  CHECK(f.pool.take_own(7, {10000, 0, {}, group, 0}, f.now, f.out).task == 0);
  CHECK(f.pool.take_own(7, {10000, 0, {}, group, 1}, f.now, f.out).task == 1);
}

TEST_CASE("Leases that nobody needs any more are not asked for, and given back when they come all the same") {
  Fixture f;
  f.submit(3, 7);
  REQUIRE(f.pool.take_own(7, kOneCpu, f.now, f.out).task == 1);
  f.take();
  f.tick(100ms);
  CHECK(f.cancelled == std::set<LeaseNumber>{f.asked[0]});
  f.grant(f.asked[0]);
  CHECK(f.returned == std::set<LeaseNumber>{f.asked[0]});
}

TEST_CASE("A demand that no node can hold fails what waits for it at once; a node's bad day does not") {
  Fixture f;
  f.submit();
  f.pool.refused(f.asked[0], {ErrorCode::kUnavailable, "", "the node leaves", ""}, f.now, f.out), f.take();
  CHECK(f.failed.empty());
  f.pool.refused(f.asked[1], {ErrorCode::kRefused, "", "no node has 1 CPU", ""}, f.now, f.out), f.take();
  CHECK(f.failed.at(1) == "no node has 1 CPU");
  CHECK(f.pool.tasks() == 0);
}

TEST_CASE("The queue is bounded by number and by bytes") {
  Fixture f({.queued = 3, .queued_bytes = 25});
  f.submit();
  CHECK(f.pool.has_room());
  f.submit();
  CHECK(f.pool.has_room());
  f.submit();
  CHECK_FALSE(f.pool.has_room());
}

// Whatever order things happen in: each task ends once, and no lease is left.
TEST_CASE("Tasks end once and leases are given back, in any order of events") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    SeededRandom random(seed);
    Fixture f;
    std::set<TaskNumber> open, done;
    std::set<LeaseNumber> granted;
    for (int step = 0; step < 400; ++step) {
      f.now += std::chrono::milliseconds(random.next() % 20);
      const auto any = [&](const auto& from) {
        return *std::next(from.begin(), long(random.next() % from.size()));
      };
      switch (random.next() % 8) {
        case 0:
        case 1:
          open.insert(f.submit(int(random.next() % 3), random.next() % 3));
          break;
        case 2:
          if (!f.asked.empty()) {
            const LeaseNumber lease = any(f.asked);
            if (granted.insert(lease).second) f.grant(lease);
          }
          break;
        case 3:
          if (!f.on.empty()) {
            const TaskNumber task = any(open.empty() ? std::set<TaskNumber>{1} : open);
            if (f.on.contains(task) && f.pool.ended(task, f.attempt[task], f.now, f.out))
              CHECK(done.insert(task).second);
            f.take();
          }
          break;
        case 4:
          if (!granted.empty())
            f.die(any(granted), random.next() % 2 == 0 ? LeasePool::Begun::kOldest : LeasePool::Begun::kAll);
          break;
        case 5:
          if (const auto task = any(open.empty() ? std::set<TaskNumber>{1} : open); f.on.contains(task))
            f.throws(task);
          break;
        case 6:  // maybe of an attempt that is over
          if (!open.empty()) f.pool.hasten(any(open));
          if (!f.asked_back.empty()) f.give_back(any(f.asked_back).first);
          break;
        default:
          if (const auto task = f.pool.take_own(random.next() % 3, kOneCpu, f.now, f.out).task)
            CHECK(done.insert(task).second);
          f.take();
          f.tick(1ms);
      }
      for (const auto& [task, why] : f.failed) CHECK_FALSE(done.contains(task));
    }
    CHECK(f.pool.tasks() == open.size() - done.size() - f.failed.size());
    f.pool.close({ErrorCode::kUnavailable, "", "over", ""}, f.out), f.take();
    CHECK(done.size() + f.failed.size() == open.size());
    CHECK(f.pool.leases() == 0);
    for (const LeaseNumber lease : f.asked)
      CHECK((f.returned.contains(lease) || f.cancelled.contains(lease)));
  }
}

TEST_CASE("A cancelled task that waits is forgotten, and its lease is not asked for any more") {
  Fixture f;
  const auto task = f.submit();
  CHECK(f.cancel(task, 1s));
  CHECK_FALSE(f.cancel(task, 1s));
  CHECK(f.pool.tasks() == 0);
  CHECK(f.pool.queued() == 0);
  f.tick(200ms);
  CHECK(f.cancelled.count(f.asked[0]) == 1);
}

TEST_CASE("A cancelled task that runs is asked to end, and its worker is killed when it does not") {
  Fixture f;
  const auto task = f.submit();
  f.grant(f.asked[0]);
  const auto next = f.submit();
  CHECK_FALSE(f.cancel(task, 1s));
  CHECK(f.interrupted.at(task) == f.asked[0]);
  f.tick(900ms);
  CHECK(f.returned.empty());
  f.tick(200ms);
  CHECK(f.returned == std::set<LeaseNumber>{f.asked[0]});
  CHECK(f.failed.count(task) == 1);  // once, and not tried again
  CHECK(f.on.count(next) == 0);      // it waits for the next worker
  CHECK(f.pool.tasks() == 1);
  f.grant(f.asked[1]);
  CHECK(f.on.at(next) == f.asked[1]);
}

TEST_CASE("A cancelled task that ends, or whose worker dies, ends so") {
  Fixture f;
  const auto ends = f.submit();
  f.grant(f.asked[0]);
  CHECK_FALSE(f.cancel(ends, 1s));
  f.end(ends);
  f.tick(300ms);
  CHECK(f.pool.tasks() == 0);
  const auto dies = f.submit(3);
  CHECK_FALSE(f.cancel(dies, Duration::max()));  // it may run as long as it likes
  f.tick(1h);
  CHECK(f.returned.empty());
  f.die(f.on.at(dies));
  CHECK(f.pool.tasks() == 0);
  CHECK(f.failed.count(dies) == 1);
}

// It is not run there, so the worker is not killed for it; the one before it may take long.
TEST_CASE("A cancelled task that waits behind another one in its worker costs that one nothing") {
  Fixture f({.short_task = 1h});
  std::vector<TaskNumber> tasks;
  tasks.push_back(f.submit());
  f.grant(f.asked[0]);
  f.end(tasks[0]);  // tasks are short
  for (int i = 0; i < 8; ++i) tasks.push_back(f.submit());
  REQUIRE(f.on.at(tasks[1]) == f.asked[0]);
  REQUIRE(f.on.at(tasks[2]) == f.asked[0]);
  CHECK_FALSE(f.cancel(tasks[2], 0s));
  f.tick(10s);
  CHECK(f.returned.count(f.asked[0]) == 0);
  f.end(tasks[1]);
  f.end(tasks[2]);
  CHECK(f.failed.empty());
}

// Was: a worker remembered numbers. A task that was tried again there counted as begun when it was asked for,
// so it waited behind a long one.
TEST_CASE("A worker tells a task's attempts apart, when it is asked for one and when one is cancelled") {
  PushedTasks worker;
  CHECK(worker.begin({7, 1}));
  worker.end({});
  CHECK_FALSE(worker.take_back({7, 1}));
  CHECK(worker.take_back({7, 2}));  // the second attempt has not begun
  CHECK(worker.begin({8, 1}));
  worker.end({});
  CHECK_FALSE(worker.begin({7, 2}));
  worker.end({});
  CHECK(worker.take_back({7, 3}));
  CHECK(worker.begin({7, 4}));  // asked for in another attempt
  CHECK(worker.cancel(7));      // it runs
  worker.end({});
  CHECK_FALSE(worker.cancel(9));
  CHECK_FALSE(worker.begin({9, 2}));  // whatever its attempt
  worker.end({});
  CHECK(worker.begin({9, 3}));
  // What is refused and never comes is forgotten for what is newer.
  for (TaskNumber task = 100; task < 300; ++task) CHECK(worker.take_back({task, 1}));
  CHECK(worker.begin({100, 1}));
  worker.end({});
  CHECK_FALSE(worker.begin({299, 1}));
}

TEST_CASE("A worker is unused when nothing has run there for ten seconds, and nothing has begun") {
  const Instant t{100s};
  PushedTasks worker;
  CHECK(worker.unused_in(t) == kUnused);  // no task may come
  worker.serves(t);
  CHECK(worker.unused_in(t + 4s) == 6s);
  worker.begin({1, 1});
  CHECK(worker.unused_in(t + 1min) == kUnused);  // it runs
  worker.end(t + 1min);
  CHECK(worker.unused_in(t + 69s) == 1s);
  CHECK(worker.unused_in(t + 70s) == 0s);
  CHECK(worker.unused_in(t + 90s) == 0s);
  worker.begin({2, 1});
  CHECK(worker.unused_in(t + 90s) == kUnused);
}
