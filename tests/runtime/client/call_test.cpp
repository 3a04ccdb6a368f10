// Typed calls: what compiles arrives as it was given, and what a handle or method must not do is an error.
#include <catch2/catch.hpp>
#include <limits>

#include "runtime/client/session.hpp"
#include "runtime/wire/frame.hpp"
#include "tests/runtime/client/local_gate.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using troupe::testing::LocalGate;

namespace {

struct Named {
  std::string name = "nobody";
  std::string get_name() const { return name; }
  void set_name(std::string_view text) { name = text; }
};
/// So that Named is no first base: a pointer to it is another one.
struct Padding {
  virtual ~Padding() = default;
  long padding = 0;
};

/// 1 MiB in a message.
struct Mebibyte {
  static inline int encoded = 0;  ///< how many were
};

struct Counter : Padding, Named {
  Counter() = default;
  explicit Counter(int start) : total(start) {}
  explicit Counter(const std::vector<Mebibyte>& many) : total(int(many.size())) {}
  std::size_t count(const std::vector<Mebibyte>& many) { return many.size(); }
  std::vector<Mebibyte> mebibytes(std::size_t count) { return std::vector<Mebibyte>(count); }
  int total = 0;
  int add(int n) { return total += n; }
  int get() const noexcept { return total; }
  std::size_t resize(std::size_t size) { return size; }
  double scale(double by, float rate, std::optional<std::int64_t> offset) {
    return by * rate + double(offset.value_or(0));
  }
  int sum(std::span<const float> numbers, const std::string& text, bool twice) {
    float all = 0;
    for (const float number : numbers) all += number;
    return int(all) * (twice ? 2 : 1) + int(text.size());
  }
  int overloaded(int) { return 1; }
  int overloaded(double) { return 2; }
  void fail() { throw std::out_of_range("there is no 7"); }
  void fail_oddly() { throw 7; }
  void fail_as_timeout() { throw Timeout(ErrorInfo{ErrorCode::kTimeout, "too slow", "", ""}); }
  Future<int> forgotten() { return {}; }
  std::vector<std::byte> large(std::size_t bytes) {
    std::vector<std::byte> all(bytes, std::byte(7));
    made_at = all.data();
    return all;
  }
  static inline const std::byte* made_at = nullptr;
};

/// Where the parts of an answer were.
struct PartsGate : LocalGate {
  void reply_parts(ProcessAddress to, std::uint64_t call, wire::ByteView head, wire::ByteView rest) override {
    rest_at = rest.data();
    LocalGate::reply_parts(to, call, head, rest);
  }
  const std::byte* rest_at = nullptr;
};

}  // namespace

template <>
struct troupe::wire::Codec<Mebibyte> {
  static void encode(Writer& to, const Mebibyte&) {
    static const Bytes bytes(1 << 20);
    ++Mebibyte::encoded;
    to.append(bytes);
  }
  static bool decode(Reader& from, Mebibyte&) {
    ByteView bytes;
    return from.view(bytes, 1 << 20);
  }
};

namespace {

struct Stranger {
  int secret() { return 42; }
};

struct Found {
  ActorHandle<Counter> counter;
  std::vector<ActorHandle<Counter>> more;
  std::optional<ActorHandle<Counter>> maybe;
};
struct Directory {
  ActorHandle<Counter> known;
  explicit Directory(ActorHandle<Counter> counter) : known(std::move(counter)) {}
  ActorHandle<Counter> find() { return known; }
  Found all() { return {known, {known, known}, known}; }
  ActorHandle<Counter> none() { return {}; }
};

template <class E, class F>
ErrorInfo error_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.info();
  }
  FAIL("it did not throw");
  return {};
}

}  // namespace

TEST_CASE("a call passes what brace initialisation would pass") {
  LocalGate gate;
  const Session session(gate);
  const auto counter = session.spawn<Counter>({}, 37);
  CHECK(counter.call<&Counter::add>(5).get() == 42);
  const short few = 1;
  CHECK(counter.call<&Counter::add>(few).get() == 43);
  CHECK(counter.call<&Counter::resize>(5).get() == 5);  // a constant that fits
  CHECK(counter.call<&Counter::scale>(2, 0.5, 1).get() == 2.0);
  const int n = 3;  // exact in a double
  CHECK(counter.call<&Counter::scale>(n, 0.5F, std::nullopt).get() == 1.5);
  const std::vector<float> numbers{1, 2, 3};
  CHECK(counter.call<&Counter::sum>(numbers, "four", true).get() == 16);
  CHECK(counter.call<&Counter::sum>(std::vector<float>{1}, std::string("x"), false).get() == 2);
  CHECK(counter.call<&Counter::sum>({1, 2, 3}, "four", true).get() == 16);
  CHECK(counter.call<static_cast<int (Counter::*)(int)>(&Counter::overloaded)>(1).get() == 1);
  CHECK(counter.call<static_cast<int (Counter::*)(double)>(&Counter::overloaded)>(1).get() == 2);
  counter.tell<&Counter::add>(100);
  CHECK(counter.call<&Counter::get>().get() == 143);
}

TEST_CASE("a call without arguments carries no bytes") {
  LocalGate gate;
  const auto counter = Session(gate).spawn<Counter>();
  counter.call<&Counter::get>().get();
  CHECK(gate.last_args == 0);
  counter.call<&Counter::sum>(std::vector<float>(1000), "", false).get();
  CHECK(gate.last_args == 4 + 4000 + 4 + 1);
}

TEST_CASE("methods of a base class are the actor's, through its own handle and the base's") {
  LocalGate gate;
  const auto counter = Session(gate).spawn<Counter>({}, 1);
  counter.call<&Counter::set_name>("one").get();
  CHECK(counter.call<&Named::get_name>().get() == "one");
  const ActorHandle<Named> named = counter;
  CHECK(named.call<&Named::get_name>().get() == "one");
  CHECK(counter.call<&Counter::get>().get() == 1);
}

TEST_CASE("a forged handle never runs another class's method") {
  // A stale handle whose actor's place another one had taken ran that one's memory as its own class.
  LocalGate gate;
  const Session session(gate);
  const auto counter = session.spawn<Counter>();
  const ActorHandle<Stranger> forged(&gate, counter.address());
  const auto error = error_of<Refused>([&] { forged.call<&Stranger::secret>().get(); });
  CHECK(error.message().find("Counter") != std::string::npos);
  CHECK(error.message().find("Stranger::secret") != std::string::npos);
}

TEST_CASE("answers hold handles, which work where they arrive") {
  LocalGate gate;
  const Session session(gate);
  const auto counter = session.spawn<Counter>({}, 5);
  const auto directory = session.spawn<Directory>({}, counter);
  CHECK(directory.call<&Directory::find>().get().call<&Counter::get>().get() == 5);
  const Found found = directory.call<&Directory::all>().get();
  CHECK(found.counter.call<&Counter::get>().get() == 5);
  CHECK(found.more.at(1).call<&Counter::get>().get() == 5);
  CHECK(found.maybe.value().call<&Counter::get>().get() == 5);
  CHECK_FALSE(directory.call<&Directory::none>().get());
  CHECK(session.spawn_async<Counter>({}, 6).get().call<&Counter::get>().get() == 6);

  // A handle belongs to the process that decodes it: that of the call, also where another one is the
  // program's first.
  LocalGate other(3);
  const auto far = Session(other).spawn<Directory>({}, Session(other).spawn<Counter>({}, 9));
  CHECK(far.call<&Directory::find>().get().call<&Counter::get>().get() == 9);
  CHECK(other.calls == 2);
}

TEST_CASE("a default-constructed handle or Future throws when used, and a forgotten one fails its call") {
  // These were segmentation faults.
  const auto null = error_of<BadConfig>([] { (void)ActorHandle<Counter>().call<&Counter::get>(); });
  CHECK(null.message().find("Counter::get") != std::string::npos);
  CHECK(null.message().find("default-constructed") != std::string::npos);
  CHECK_THROWS_AS(Future<int>().get(), BadConfig);
  CHECK_THROWS_AS(Future<int>().ready(), BadConfig);
  CHECK_THROWS_AS(Future<int>().then([](Result<int>) {}), BadConfig);
  CHECK_THROWS_AS(when_all(std::vector<Future<int>>(2)), BadConfig);
  LocalGate gate;
  const auto counter = Session(gate).spawn<Counter>();
  const auto error = error_of<TaskFailed>([&] { counter.call<&Counter::forgotten>().get(); });
  CHECK(error.message().find("default-constructed Future") != std::string::npos);
}

TEST_CASE("an exception keeps its type, its message and where it was thrown") {
  LocalGate gate;
  const auto counter = Session(gate).spawn<Counter>();
  try {
    counter.call<&Counter::fail>().get();
    FAIL("it did not throw");
  } catch (const TaskFailed& error) {
    CHECK(error.exception_type() == "std::out_of_range");
    CHECK(error.exception_message() == "there is no 7");
    CHECK(error.origin().find("Counter::fail, actor 64, process 2, node 1") != std::string::npos);
    CHECK(std::string(error.what()).find("Counter::fail threw std::out_of_range: there is no 7") !=
          std::string::npos);
    CHECK_THROWS_AS(error.rethrow(), std::out_of_range);
  }
  CHECK(error_of<TaskFailed>([&] { counter.call<&Counter::fail_oddly>().get(); }).type == "int");
  const auto timeout = error_of<Timeout>([&] { counter.call<&Counter::fail_as_timeout>().get(); });
  CHECK(timeout.type == "troupe::Timeout");
  CHECK_THROWS_AS(TaskFailed(ErrorInfo{}).rethrow(), TaskFailed);
}

TEST_CASE("what no message can hold fails where it is made") {
  LocalGate gate;
  const Session session(gate);
  const auto counter = session.spawn<Counter>();
  const std::vector<float> much((wire::kMaxBodyBytes >> 2) + 1);
  const auto calls = gate.calls;
  const auto args = error_of<LimitExceeded>([&] { (void)counter.call<&Counter::sum>(much, "", false); });
  CHECK(args.message().find("67108872 bytes or more are above the limit of 67108864") != std::string::npos);
  CHECK(args.message().find("Counter::sum") != std::string::npos);
  CHECK(gate.calls == calls);
  CHECK(counter.call<&Counter::large>(wire::kMaxBodyBytes).get().size() == wire::kMaxBodyBytes);
}

// A string of 3 GiB was copied whole before it was refused, by caller and actor: 10 s, and twice the memory.
// Was: encoded into a buffer, which was then copied into the object.
TEST_CASE("a large answer of numbers or text is where its method made it when it is put") {
  constexpr std::size_t kLarge = 300'000;
  PartsGate gate;
  Counter counter;
  const auto args = detail::encode_arguments("large", kLarge);
  const wire::Bytes right = wire::encode(std::vector<std::byte>(kLarge, std::byte(7)));
  detail::MethodEntry<&Counter::large>::invoke(&counter, args, Responder(&gate, {}, 1));
  CHECK(gate.rest_at == Counter::made_at);
  CHECK(gate.last_reply.value() == right);
  gate.rest_at = nullptr;
  detail::MethodEntry<&Counter::large>::invoke(&counter, detail::encode_arguments("large", std::size_t{9}),
                                               Responder(&gate, {}, 1));
  CHECK(gate.rest_at == nullptr);  // it is small
  CHECK(gate.last_reply.value().size() == 9 + sizeof(std::uint32_t));
  const auto local = std::make_shared<CallState>(nullptr);
  detail::MethodEntry<&Counter::large>::invoke(&counter, args, Responder(local));
  CHECK(local->outcome().value() == right);
}

TEST_CASE("what no message can hold is encoded no further than the limit") {
  LocalGate gate;
  const Session session(gate);
  const auto counter = session.spawn<Counter>();
  const std::vector<Mebibyte> many(200);
  Mebibyte::encoded = 0;
  CHECK_THROWS_AS(counter.call<&Counter::count>(many), LimitExceeded);
  CHECK(Mebibyte::encoded <= 65);
  Mebibyte::encoded = 0;
  CHECK_THROWS_AS(session.spawn<Counter>({}, many), LimitExceeded);
  CHECK(Mebibyte::encoded <= 65);
  Mebibyte::encoded = 0;
  CHECK_THROWS_AS(session.spawn<Counter>({.isolated = true}, many), LimitExceeded);
  CHECK(Mebibyte::encoded <= 5);
  CHECK(counter.call<&Counter::mebibytes>(3).get().size() == 3);
}

TEST_CASE("calls above a handle's limit of pending calls throw instead of waiting") {
  LocalGate gate;
  const Session session(gate);
  struct Slow {
    std::vector<Promise<int>> promises;
    Future<int> wait() { return promises.emplace_back().future(); }
    void answer(int value) {
      for (auto& promise : promises) promise.set(value);
      promises.clear();
    }
  };
  const auto slow = session.spawn<Slow>({.max_pending_calls = 2});
  const auto copy = slow;
  const auto first = slow.call<&Slow::wait>();
  const auto second = copy.call<&Slow::wait>();
  const auto error = error_of<LimitExceeded>([&] { (void)slow.call<&Slow::wait>(); });
  CHECK(error.message().find("max_pending_calls is 2") != std::string::npos);
  slow.tell<&Slow::answer>(7);  // what wants no answer is not counted
  CHECK(first.get() == 7);
  CHECK(second.get() == 7);
  const auto third = slow.call<&Slow::wait>();
  CHECK_FALSE(third.ready());
  CHECK_THROWS_AS(slow.with_max_pending(0), BadConfig);
  CHECK_THROWS_AS(session.spawn_async<Slow>({.max_pending_calls = 2}), BadConfig);
}
