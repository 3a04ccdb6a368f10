// Actors whose class has save() and load(): an answer leaves once the next life has what it follows.
#include <catch2/catch.hpp>

#include "runtime/client/session.hpp"
#include "runtime/host/held_answers.hpp"
#include "runtime/host/process.hpp"
#include "tests/runtime/host/fake_node.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using test::FakeNode;

namespace {

const ActorId kActor = placed_actor_id(77, true);
constexpr std::uint64_t kOwner = 10, kCaller = 11, kFirst = 20, kSecond = 21;
FakeNode* the_node = nullptr;
std::atomic<bool> method_runs{false}, method_may_end{false};
std::atomic<int> large_answers{0};
constexpr std::size_t kLargeAnswer = 200'000;

struct Ledger {
  explicit Ledger(int first) : sum(first) {}
  int add(int n) { return sum += n; }
  int read() const { return sum; }
  int add_as_a_link_breaks(int n) {
    the_node->unavailable = 1;  // what it saves does not arrive
    return sum += n;
  }
  int add_and_stop(int n) {
    this_actor().stop("it has done its work");
    return sum += n;
  }
  Task<int> add_twice(int n) {
    sum += n;
    Promise<int> later;
    this_actor().run_after(1ms, [later]() mutable { later.set(2); });
    const int times = co_await later.future();
    co_return sum += (times - 1) * n;
  }
  Future<int> add_and_answer_later(int n) {
    sum += n;
    return answer.future();
  }
  void answer_it() { answer.set(sum); }
  void run_until_told() {
    method_runs = true;
    test::eventually([] { return method_may_end.load(); }, 60s);
  }
  std::string answer_much() {
    ++sum;
    ++large_answers;
    return std::string(kLargeAnswer, 'x');
  }
  void grow(std::size_t bytes) { words.emplace_back(bytes, 'x'); }
  void refuse_to_save() { saves = false; }
  void remember(const std::string& word) { words.push_back(word); }

  std::pair<int, std::vector<std::string>> save() const {
    if (!saves) throw std::runtime_error("not now");
    return {sum, words};
  }
  void load(std::pair<int, std::vector<std::string>> state) {
    if (state.first == 13) throw std::runtime_error("13 is no sum");
    std::tie(sum, words) = std::move(state);
  }
  int sum;
  std::vector<std::string> words;
  bool saves = true;
  Promise<int> answer;
};

/// The owner and a caller, each in a process of node 1, and lives of a Ledger on node 2.
struct Lives {
  Lives() {
    the_node = &node;
    actor.tell<&Ledger::read>();  // asks where it is: nobody is told who did not
  }
  void start(std::uint32_t incarnation, std::int32_t max_concurrency = 1) {
    const int before = node.started;
    begin(incarnation, max_concurrency);
    REQUIRE(test::eventually([&] { return node.started > before; }));
    lives_at(incarnation, incarnation == 1 ? kFirst : kSecond);
  }
  /// The caller has heard so when this returns.
  void lives_at(std::uint32_t incarnation, std::uint64_t process) {
    node.tell(1, kCaller, wire::ActorAt{{kActor, incarnation, cluster::ActorLife::kLives, {{2}, {process}}}});
    REQUIRE(caller->nodes()->wait(20s));
  }
  void begin(std::uint32_t incarnation, std::int32_t max_concurrency = 1) {
    using Entry = detail::ConstructorEntry<Ledger, int>;
    (void)&Entry::registered;
    const std::uint64_t process = incarnation == 1 ? kFirst : kSecond;
    lives.push_back(node.make(2, process));
    wire::StartActorHere start{kActor, true, Entry::kId, wire::encode(5), max_concurrency};
    start.incarnation = incarnation;
    start.owner = {{1}, {kOwner}};
    node.tell(2, process, start);
  }
  template <auto M, class... A>
  auto call(A... a) {
    return actor.call<M>(a...).get(20s);
  }

  FakeNode node;
  std::unique_ptr<Process> owner = node.make(1, kOwner), caller = node.make(1, kCaller);
  std::vector<std::unique_ptr<Process>> lives;
  ActorHandle<Ledger> actor{caller.get(), {{2}, {kFirst}, kActor}};
};

template <class F>
std::string words_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

static_assert(detail::Saves<Ledger>);
static_assert(!detail::Saves<int>);
struct SavesToAFile {
  void save(const std::string& file) const;
  void load(const std::string& file);
};
static_assert(!detail::Saves<SavesToAFile>);

TEST_CASE("answers leave in order once a save that has what they follow is held", "[saves]") {
  HeldAnswers held;
  std::string left;
  const ProcessAddress caller{{1}, {2}};
  const auto add = [&](char name) {
    held.add(caller, 10,
             [&left, name](const ErrorInfo* not_held) { left += not_held == nullptr ? name : '!'; });
  };
  const auto end_save = [&](const ErrorInfo* error = nullptr) {
    const auto ended = held.end_save();
    for (const auto& give : ended.leave) give(error);
    return ended.next;
  };
  add('a');
  CHECK(left == "a");  // nothing has changed
  CHECK_FALSE(held.begin_save());
  held.changed();
  add('b');
  CHECK(held.begin_save());
  CHECK_FALSE(held.begin_save());
  held.changed();  // while it is under way: the next one has it
  add('c');
  add('d');
  CHECK(left == "a");
  end_save();
  CHECK(left == "ab");
  CHECK_FALSE(held.empty());
  CHECK(held.begin_save());
  const ErrorInfo full{ErrorCode::kLimit, "too large", "", ""};
  end_save(&full);
  CHECK(left == "ab!!");
  CHECK(held.empty());
  CHECK_FALSE(held.begin_save());
  add('e');
  CHECK(left == "ab!!e");
}

TEST_CASE("a state that is prepared while a save is under way is saved when that has ended", "[saves]") {
  HeldAnswers held;
  const ProcessAddress one{{1}, {2}}, other{{1}, {3}};
  std::string left;
  const auto add = [&](ProcessAddress caller, char name) {
    held.changed();
    held.add(caller, 10, [&left, name](const ErrorInfo*) { left += name; });
  };
  const auto end_save = [&] {
    auto ended = held.end_save();
    for (const auto& give : ended.leave) give(nullptr);
    return ended.next;
  };
  add(one, 'a');
  CHECK_FALSE(held.wants_prepared());  // no save is under way: one begins at once
  CHECK_FALSE(held.prepare(wire::Bytes(1)));
  CHECK(held.begin_save());
  CHECK_FALSE(held.wants_prepared());  // it has what the answers follow
  held.changed();
  CHECK_FALSE(held.wants_prepared());  // no answer follows that
  add(other, 'b');
  CHECK(held.wants_prepared());
  CHECK(held.prepare(wire::Bytes(3)));
  CHECK_FALSE(held.wants_prepared());
  add(one, 'c');
  CHECK(held.wants_prepared());
  CHECK(held.bytes_for(one) == 20);
  CHECK(held.bytes_for(other) == 10);
  CHECK(end_save() == wire::Bytes(3));
  CHECK(left == "a");
  CHECK_FALSE(held.begin_save());  // the one that was prepared is under way
  CHECK(end_save() == std::nullopt);
  CHECK(left == "ab");
  CHECK(held.bytes_for(one) == 10);
  CHECK(held.bytes_for(other) == 0);
  CHECK(held.begin_save());
  CHECK(end_save() == std::nullopt);
  CHECK(left == "abc");
  CHECK(held.bytes_for(one) == 0);
}

TEST_CASE("an answer waits until its owner has the state, and what reads waits for nothing", "[saves]") {
  Lives of;
  of.start(1);
  CHECK(of.call<&Ledger::read>() == 5);
  CHECK(of.call<&Ledger::add>(1) == 6);
  of.node.hold(1, kOwner, true);  // what is saved does not arrive
  CHECK(of.call<&Ledger::read>() == 6);
  const auto added = of.actor.call<&Ledger::add>(1);
  const auto read = of.actor.call<&Ledger::read>();  // it would tell of what may be lost
  CHECK_FALSE(read.wait(50ms));
  CHECK_FALSE(added.ready());
  of.node.hold(1, kOwner, false);
  CHECK(added.get(20s) == 7);
  CHECK(read.get(20s) == 7);
}

TEST_CASE("what reads tells of no change that is not held, also of a call that has no answer yet",
          "[saves]") {
  // The next life had less than what a caller had read.
  Lives of;
  of.start(1);
  const auto added = of.actor.call<&Ledger::add_and_answer_later>(1);
  of.node.hold(1, kOwner, true);
  const auto read = of.actor.call<&Ledger::read>();
  CHECK_FALSE(read.wait(50ms));
  of.node.hold(1, kOwner, false);
  CHECK(read.get(20s) == 6);
  CHECK_FALSE(added.ready());
  of.call<&Ledger::answer_it>();
  CHECK(added.get(20s) == 6);
}

TEST_CASE("an answer whose state is held does not wait for the actor's next method", "[saves]") {
  // Of many calls that were made at once the first was answered after the last had run; one of them that
  // waited for what the first one's caller did then waited for ever.
  Lives of;
  of.start(1);
  of.node.hold(1, kOwner, true);
  method_runs = method_may_end = false;
  const auto added = of.actor.call<&Ledger::add>(1);
  const auto added_then = of.actor.call<&Ledger::add>(1);  // Was: it needed a save that waited for the method
  const auto next = of.actor.call<&Ledger::run_until_told>();
  CHECK(test::eventually([] { return method_runs.load(); }));
  of.node.hold(1, kOwner, false);
  CHECK(added.wait(20s));
  CHECK(added_then.wait(20s));
  method_may_end = true;
  CHECK(added.get(20s) == 6);
  CHECK(added_then.get(20s) == 7);
  next.get(20s);
}

TEST_CASE("a caller to whom 32 MiB of answers wait for a save has no further calls carried out", "[saves]") {
  // Was: all of its calls ran, and their answers lay in the actor's memory.
  Lives of;
  of.start(1);
  of.node.hold(1, kOwner, true);
  large_answers = 0;
  std::vector<Future<std::string>> all;
  for (int i = 0; i < 250; ++i) all.push_back(of.actor.call<&Ledger::answer_much>());
  const auto read = of.actor.call<&Ledger::read>();
  const auto bytes = wire::encode(std::string(kLargeAnswer, 'x')).size() + wire::kHeaderBytes;
  const int most = static_cast<int>((std::size_t{32} << 20) / bytes) + 1;
  CHECK(test::eventually([&] { return large_answers == most; }));
  CHECK_FALSE(read.wait(50ms));
  CHECK(large_answers == most);
  of.node.hold(1, kOwner, false);
  for (const auto& one : all) CHECK(one.get(20s).size() == kLargeAnswer);
  CHECK(read.get(20s) == 255);
}

namespace {

/// Saves nothing.
struct Plain {
  explicit Plain(int number) : number_(number) {}
  int read() const { return number_; }
  int number_;
};

}  // namespace

TEST_CASE("a process ends though an actor of it waits for a keeper that does not answer", "[saves]") {
  // Was: its actor waited for that, and the end of the process for its actor.
  Lives of;
  of.start(1);
  of.node.hold(1, kOwner, true);
  const auto added = of.actor.call<&Ledger::add>(1);
  CHECK_FALSE(added.wait(50ms));
  of.lives.clear();
  of.node.hold(1, kOwner, false);
}

TEST_CASE("a life of a class that does not save starts without a word of its owner", "[saves]") {
  // Was: it asked for a state that nobody had, and waited for the answer.
  Lives of;
  of.node.hold(1, kOwner, true);
  using Entry = detail::ConstructorEntry<Plain, int>;
  (void)&Entry::registered;
  of.lives.push_back(of.node.make(2, kSecond));
  wire::StartActorHere start{kActor, true, Entry::kId, wire::encode(5), 1};
  start.incarnation = 2;
  start.owner = {{1}, {kOwner}};
  of.node.tell(2, kSecond, start);
  CHECK(test::eventually([&] { return of.node.started == 1; }));
  of.node.hold(1, kOwner, false);
}

TEST_CASE("a life goes on from what the one before had saved, and that one is not heard any more",
          "[saves]") {
  Lives of;
  of.start(1);
  CHECK(of.call<&Ledger::add>(1) == 6);
  of.actor.call<&Ledger::remember>("it").get(20s);
  of.actor.tell<&Ledger::add>(1);
  CHECK(of.call<&Ledger::add>(1) == 8);
  const auto former = of.actor;
  of.start(2);
  CHECK(of.call<&Ledger::read>() == 8);
  CHECK(of.call<&Ledger::add>(1) == 9);
  // A node that was declared dead may live on for a while.
  of.lives_at(3, kFirst);
  const auto lost = former.call<&Ledger::add>(100);
  CHECK_FALSE(lost.wait(50ms));  // as a call that died with its life: until it is known what follows
  of.lives_at(4, kSecond);
  CHECK_THROWS_AS(lost.get(20s), Unavailable);
  CHECK(of.call<&Ledger::read>() == 9);
}

TEST_CASE("what a Task changes is held before it answers", "[saves]") {
  Lives of;
  of.start(1);
  of.node.hold(1, kOwner, true);
  const auto added = of.actor.call<&Ledger::add_twice>(1);
  CHECK_FALSE(added.wait(50ms));
  of.node.hold(1, kOwner, false);
  CHECK(added.get(20s) == 7);
  of.start(2);
  CHECK(of.call<&Ledger::read>() == 7);
}

TEST_CASE("a link that breaks while an actor saves is waited for", "[saves]") {
  Lives of;
  of.start(1);
  CHECK(of.call<&Ledger::add_as_a_link_breaks>(1) == 6);
  CHECK(of.node.unavailable == 0);
  of.start(2);
  CHECK(of.call<&Ledger::read>() == 6);
}

TEST_CASE("an actor that stops itself gives its answers first", "[saves]") {
  Lives of;
  const std::int32_t threads = GENERATE(1, 3);
  of.start(1, threads);
  of.node.hold(1, kOwner, true);
  const auto added = of.actor.call<&Ledger::add_and_stop>(1);
  CHECK_FALSE(added.wait(50ms));
  of.node.hold(1, kOwner, false);
  CHECK(added.get(20s) == 6);
  CHECK(test::eventually([&] { return of.node.ended == 1; }));
  CHECK_THAT(of.node.why(), Catch::Contains("it has done its work"));
}

TEST_CASE("an actor that is stopped while it waits for what the life before saved ends", "[saves]") {
  // It came up later, refused all calls, and nobody ended it.
  Lives of;
  of.start(1);
  of.node.hold(1, kOwner, true);
  of.begin(2);
  of.node.tell(2, kSecond, wire::StopActor{kActor, "enough"});
  CHECK(test::eventually([&] { return of.node.ended == 1; }));
  of.lives.clear();  // was: what it had asked for kept it, and the end of its process waited for that
  of.node.hold(1, kOwner, false);
}

TEST_CASE("save() and load() that throw say so", "[saves]") {
  Lives of;
  of.start(1);
  CHECK(of.call<&Ledger::add>(8) == 13);
  CHECK_THAT(words_of([&] { of.call<&Ledger::refuse_to_save>(); }),
             Catch::Contains("save threw") && Catch::Contains("not now"));
  CHECK(of.call<&Ledger::read>() == 13);  // it lives on
  of.start(2);
  CHECK_THAT(of.node.why(), Catch::Contains("load threw") && Catch::Contains("13 is no sum"));
}

TEST_CASE("what is too large to be kept is an error of the call, with the limit", "[saves]") {
  Lives of;
  of.start(1);
  CHECK_THAT(
      words_of([&] { of.call<&Ledger::grow>(std::size_t{5} << 20); }),
      Catch::Contains("Ledger") && Catch::Contains("let it return what the next life cannot do without"));
}
