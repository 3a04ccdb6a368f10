// The objects of one process whose node and disk do what a test says.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "runtime/core/thread_floor.hpp"
#include "runtime/core/thread_limit.hpp"
#include "runtime/host/may_wait.hpp"
#include "runtime/objects/object_messages.hpp"
#include "runtime/objects/objects.hpp"
#include "tests/runtime/objects/one_store.hpp"
#include "tests/support/eventually.hpp"

using namespace troupe;
using namespace troupe::objects;
using namespace std::chrono_literals;
using troupe::testing::Store;

namespace {

constexpr std::size_t kBytes = Store::kBytes;
constexpr ProcessAddress kOther{{9}, {9}};
constexpr auto says = Store::says;

/// No thread can be started.
class NoThreads final : public ThreadFloor {
 public:
  Instant now() override { return now_; }
  void wait(std::atomic<std::uint32_t>&, std::uint32_t, Duration) override { std::abort(); }
  void wake(std::atomic<std::uint32_t>&) override {}
  std::unique_ptr<Running> start(std::function<void()>) override {
    throw_error(cannot_start_thread(std::make_error_code(std::errc::resource_unavailable_try_again)));
  }

 private:
  const Instant now_ = MonotonicClock().now();
};

/// The end of a call's body whose first parameter is given by that object.
wire::Bytes given(const ObjectName& name) {
  const auto bytes = std::as_bytes(std::span(&name, 1));
  wire::Bytes body(bytes.begin(), bytes.end());
  body.push_back(std::byte{1});
  return body;
}

bool equal(const Fetch& fetch, const wire::Bytes& bytes) {
  const auto view = fetch.bytes->view();
  return std::equal(view.begin(), view.end(), bytes.begin(), bytes.end());
}

/// So many answers that nobody has read.
std::vector<std::shared_ptr<CallState>> stored_answers(const Store& store, int count) {
  std::vector<std::shared_ptr<CallState>> states;
  for (int i = 0; i < count; ++i) {
    const auto state = states.emplace_back(std::make_shared<CallState>(nullptr));
    store.objects->store(Store::bytes(i), [state](const Outcome& outcome, CallState::Load load) {
      load != nullptr ? state->resolve_stored(std::move(load)) : state->resolve(outcome);
    });
  }
  return states;
}

}  // namespace

TEST_CASE("An object that cannot leave, nor be mapped again, is there still") {
  Store store;
  const auto objects = store.put(4);
  store.refuses_old = true;
  CHECK_THROWS_AS(store.put(1), LimitExceeded);
  for (int i = 0; i < 4; ++i) {
    const auto fetch = store.objects->fetch(objects[std::size_t(i)]->name());
    REQUIRE(fetch->done.wait(20s));
    REQUIRE(fetch->done.outcome().ok());
    CHECK(equal(*fetch, Store::bytes(i)));
  }
  store.refuses_old = false;
  CHECK(store.put(1).size() == 1);
}

// Was: the page promised it, and a get() threw LimitExceeded.
TEST_CASE("An object on disk is read where neither the store nor the disk has room") {
  Store store;
  const auto objects = store.put(6);
  REQUIRE(store.objects->counts().spilled > 0);
  store.refuses_old = true;  // nothing can leave any more
  for (int i = 0; i < 12; ++i) {
    const auto fetch = store.objects->fetch(objects[std::size_t(i % 6)]->name());
    REQUIRE(fetch->done.wait(20s));
    REQUIRE(fetch->done.outcome().ok());
    CHECK(equal(*fetch, Store::bytes(i % 6)));
  }
}

// Was: that such an object was read beside the store counted as if it lay there: its owner looked for it
// anew, read the file again, and so on. Who asked had neither the object nor an error.
TEST_CASE("Another process that wants an object for which the store has no room is told so") {
  Store store;
  const auto objects = store.put(6);
  REQUIRE(store.objects->counts().spilled > 0);
  store.refuses_old = true;  // nothing can leave any more
  std::size_t refused = 0;
  for (const auto& object : objects) {
    const auto answer = std::make_shared<CallState>(nullptr);
    store.objects->asked({{1}, {9}}, kLocate, wire::encode(LocateAsk{object->name().number}),
                         Responder(answer));
    REQUIRE(answer->wait(20s));
    if (answer->outcome().ok()) continue;
    ++refused;
    CHECK(answer->outcome().error().code == ErrorCode::kLimit);
  }
  CHECK(refused == store.objects->counts().spilled);
}

// Was: the owner read its file for nothing, and where there was no room said so, though a copy lay next to
// it.
TEST_CASE("Who asks on a node that has a copy is told so, wherever the object itself is") {
  Store store;
  const auto objects = store.put(6);
  store.refuses_old = true;
  for (const auto& object : objects) {
    const std::uint64_t number = object->name().number;
    const auto ask = [&](ProcessAddress from) {
      const auto answer = std::make_shared<CallState>(nullptr);
      store.objects->asked(from, kLocate, wire::encode(LocateAsk{number}), Responder(answer));
      REQUIRE(answer->wait(20s));
      return wire::decode<Location>(answer->outcome().value()).value();
    };
    const Location first = ask(kOther);
    REQUIRE(first.where == Where::kFetch);
    store.objects->asked(kOther, kCopied, wire::encode(CopiedTell{number, first.ticket, true}), Responder());
    CHECK(ask({kOther.node, {10}}).where == Where::kHere);
  }
  CHECK(store.objects->counts().spilled > 0);
}

// Was: what nobody read lay in its caller's memory, without a bound.
TEST_CASE("Answers that nobody reads lie in the store and on its disk until they are read or let go") {
  constexpr int kAnswers = 12;
  Store store;
  auto states = stored_answers(store, kAnswers);
  for (const auto& state : states) {
    REQUIRE(state->wait(60s));
    CHECK_FALSE(state->is_here());
  }
  CHECK(store.objects->counts().owned == kAnswers);
  CHECK(store.objects->counts().spilled >= kAnswers - 4);
  for (int i = 0; i < kAnswers / 2; ++i) {
    auto& state = states[std::size_t(i)];
    REQUIRE(state->load(60s));
    CHECK(state->outcome().value() == Store::bytes(i));
  }
  // What was read is its reader's.
  CHECK(test::eventually([&] { return store.objects->counts().owned == kAnswers / 2; }, 60s));
  const auto last = states.back();
  states.clear();
  CHECK(test::eventually([&] { return store.objects->counts().owned == 1; }, 60s));
  // One that is read when its session is over says so.
  store.objects->close();
  store.objects->stop();
  store.objects = std::make_shared<Objects>(store, nullptr, [](const auto&, auto, auto) {});
  REQUIRE(last->load(60s));
  CHECK(last->failure()->why.find("session has ended") != std::string::npos);
}

TEST_CASE("A large answer for which the store has no room is in its caller's memory") {
  Store store;
  const auto objects = store.put(4);
  store.refuses_old = true;  // nothing can leave
  const auto state = std::make_shared<CallState>(nullptr);
  store.objects->store(Store::bytes(7), [state](const Outcome& outcome, const CallState::Load& load) {
    state->resolve(load == nullptr ? outcome : Outcome(says("it is stored")));
  });
  REQUIRE(state->wait(60s));
  CHECK(state->outcome().value() == Store::bytes(7));
}

TEST_CASE("A process that has ended reads no files for others") {
  Store store;
  const auto objects = store.put(5);
  REQUIRE(store.objects->counts().spilled > 0);
  store.objects->close();
  store.objects->stop();
  const auto answer = std::make_shared<CallState>(nullptr);
  store.objects->asked(kOther, kPart, wire::encode(PartAsk{objects[0]->name().number, 0, 100}),
                       Responder(answer));
  REQUIRE(answer->ready());
  CHECK_FALSE(answer->outcome().ok());
}

TEST_CASE("Whoever waits for an object or for memory when its process ends hears of it") {
  Store store;
  const auto objects = store.put(5);
  std::promise<void> stuck, go_on;
  std::atomic<bool> first = true;
  const auto owner = std::this_thread::get_id();
  store.on_ask = [&](const std::string&) {
    if (std::this_thread::get_id() == owner || !first.exchange(false)) return;
    stuck.set_value();
    go_on.get_future().wait();
  };
  const auto room = std::make_shared<CallState>(nullptr);
  store.objects->asked(kOther, kMakeRoom, wire::encode(RoomAsk{kBytes}), Responder(room));
  stuck.get_future().wait();
  const auto fetch = store.objects->fetch(objects[0]->name());  // waits behind that
  CHECK_FALSE(fetch->done.ready());
  auto put = std::async(std::launch::async, [&] { store.put(4); });
  store.objects->close();
  auto stop = std::async(std::launch::async, [&] { store.objects->stop(); });
  go_on.set_value();
  stop.get();
  CHECK(fetch->done.wait(20s));
  CHECK(room->ready());
  const bool over = put.wait_for(20s) == std::future_status::ready;
  if (!over) std::abort();  // it waits for ten minutes
  CHECK_THROWS(put.get());
}

TEST_CASE("A process that ends writes no more objects to disk") {
  Store store;
  const auto objects = store.put(4);
  store.on_ask = [&](const std::string&) { store.objects->close(); };
  const auto room = std::make_shared<CallState>(nullptr);
  store.objects->asked(kOther, kMakeRoom, wire::encode(RoomAsk{4 * kBytes}), Responder(room));
  CHECK(room->wait(20s));
  store.objects->stop();
  CHECK(store.objects->counts().spilled == 1);  // it was under way
}

TEST_CASE("A copy that fails on its way, and one that is let go, leave no memory behind") {
  Store store;
  const ObjectName name{kOther, 7};
  store.on_call = [](std::uint64_t operation) -> std::optional<Outcome> {
    if (operation == kLocate) return wire::encode(Location{Where::kFetch, kBytes, 0, {}});
    return says("the owner is gone");
  };
  const auto fetch = store.objects->fetch(name);
  REQUIRE(fetch->done.ready());
  CHECK_FALSE(fetch->done.outcome().ok());
  CHECK_FALSE(store.has(copy_region(name)));
  REQUIRE(store.lend(copy_region(name), kBytes));
  store.objects->asked(kOther, kFreed, wire::encode(NumberTell{7}), Responder());
  CHECK_FALSE(store.has(copy_region(name)));
}

// Was: a copy on its owner's own node, of a light actor's object, was let go and its memory kept; and memory
// of a copy that others still read when it was let go stayed when its owner died (seeds 110 and 231 of the
// simulator).
TEST_CASE("A copy that is let go makes room, at the latest when its owner dies") {
  Store store;
  const ObjectName name{{store.address().node, {77}}, 7};
  store.on_call = [](std::uint64_t operation) -> std::optional<Outcome> {
    if (operation == kLocate) return wire::encode(Location{Where::kFetch, kBytes, 0, {}});
    return operation == kPart ? Store::bytes(7) : wire::Bytes{};
  };
  REQUIRE(store.objects->fetch(name)->done.ready());
  REQUIRE(store.has(copy_region(name)));
  SECTION("nobody reads it") {
    const auto objects = store.put(6);
    CHECK_FALSE(store.has(copy_region(name)));
  }
  SECTION("another process reads it") {
    const auto lent = store.lend(copy_region(name), kBytes).value();
    const auto reader = read_copy(lent.fd, name, kBytes).value();
    const auto objects = store.put(6);
    REQUIRE(store.has(copy_region(name)));
    store.objects->process_down(name.owner, "killed by signal 9");
    CHECK_FALSE(store.has(copy_region(name)));
  }
  // Was: between the two it was nowhere that such a death looks.
  SECTION("another process reads it, and its owner dies while it is let go") {
    const auto lent = store.lend(copy_region(name), kBytes).value();
    const auto reader = read_copy(lent.fd, name, kBytes).value();
    std::atomic<int> deaths = 0;
    store.on_ask = [&](const std::string& key) {
      if (key == copy_region(name) && deaths++ == 0)
        store.objects->process_down(name.owner, "killed by signal 9");
    };
    const auto objects = store.put(6);
    CHECK(deaths > 0);
    CHECK_FALSE(store.has(copy_region(name)));
  }
}

// Was: who was told that its node has a copy, and found its memory gone, had opened new memory with that. It
// kept that for a copy that it would make, and asked the owner; when that was dead, or no link reached it,
// the memory stayed on the node for good (seeds 6011 and 201683 of the simulator).
TEST_CASE("A reader that found no copy where one should be gives back the memory that it opened") {
  const ObjectName name{kOther, 7};
  Store store;
  const Location here{Where::kHere, kBytes, 0, {}};
  std::vector<Outcome> answers{wire::encode(here)};
  std::size_t asked = 0;
  store.on_call = [&](std::uint64_t operation) -> std::optional<Outcome> {
    return operation == kLocate ? answers.at(asked++) : Outcome(wire::Bytes{});
  };
  const auto reads = [&] {
    const auto fetch = store.objects->fetch(name);
    while (store.do_delayed()) {
    }
    REQUIRE(fetch->done.ready());
    CHECK(asked == answers.size());
    return fetch->done.outcome().ok();
  };
  SECTION("its owner is dead") {
    answers.emplace_back(ErrorInfo{ErrorCode::kActorDied, "the actor is gone", "killed by signal 9", ""});
    CHECK_FALSE(reads());
  }
  SECTION("the link to its owner broke") {
    answers.emplace_back(wire::encode(here));
    answers.emplace_back(ErrorInfo{ErrorCode::kUnavailable, "a call has no answer", "the link broke", ""});
    CHECK_FALSE(reads());
  }
  SECTION("its owner dies first, and another process of the node that has a copy has not heard so") {
    store.on_ask = [&](const std::string& key) {
      store.objects->process_down(kOther, "killed by signal 9");
      REQUIRE(finish_copy(store.lend(key, kBytes + kTagBytes)->fd, name, kBytes));
    };
    CHECK(reads());
  }
  CHECK_FALSE(store.has(copy_region(name)));
}

TEST_CASE("An object whose memory is gone whenever it is looked for is not lost: there is no room") {
  Store store;
  store.on_call = [](std::uint64_t operation) -> std::optional<Outcome> {
    if (operation == kLocate) return wire::encode(Location{Where::kHere, kBytes, 0, {}});
    return Outcome(wire::Bytes{});
  };
  const auto fetch = store.objects->fetch({kOther, 7});
  CHECK_FALSE(fetch->done.ready());  // it does not ask its owner as fast as it can
  while (store.do_delayed()) {
  }
  REQUIRE(fetch->done.ready());
  REQUIRE_FALSE(fetch->done.outcome().ok());
  CHECK(fetch->done.outcome().error().code == ErrorCode::kLimit);
}

TEST_CASE("A process that does not answer keeps nobody waiting for room") {
  Store store;
  const auto objects = store.put(4);
  store.refuses_old = true;  // there is no room here
  store.holders = {kOther.process};
  store.on_call = [](std::uint64_t) { return std::nullopt; };
  auto put = std::async(std::launch::async, [&] { store.put(1); });
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (put.wait_for(1ms) != std::future_status::ready) {
    store.do_delayed();
    if (std::chrono::steady_clock::now() > deadline) std::abort();  // it waits for ten minutes
  }
  CHECK_THROWS_AS(put.get(), LimitExceeded);
}

TEST_CASE("An answer that is offered lives until its caller holds it, or is gone") {
  Store store;
  const auto tell = [&](std::uint64_t operation, std::uint64_t number) {
    store.objects->asked(kOther, operation, wire::encode(NumberTell{number}), Responder());
  };
  const auto offer = [&] {
    const auto object = store.objects->put(Store::bytes(1));
    store.objects->offer(object, kOther);
    return object->name().number;
  };
  std::uint64_t number = offer();
  CHECK(store.objects->counts().owned == 1);
  tell(kAddBorrower, number);
  store.objects->node_lost(kOther.node);  // it holds it now
  CHECK(store.objects->counts().owned == 1);
  tell(kGiveBack, number);
  CHECK(store.objects->counts().owned == 0);
  // Was: what says that the caller holds it was lost, the caller gave back alone, and the offer stayed.
  number = offer();
  store.objects->asked({kOther.node, {77}}, kGiveBack, wire::encode(NumberTell{number}), Responder());
  CHECK(store.objects->counts().owned == 1);  // another's word
  tell(kGiveBack, number);
  CHECK(store.objects->counts().owned == 0);
  CHECK(store.objects->counts().offered == 0);
  // One that holds it already, and is offered it again, gives back the first.
  {
    const auto object = store.objects->put(Store::bytes(1));
    number = object->name().number;
    store.objects->offer(object, kOther);
    tell(kAddBorrower, number);
    store.objects->offer(object, kOther);
  }
  tell(kGiveBack, number);
  CHECK(store.objects->counts().owned == 1);
  tell(kGiveBack, number);
  CHECK(store.objects->counts().owned == 0);
  offer();
  store.objects->node_lost({8});
  CHECK(store.objects->counts().owned == 1);
  store.objects->node_lost(kOther.node);
  CHECK(store.objects->counts().owned == 0);
  offer();
  store.objects->process_down(kOther, "the test says so");
  CHECK(store.objects->counts().owned == 0);
  offer();  // to a process that is gone
  CHECK(store.objects->counts().owned == 0);
}

// Was: a node tells no deaths while it is not connected, and nobody told them later: what such a process had
// borrowed was held for good.
TEST_CASE("A process that dies while its link is broken holds nothing any more") {
  Store store;
  auto object = store.objects->put(Store::bytes(1));
  store.objects->asked(kOther, kAddBorrower, wire::encode(NumberTell{object->name().number}), Responder());
  object = nullptr;
  const ErrorInfo broke{ErrorCode::kUnavailable, "a call has no answer", "the link broke", ""};
  const ErrorInfo died{ErrorCode::kActorDied, "the actor is gone", "killed by signal 9", ""};
  std::vector<Outcome> answers{broke, wire::encode(MakingTell{}), broke, died};
  std::size_t asked = 0;
  store.on_call = [&](std::uint64_t operation) -> std::optional<Outcome> {
    return operation == kStillMakes ? answers.at(asked++) : Outcome(wire::Bytes{});
  };
  for (int breaks = 1; breaks <= 2; ++breaks) {
    store.objects->node_lost({8});
    CHECK_FALSE(store.do_delayed());
    store.objects->node_lost(kOther.node);
    store.objects->node_lost(kOther.node);  // it is asked once
    CHECK(store.objects->counts().owned == 1);
    while (store.do_delayed()) {
    }
    CHECK(asked == std::size_t(2 * breaks));
  }
  CHECK(store.objects->counts().owned == 0);
}

// Was: who waited for its node's copy waited for good when the one that made it had not heard so.
TEST_CASE("Who was told to make a copy and has not heard it is asked, and the next one makes it") {
  constexpr ProcessAddress kToo{{9}, {10}};
  Store store;
  const auto object = store.objects->put(Store::bytes(1));
  const std::uint64_t number = object->name().number;
  const auto locate = [&](ProcessAddress from) {
    auto answer = std::make_shared<CallState>(nullptr);
    store.objects->asked(from, kLocate, wire::encode(LocateAsk{number}), Responder(answer));
    return answer;
  };
  const auto first = locate(kOther), second = locate(kToo);
  REQUIRE(first->ready());
  CHECK_FALSE(second->ready());
  std::vector<std::uint64_t> asked;
  store.on_ask_of = [&](std::uint64_t operation, const wire::Bytes& body) -> std::optional<Outcome> {
    if (operation != kStillMakes) return Outcome(wire::Bytes{});
    const auto question = wire::decode<MakingTell>(body).value();
    asked.insert(asked.end(), question.numbers.begin(), question.numbers.end());
    return Outcome(wire::encode(question));  // none of these
  };
  store.objects->node_lost(kOther.node);
  REQUIRE(second->ready());
  CHECK(second->outcome().error().code == ErrorCode::kUnavailable);
  const auto again = locate(kToo);
  CHECK_FALSE(again->ready());
  while (store.do_delayed()) {
  }
  // Whoever has been told to make one meanwhile is asked about that, too.
  REQUIRE(again->ready());
  CHECK(wire::decode<Location>(again->outcome().value()).value().where == Where::kFetch);
  REQUIRE(!asked.empty());
  CHECK(asked.front() == number);
}

TEST_CASE("A process says of a copy that it makes it from when it was told so until that has ended") {
  const ObjectName name{kOther, 7};
  Store store;
  store.on_call = [](std::uint64_t operation) -> std::optional<Outcome> {
    if (operation != kLocate) return std::nullopt;
    Location at{Where::kFetch, kBytes, 0, {}};
    at.ticket = 3;
    return Outcome(wire::encode(at));
  };
  const auto does_not_make = [&] {
    const auto answer = std::make_shared<CallState>(nullptr);
    store.objects->asked(kOther, kStillMakes, wire::encode(MakingTell{{name.number}}), Responder(answer));
    return wire::decode<MakingTell>(answer->outcome().value()).value().numbers;
  };
  CHECK(does_not_make() == std::vector<std::uint64_t>{name.number});
  const auto fetch = store.objects->fetch(name);
  CHECK(does_not_make().empty());
  std::optional<CopiedTell> told;
  store.on_ask_of = [&](std::uint64_t operation, const wire::Bytes& body) -> std::optional<Outcome> {
    if (operation == kCopied) told = wire::decode<CopiedTell>(body).value();
    return Outcome(wire::Bytes{});
  };
  store.fail_unanswered(says("the link broke"));
  REQUIRE(fetch->done.ready());
  CHECK(does_not_make() == std::vector<std::uint64_t>{name.number});
  REQUIRE(told);
  CHECK_FALSE(told->ok);
  CHECK(told->ticket == 3);
}

// Who sent such an answer on put it as an object, and waited there for room that this very thread makes.
TEST_CASE("Who is given a large answer must not wait") {
  constexpr std::size_t kLarge = std::size_t{17} << 20;
  Store store;
  store.on_call = [](std::uint64_t operation) -> std::optional<Outcome> {
    if (operation != kLocate) return Outcome(wire::Bytes{});
    return Outcome(wire::encode(Location{Where::kInline, kLarge, 0, wire::Bytes(kLarge)}));
  };
  const auto given = std::make_shared<std::promise<std::pair<std::size_t, bool>>>();
  store.objects->take({kOther, 1}, [given](const Outcome& outcome) {
    given->set_value({outcome.ok() ? outcome->size() : 0, thread_may_wait()});
  });
  const std::pair<std::size_t, bool> what = given->get_future().get();
  CHECK(what.first == kLarge);
  CHECK_FALSE(what.second);
}

// Was: an actor that set a Promise waited inside a callback for room. The answer that says that there is room
// came in this very thread, and its callback had its turn after the one that waited: 10 minutes.
TEST_CASE("A callback of an answer must not wait, whatever thread it runs in") {
  CallState first(nullptr), second(nullptr);
  std::vector<bool> may_wait;
  first.on_ready([&] {
    second.on_ready([&] { may_wait.push_back(thread_may_wait()); });
    second.resolve(wire::Bytes{});
    may_wait.push_back(thread_may_wait());
  });
  first.resolve(wire::Bytes{});
  CHECK(may_wait == std::vector<bool>{false, false});
  CHECK(thread_may_wait());
}

// Was: a method passed on such an answer in the thread that read it, and that waited there for room, which it
// makes itself.
TEST_CASE("Who passes on an answer that comes back from disk must not wait") {
  constexpr int kAnswers = 8;
  Store store;
  auto states = stored_answers(store, kAnswers);
  for (const auto& state : states) REQUIRE(state->wait(60s));
  REQUIRE(store.objects->counts().spilled >= kAnswers - 4);
  const auto passed_on = std::make_shared<CallState>(nullptr);
  const auto read = std::make_shared<std::promise<bool>>();
  passed_on->on_ready([read] { read->set_value(thread_may_wait()); });
  detail::answer_later(states[0], Responder(passed_on), "a method");
  CHECK_FALSE(read->get_future().get());
  CHECK(passed_on->outcome().value() == Store::bytes(0));
}

// Was: it failed at once and without an origin. Of a task that was taken for a lost worker: a healthy one was
// ended, and a retry used, though the task had never begun.
TEST_CASE("An argument whose owner no link reaches is asked for again, as long as that can take") {
  const ErrorInfo broke{ErrorCode::kUnavailable, "a call has no answer", "the link broke", ""};
  constexpr std::uint64_t kLarge = 3 * kBytes;
  enum class Breaks { kTwice, kOnceInACopy, kForGood };
  for (const auto how : {Breaks::kTwice, Breaks::kOnceInACopy, Breaks::kForGood}) {
    Store store;
    std::atomic<int> located = 0, parts = 0;
    store.on_ask_of = [&](std::uint64_t operation, const wire::Bytes& body) -> std::optional<Outcome> {
      if (operation == kPart) {
        if (++parts == 1) return broke;
        return Outcome(wire::Bytes(wire::decode<PartAsk>(body).value().bytes));
      }
      if (operation != kLocate) return Outcome(wire::Bytes{});
      ++located;
      if (how == Breaks::kOnceInACopy) return Outcome(wire::encode(Location{Where::kFetch, kLarge, 0, {}}));
      if (how == Breaks::kForGood || located <= 2) return broke;
      return Outcome(wire::encode(Location{Where::kInline, 1, 0, wire::Bytes(1)}));
    };
    auto body = given({kOther, 5});
    const auto references = store.objects->references(body).value();
    CHECK_FALSE(references->ready());
    if (how == Breaks::kOnceInACopy) {
      // Its second try finds the store full, and is not counted together with the first one.
      const auto used = store.put(2);
      const auto looks = store.objects->fetch(used[0]->name());
      const auto looks_too = store.objects->fetch(used[1]->name());
      CHECK(store.do_delayed());
      CHECK(test::eventually([&] { return store.do_delayed() || references->ready(); }, 60s));
      CHECK_FALSE(references->ready());
    }
    while (store.do_delayed()) {
    }
    CHECK(test::eventually([&] { return store.do_delayed(), references->ready(); }, 60s));
    REQUIRE(references->ready());
    const auto answer = std::make_shared<CallState>(nullptr);
    references->invoke(Responder(answer), [](Responder to) { to.answer({}); });
    REQUIRE(answer->ready());
    CHECK(answer->outcome().ok() == (how != Breaks::kForGood));
    const int broken_links = ObjectLimits().broken_links;
    CHECK(located.load() == (how == Breaks::kTwice ? 3 : how == Breaks::kForGood ? broken_links + 1 : 2));
    if (how == Breaks::kOnceInACopy) CHECK((*references->at(0))->view().size() == kLarge);
  }
}

// Was: whether an argument behind a broken link was asked for again, and whether a reader heard of it at
// once, was decided by who of both had come first.
TEST_CASE("An argument and a reader share a try, and behind a broken link each has its own way") {
  const ErrorInfo broke{ErrorCode::kUnavailable, "a call has no answer", "the link broke", ""};
  for (const bool argument_first : {true, false}) {
    INFO(argument_first);
    Store store;
    int located = 0;
    std::optional<Outcome> said;  // nothing: it does not answer yet
    store.on_ask_of = [&](std::uint64_t operation, const wire::Bytes&) -> std::optional<Outcome> {
      if (operation != kLocate) return Outcome(wire::Bytes{});
      ++located;
      return said;
    };
    const ObjectName name{kOther, 5};
    auto body = given(name);
    std::shared_ptr<const References> references;
    if (argument_first) references = store.objects->references(body).value();
    const auto reader = store.objects->fetch(name);
    if (!argument_first) references = store.objects->references(body).value();
    CHECK(located == 1);
    store.fail_unanswered(broke);
    CHECK(reader->done.ready());
    REQUIRE_FALSE(references->ready());
    said = Outcome(wire::encode(Location{Where::kInline, 1, 0, wire::Bytes(1)}));
    CHECK(store.do_delayed());
    REQUIRE(references->ready());
    CHECK((*references->at(0))->view().size() == 1);
    CHECK(located == 2);
  }
}

TEST_CASE("An argument that a reader's try found no room for waits for it by itself") {
  Store store;
  store.on_ask_of = [](std::uint64_t operation, const wire::Bytes& body) -> std::optional<Outcome> {
    if (operation == kLocate) return std::nullopt;
    if (operation != kPart) return Outcome(wire::Bytes{});
    return Outcome(wire::Bytes(wire::decode<PartAsk>(body).value().bytes));
  };
  const auto used = store.put(4);
  auto looks = store.objects->fetch(used[0]->name());  // that one does not leave
  const ObjectName name{kOther, 5};
  const auto reader = store.objects->fetch(name);
  auto body = given(name);
  const auto references = store.objects->references(body).value();
  const auto answer = [&] {
    store.answer_unanswered(wire::encode(Location{Where::kFetch, 4 * kBytes, 0, {}}));
    return store.do_delayed();
  };
  CHECK(test::eventually([&] { return answer(), reader->done.ready(); }, 60s));
  CHECK_FALSE(reader->done.outcome().ok());
  REQUIRE_FALSE(references->ready());
  looks = nullptr;
  CHECK(test::eventually([&] { return answer(), references->ready(); }, 60s));
  REQUIRE(references->at(0) != nullptr);
  CHECK(*references->at(0) != nullptr);
}

TEST_CASE("A call whose argument is to be asked for again ends with its process") {
  Store store;
  store.on_ask_of = [](std::uint64_t, const wire::Bytes&) {
    return Outcome(ErrorInfo{ErrorCode::kUnavailable, "a call has no answer", "the link broke", ""});
  };
  auto body = given({kOther, 5});
  const auto references = store.objects->references(body).value();
  CHECK_FALSE(references->ready());
  store.objects->close("the test is over");
  CHECK(references->ready());
  CHECK(store.do_delayed());
}

// Was: whoever waited for an object that had left for disk looked at it after it had gone.
TEST_CASE("Who waits for an object on disk that is freed in a callback is told so") {
  Store store;
  auto objects = store.put(5);
  std::promise<void> stuck, go_on;
  std::atomic<bool> first = true;
  const auto owner = std::this_thread::get_id();
  store.on_ask = [&](const std::string&) {
    if (std::this_thread::get_id() == owner || !first.exchange(false)) return;
    stuck.set_value();
    go_on.get_future().wait();
  };
  store.objects->asked(kOther, kMakeRoom, wire::encode(RoomAsk{kBytes}), Responder());
  stuck.get_future().wait();
  const ObjectName name = objects[0]->name();
  const auto answer = std::make_shared<CallState>(nullptr);
  store.objects->asked({{1}, {9}}, kLocate, wire::encode(LocateAsk{name.number}), Responder(answer));
  CHECK_FALSE(answer->ready());
  CallState event(nullptr);
  event.on_ready([&] { objects[0] = nullptr; });
  event.resolve(wire::Bytes{});
  CHECK(answer->ready());
  if (answer->ready()) CHECK(answer->outcome().error().message() == freed(name).message());
  go_on.set_value();
}

// Was: the thread for the disk is started when it is first needed, often in a thread that receives. Where the
// cgroup had no room for one more, that ended the process.
TEST_CASE("A process that can start no thread for its disk says so to whoever needs it") {
  Store store;
  {
    NoThreads floor;
    const ThreadFloorScope scope(&floor);
    const auto room = std::make_shared<CallState>(nullptr);
    REQUIRE_NOTHROW(store.objects->asked(kOther, kMakeRoom, wire::encode(RoomAsk{kBytes}), Responder(room)));
    REQUIRE(room->ready());
    CHECK_THAT(room->outcome().error().message(), Catch::Contains("thread"));
    const auto answer = std::make_shared<CallState>(nullptr);
    store.objects->store(Store::bytes(7), [answer](const Outcome& outcome, const CallState::Load& load) {
      answer->resolve(load == nullptr ? outcome : Outcome(says("it is stored")));
    });
    REQUIRE(answer->ready());
    CHECK(answer->outcome().value() == Store::bytes(7));
    CHECK(store.put(4).size() == 4);  // what was lent for that answer was given back
  }
  CHECK(store.put(5).size() == 5);
}

TEST_CASE("Where the object of an answer is lost, the call says how its actor ended") {
  const ObjectName name{kOther, 1};
  for (const auto death : {OwnerDeath::kOfProcess, OwnerDeath::kOfNode}) {
    const ErrorInfo died = answer_lost(name, lost_with_owner(name, "it crashed", death));
    CHECK(died.code == ErrorCode::kActorDied);
    CHECK(died.why.find("it crashed") != std::string::npos);
  }
  // Its actor lives: calls to it waited for a next life that nobody starts.
  CHECK(answer_lost(name, lost(name, "its disk failed")).code == ErrorCode::kObjectLost);
  CHECK(answer_lost(name, freed(name)).code == ErrorCode::kUnavailable);
  CHECK(answer_lost(name, says("io")).code == ErrorCode::kIo);
}

// A task that reads computed objects looks for their handles among all that its call keeps. The mark of a
// large argument was no handle, and was read as one.
TEST_CASE("What a call keeps of a large argument is a handle of its object") {
  Store store;
  auto object = store.objects->put(Store::bytes(1));
  const ObjectName name = object->name();
  std::shared_ptr<const void> kept = store.objects->argument(std::move(object));
  CHECK(std::static_pointer_cast<const Handle>(kept)->name() == name);
  CHECK(store.objects->counts().owned == 1);
  kept = nullptr;
  CHECK(store.objects->counts().owned == 0);
}

// Was: the second argument of the call waited a minute for the first one to go.
// Was: a store full of what a worker had read that was killed a moment ago was "in use", and a value that a
// task wanted back from disk was LimitExceeded.
TEST_CASE("What a process read that has just died leaves for disk once its memory is taken down") {
  Store store;
  const auto objects = store.put(4);
  std::vector<UniqueFd> readers;  // of another process, as far as locks go
  for (const auto& object : objects) {
    const auto at = std::make_shared<CallState>(nullptr);
    store.objects->asked({{1}, {9}}, kLocate, wire::encode(LocateAsk{object->name().number}), Responder(at));
    REQUIRE(at->wait(20s));
    const auto where = wire::decode<Location>(at->outcome().value()).value();
    const auto lent = store.lend(own_region(object->name().owner, where.region), 1).value();
    readers.push_back(reopen(lent.fd, O_RDONLY).value());
    REQUIRE(::flock(readers.back().get(), LOCK_SH) == 0);
  }
  const auto put = [&](const std::function<void()>& once_it_waits) {
    auto late = std::async(std::launch::async, [&] { return store.put(1); });
    REQUIRE(test::eventually([&] { return store.has_delayed(); }));
    once_it_waits();
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (late.wait_for(1ms) != std::future_status::ready) {
      store.do_delayed();
      if (std::chrono::steady_clock::now() > deadline) std::abort();
    }
    return late.get();
  };
  std::string why;
  try {
    put([] {});  // they go on reading
  } catch (const LimitExceeded& error) {
    why = error.what();
  }
  CHECK_THAT(why,
             Catch::Contains("in use (of this process's objects 0 are looked at here, 4 are read elsewhere"));
  CHECK(put([&] { readers.pop_back(); }).size() == 1);
}

TEST_CASE("A put does not wait for the room that its own call's arguments hold") {
  Store store;
  const auto three = wire::Bytes(3 * kBytes);
  const auto first = store.objects->argument(store.objects->put(wire::ByteView(three)));
  const auto looks_at_first = store.objects->fetch(first->name());  // so it does not leave for disk
  const auto second = [&](std::size_t bytes, std::uint64_t of_call) -> std::string {
    try {
      store.objects->put(wire::ByteView(wire::Bytes(bytes)), 1h, of_call);
    } catch (const LimitExceeded& error) {
      return error.what();
    }
    return "";
  };
  // Together they never fit.
  CHECK_THAT(second(2 * kBytes, three.size()), Catch::Contains("of the same call's other arguments"));
  // They do, but what is in use is not an argument of another call.
  const auto used = store.objects->put(Store::bytes(1));
  const auto looks = store.objects->fetch(used->name());
  CHECK_THAT(second(kBytes, three.size()), Catch::Contains("in use"));
}

// Was: it waited for arguments of this process's other calls alone, and failed at once where answers on their
// way or what other processes had put filled the store.
TEST_CASE("A put that waits for room has it, whoever lets it go") {
  Store store;
  REQUIRE(store.lend("another process", 4 * kBytes));
  int asked = 0;
  store.on_ask = [&](const std::string&) {
    if (++asked == 5) store.drop_region("another process");  // a put asks twice, and fails or waits
  };
  CHECK(store.objects->put(wire::ByteView(Store::bytes(1)), 1h)->name());
  CHECK(asked == 5);
  // One that does not wait, as a task's, is refused at once.
  REQUIRE(store.lend("another process", 3 * kBytes));
  const auto last = store.put(1);
  const auto looks = store.objects->fetch(last[0]->name());
  CHECK_THROWS_AS(store.put(1), LimitExceeded);
}

// Was: LimitExceeded, though the call had run.
TEST_CASE("An answer comes beside a store that is full of what is in use") {
  const bool near = GENERATE(true, false);  // its maker is a process of this node
  Store store;
  const ObjectName name{near ? ProcessAddress{{1}, {9}} : kOther, 5};
  int located = 0;
  std::optional<bool> is_copy;
  store.on_ask_of = [&](std::uint64_t operation, const wire::Bytes& body) -> std::optional<Outcome> {
    if (operation == kPart) return Store::bytes(7);
    if (operation == kCopied) is_copy = wire::decode<CopiedTell>(body).value().ok;
    if (operation != kLocate) return Outcome(wire::Bytes{});
    ++located;  // near: it has always left the memory again where it was
    return wire::encode(Location{near ? Where::kHere : Where::kFetch, kBytes, 3, {}});
  };
  REQUIRE(store.lend("another process", 4 * kBytes));
  const auto answer = std::make_shared<CallState>(nullptr);
  store.objects->take(name, [answer](Outcome outcome) { answer->resolve(std::move(outcome)); });
  REQUIRE(test::eventually([&] { return store.do_delayed(), answer->ready(); }, 60s));
  CHECK(answer->outcome().value() == Store::bytes(7));
  CHECK(located == (near ? ObjectLimits().gone_memory + 1 : 1));
  CHECK(is_copy == false);  // for others of the node
  CHECK_FALSE(store.has(copy_region(name)));
}

// Was: its owner told the caller that there is no room to read it back.
TEST_CASE("An answer that has left for disk is given from there where no room is") {
  Store store;
  const auto answers = store.put(6);
  constexpr ProcessAddress kCaller{{1}, {9}};
  for (const auto& one : answers) store.objects->offer_answer(one, kCaller);
  const auto ask = [&](std::uint64_t operation, const wire::Bytes& body) {
    const auto said = std::make_shared<CallState>(nullptr);
    store.objects->asked(kCaller, operation, body, Responder(said));
    REQUIRE(said->wait(20s));
    return said->outcome().value();
  };
  REQUIRE(store.objects->counts().spilled > 0);
  store.refuses_old = true;  // nothing can leave any more
  std::size_t given = 0;
  for (int i = 0; i < 6; ++i) {
    const std::uint64_t number = answers[std::size_t(i)]->name().number;
    const auto at = wire::decode<Location>(ask(kLocate, wire::encode(LocateAsk{number}))).value();
    if (at.where == Where::kHere) continue;
    ++given;
    CHECK(at.where == Where::kFetch);
    CHECK(at.bytes == kBytes);
    CHECK(ask(kPart, wire::encode(PartAsk{number, 0, kBytes})) == Store::bytes(i));
  }
  CHECK(given == store.objects->counts().spilled);
}

// Was: the call failed with LimitExceeded as soon as its owner, or its memory's name, said that there is
// none.
TEST_CASE("An argument waits for room as long as its call does, whoever is short of it") {
  const bool on_disk = GENERATE(true, false);
  Store store;
  constexpr int kTimes = 50;
  int located = 0;
  store.on_ask_of = [&](std::uint64_t operation, const wire::Bytes&) -> std::optional<Outcome> {
    if (operation != kLocate) return Outcome(wire::Bytes{});
    if (++located > kTimes) return wire::encode(Location{Where::kInline, 1, 0, wire::Bytes(1)});
    if (on_disk) return ErrorInfo{ErrorCode::kLimit, "no shared memory", "all that is there is in use", ""};
    return wire::encode(Location{Where::kHere, kBytes, 3, {}});  // it has left again
  };
  REQUIRE(store.lend("another process", 4 * kBytes));
  const ObjectName name{{{1}, {9}}, 5};
  const auto fetch = [&](Duration ago) {
    const auto of_call = std::make_shared<CallBytes>(CallBytes{0, MonotonicClock().now() - ago});
    return store.objects->fetch(name, true, of_call);
  };
  const auto late = fetch(2min);
  CHECK(test::eventually([&] { return store.do_delayed(), late->done.ready(); }, 60s));
  CHECK(late->done.failure()->code == ErrorCode::kLimit);
  located = 0;
  const auto argument = fetch(0s);
  CHECK(test::eventually([&] { return store.do_delayed(), argument->done.ready(); }, 60s));
  CHECK(argument->done.outcome().ok());
  CHECK(located == kTimes + 1);
}

// Was: it failed with the other call, whose minute was over.
TEST_CASE("An argument that another call's try found no room for waits for it by itself") {
  Store store;
  store.on_call = [](std::uint64_t operation) -> std::optional<Outcome> {
    if (operation == kLocate) return std::nullopt;
    return operation == kPart ? Store::bytes(7) : wire::Bytes{};
  };
  REQUIRE(store.lend("another process", 4 * kBytes));
  const auto fetch = [&](Duration ago) {
    const auto of_call = std::make_shared<CallBytes>(CallBytes{0, MonotonicClock().now() - ago});
    return store.objects->fetch({kOther, 5}, true, of_call);
  };
  const auto first = fetch(2min);
  const auto second = fetch(0s);
  const auto answer = [&] {
    store.answer_unanswered(wire::encode(Location{Where::kFetch, kBytes, 0, {}}));
    return store.do_delayed();
  };
  CHECK(test::eventually([&] { return answer(), first->done.ready(); }, 60s));
  CHECK_FALSE(first->done.outcome().ok());
  REQUIRE_FALSE(second->done.ready());
  store.drop_region("another process");
  CHECK(test::eventually([&] { return answer(), second->done.ready(); }, 60s));
  CHECK(second->done.outcome().ok());
}

// Was: a large argument waited for room, and one that a task had computed failed at once.
TEST_CASE("A computed argument's copy waits for room as any argument's") {
  Store store;
  store.on_call = [](std::uint64_t operation) -> std::optional<Outcome> {
    if (operation == kLocate) return wire::encode(Location{Where::kFetch, kBytes, 0, {}});
    return operation == kPart ? Store::bytes(7) : wire::Bytes{};
  };
  const auto value = store.objects->reserve();
  store.objects->computed(value->name().number, store.objects->hold({kOther, 5}));
  REQUIRE(store.lend("other jobs", 4 * kBytes));
  const auto of_call = std::make_shared<CallBytes>(CallBytes{0, MonotonicClock().now()});
  const auto fetch = store.objects->fetch(value->name(), true, of_call);
  const auto looks_again_or_ends = [&] { return store.do_delayed() || fetch->done.ready(); };
  REQUIRE(test::eventually(looks_again_or_ends));
  REQUIRE_FALSE(fetch->done.ready());
  store.drop_region("other jobs");
  REQUIRE(test::eventually([&] { return looks_again_or_ends() && fetch->done.ready(); }));
  REQUIRE(fetch->done.outcome().ok());
  CHECK(equal(*fetch, Store::bytes(7)));
}

// Between the loss of a value and the moment when what computes it again hears of that, a reader's wish for
// it changed nothing: nobody computed it, and the reader waited for good.
TEST_CASE("Who wants a value while it is being said that it is lost is heard") {
  Store store;
  store.on_call = [](std::uint64_t) { return Outcome(wire::Bytes{}); };
  std::shared_ptr<Fetch> read;
  bool is_known_as_lost = false;
  int heard = 0;
  const auto value = store.objects->reserve();
  const std::uint64_t number = value->name().number;
  Objects::Hooks hooks;
  hooks.wanted = [&](std::uint64_t) { heard += is_known_as_lost ? 1 : 0; };
  hooks.lost = [&](std::uint64_t, const std::string&) {
    read = store.objects->fetch(value->name());
    is_known_as_lost = true;
  };
  hooks.freed = [](std::uint64_t) {};
  hooks.why_waits = [](std::uint64_t) { return std::string(); };
  store.objects->set_hooks(std::move(hooks));

  store.objects->computed(number, store.objects->hold({kOther, 5}));
  store.objects->process_down(kOther, "the test says so");
  REQUIRE(read != nullptr);
  CHECK(heard == 1);
  CHECK_FALSE(read->done.ready());
  store.objects->computed(number, store.objects->put(Store::bytes(3)));
  REQUIRE(read->done.ready());
  REQUIRE(read->done.outcome().ok());
  CHECK(equal(*read, Store::bytes(3)));
}
