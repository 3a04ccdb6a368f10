// Arguments and answers that no message carries: they become objects by themselves, on real nodes.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <thread>

#include "runtime/objects/objects.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/objects.hpp"
#include "tests/e2e/other_node.hpp"

namespace large_arguments_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kMany = 2'500'000;  // 20 MB of doubles

/// Bits that a conversion would change.
std::vector<double> numbers(std::size_t count, double first = 0.1) {
  std::vector<double> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = first + double(i) * 1e-300;
  return all;
}

struct Mixed {
  std::string text;
  std::vector<double> values;
  std::map<std::string, std::vector<int>> more;
  bool operator==(const Mixed&) const = default;
};

struct Echo {
  Echo() = default;
  explicit Echo(std::vector<double> given) : first(std::move(given)) {}
  std::vector<double> doubled(const std::vector<double>& from) {
    std::vector<double> to = from;
    for (double& one : to) one *= 2;
    return to;
  }
  Mixed same(const Mixed& mixed, int) { return mixed; }
  std::vector<Mixed> more(const Mixed& mixed) { return std::vector<Mixed>(5, mixed); }
  std::string text(std::uint64_t index, std::uint64_t size) { return pattern(index, size); }
  std::uint64_t size(const std::string& text) { return text.size(); }
  double from_span(std::span<const double> all, std::string_view text) {
    return std::accumulate(all.begin(), all.end(), double(text.size()));
  }
  double sum_first() { return std::accumulate(first.begin(), first.end(), 0.0); }
  void add(const std::vector<double>& more) { first.insert(first.end(), more.begin(), more.end()); }
  std::uint64_t count() { return first.size(); }
  std::uint64_t owned() { return this_actor().process().objects()->counts().owned; }
  int pid() { return ::getpid(); }
  std::vector<double> first;
};

/// Takes its time.
struct Slow {
  std::uint64_t size(const std::vector<double>& from) {
    std::this_thread::sleep_for(200ms);
    taken.push_back(from.size());
    return from.size();
  }
  std::vector<std::uint64_t> all() { return taken; }
  std::vector<std::uint64_t> taken;
};

/// Ends with its answer.
struct Last {
  std::string text(std::uint64_t index, std::uint64_t size) {
    this_actor().stop("it has said all");
    return pattern(index, size);
  }
};

/// A light actor: its thread may wait for nothing.
struct Light {
  Future<std::uint64_t> send(const ActorHandle<Echo>& to, std::uint64_t size) {
    return to.call<&Echo::size>(pattern(7, size));
  }
  std::string text(std::uint64_t index, std::uint64_t size) { return pattern(index, size); }
  std::uint64_t owned() { return this_actor().process().objects()->counts().owned; }
};

std::vector<double> task(const std::vector<double>& from, const Mixed& mixed) {
  std::vector<double> to = from;
  to.push_back(double(mixed.text.size()));
  return to;
}

std::string text_task(std::uint64_t index, std::uint64_t size) {
  return pattern(index, size);
}

bool none_left(const Session& session, const ActorHandle<Echo>& echo) {
  return eventually([&] { return owned(session) == 0 && echo.call<&Echo::owned>().get(60s) == 0; }, 30s);
}

}  // namespace

TEST_CASE("Arguments and answers of any size arrive as they are, and are freed") {
  auto session = two_nodes();
  const auto given = numbers(kMany);
  auto twice = given;
  for (double& one : twice) one *= 2;
  const Mixed mixed{pattern(3, 3'000'000), numbers(100'000), {{"a", std::vector<int>(200'000, 7)}}};
  for (const NodeId node : {session.node(), other_node(session)}) {
    const auto echo = session.spawn<Echo>({.isolated = true, .node = node});
    for (int round = 0; round < 3; ++round) CHECK(echo.call<&Echo::doubled>(given).get(60s) == twice);
    CHECK(echo.call<&Echo::same>(mixed, 1).get(60s) == mixed);
    CHECK(echo.call<&Echo::text>(5, 70'000'000).get(60s) == pattern(5, 70'000'000));
    CHECK(echo.call<&Echo::size>(pattern(5, 70'000'000)).get(60s) == 70'000'000);
    CHECK(echo.call<&Echo::from_span>(given, "four").get(60s) ==
          std::accumulate(given.begin(), given.end(), 4.0));
    // What follows a large argument waits its turn.
    for (int i = 0; i < 4; ++i) echo.tell<&Echo::add>(i % 2 == 0 ? given : numbers(3));
    CHECK(echo.call<&Echo::count>().get(60s) == 2 * kMany + 6);
    CHECK(none_left(session, echo));
  }
}

// Its process ended at once, and with it the object that the answer was: the caller got ActorDied.
TEST_CASE("The process of an actor that stops itself ends once its answer was taken") {
  auto session = two_nodes();
  for (const NodeId node : {session.node(), other_node(session)}) {
    for (std::uint64_t i = 0; i < 3; ++i) {
      const auto last = session.spawn<Last>({.isolated = true, .node = node});
      CHECK(last.call<&Last::text>(i, 20'000'000).get(60s) == pattern(i, 20'000'000));
    }
  }
}

TEST_CASE("A light actor sends and answers what no message carries") {
  auto session = two_nodes();
  const auto light = session.spawn<Light>();
  for (const NodeId node : {session.node(), other_node(session)}) {
    const auto echo = session.spawn<Echo>({.isolated = true, .node = node});
    for (const std::uint64_t size : {10'000'000, 70'000'000})
      CHECK(light.call<&Light::send>(echo, size).get(60s) == size);
    CHECK(light.call<&Light::text>(1, 70'000'000).get(60s) == pattern(1, 70'000'000));
    CHECK(eventually([&] { return light.call<&Light::owned>().get(60s) == 0; }, 30s));
  }
}

TEST_CASE("A task's large arguments and answers") {
  auto session = two_nodes();
  const auto given = numbers(500'000);
  const Mixed mixed{pattern(3, 1'000'000), {}, {}};
  std::vector<Future<std::vector<double>>> tasks;
  for (int i = 0; i < 8; ++i) tasks.push_back(session.submit<&task>(given, mixed));
  auto right = given;
  right.push_back(1'000'000);
  for (const auto& one : tasks) CHECK(one.get(60s) == right);
  CHECK(eventually([&] { return owned(session) == 0; }, 30s));
}

// Was: each answer was copied into its caller's memory as it came, whether it was read or not.
TEST_CASE("Answers that nobody has read lie in the node's store, not in their caller's memory") {
  ::setenv("TROUPE_REGIONS_BYTES", "40000000", 1);
  auto session = two_nodes();
  ::unsetenv("TROUPE_REGIONS_BYTES");
  constexpr std::size_t kAnswers = 100, kSize = 1'000'000;
  const auto heap = [] {
    const auto all = ::mallinfo2();
    return all.uordblks + all.hblkhd;
  };
  const auto near = session.spawn<Echo>({.isolated = true, .node = session.node()});
  const auto far = session.spawn<Echo>({.isolated = true, .node = other_node(session)});
  const auto lives = session.spawn<Echo>({.isolated = true, .max_restarts = 1});
  const auto light = session.spawn<Light>({.node = other_node(session)});
  const auto here = session.spawn<Echo>({.isolated = true, .here = true});  // was: those stayed on the heap
  const auto asks = [&](std::uint64_t i) -> Future<std::string> {
    switch (i % 6) {
      case 0:
        return near.call<&Echo::text>(i, kSize);
      case 1:
        return far.call<&Echo::text>(i, kSize);
      case 2:
        return lives.call<&Echo::text>(i, kSize);
      case 3:
        return light.call<&Light::text>(i, kSize);
      case 4:
        return here.call<&Echo::text>(i, kSize);
      default:
        return session.submit<&text_task>(i, kSize);
    }
  };
  const auto before = heap();
  std::vector<Future<std::string>> unread;
  // Ten at once: with a whole store on its way there is no room, and answers come into memory after all.
  for (std::uint64_t i = 0; i < kAnswers; ++i) {
    unread.push_back(asks(i));
    if (unread.size() % 10 != 0) continue;
    REQUIRE(eventually(
        [&] {
          return std::all_of(unread.begin(), unread.end(), [](const auto& one) { return one.ready(); });
        },
        120s));
  }
  CHECK(heap() < before + kAnswers * kSize / 4);
  for (const auto& one : unread) CHECK_FALSE(one.state()->is_here());
  CHECK(owned(session) == kAnswers);
  CHECK(session.process().objects()->counts().spilled >= kAnswers - 40);
  // They are this process's: who answered may be gone.
  const auto pid = pid_t(far.call<&Echo::pid>().get(60s));
  ::kill(pid, SIGKILL);
  CHECK(eventually([&] { return !is_alive(pid); }, 30s));
  for (std::uint64_t i = 0; i < kAnswers / 2; ++i) CHECK(unread[i].get(60s) == pattern(i, kSize));
  CHECK(eventually([&] { return owned(session) == kAnswers / 2; }, 60s));
  unread.clear();
  CHECK(eventually([&] { return owned(session) == 0; }, 60s));
}

TEST_CASE("Large constructor arguments are there in each life of an actor, and go with the last one") {
  auto session = two_nodes();
  const auto given = numbers(kMany);
  const double sum = std::accumulate(given.begin(), given.end(), 0.0);
  {
    const auto light = session.spawn<Echo>({}, given);
    CHECK(light.call<&Echo::sum_first>().get(60s) == sum);
    const auto named = session.spawn<Echo>({.num_cpus = 1, .name = "named"}, given);
    CHECK(named.call<&Echo::sum_first>().get(60s) == sum);
    const auto here = session.spawn<Echo>({.here = true}, given);
    CHECK(here.call<&Echo::sum_first>().get(60s) == sum);
    CHECK(eventually([&] { return owned(session) == 0; }, 30s));
  }
  const auto lives =
      session.spawn<Echo>({.isolated = true, .max_restarts = -1, .max_task_retries = -1}, given);
  CHECK(lives.call<&Echo::sum_first>().get(60s) == sum);
  ::kill(pid_t(lives.call<&Echo::pid>().get(60s)), SIGKILL);
  CHECK(lives.call<&Echo::sum_first>().get(60s) == sum);
  CHECK(owned(session) == 1);
  session.kill(lives);
  CHECK(eventually([&] { return owned(session) == 0; }, 30s));
}

// The third of them threw LimitExceeded.
TEST_CASE("Calls whose arguments fill the store wait for those before them") {
  ::setenv("TROUPE_REGIONS_BYTES", "8000000", 1);
  auto session = two_nodes();
  ::unsetenv("TROUPE_REGIONS_BYTES");
  const auto slow = session.spawn<Slow>({.isolated = true, .node = session.node()});
  std::vector<Future<std::uint64_t>> sizes;
  for (std::size_t i = 0; i < 12; ++i) sizes.push_back(slow.call<&Slow::size>(numbers(300'000 + i)));
  for (std::size_t i = 0; i < 12; ++i) CHECK(sizes[i].get(60s) == 300'000 + i);
  CHECK(eventually([&] { return owned(session) == 0; }, 30s));
}

// It failed, after its method had run: what filled the store were mostly arguments of calls that waited for
// it.
TEST_CASE("An answer arrives in its message where the store is full of what is in use") {
  ::setenv("TROUPE_REGIONS_BYTES", "8000000", 1);
  auto session = two_nodes();
  ::unsetenv("TROUPE_REGIONS_BYTES");
  const auto echo = session.spawn<Echo>({.isolated = true, .node = session.node()});
  const auto held = session.put(numbers(930'000));
  const auto view = held.view();
  CHECK(echo.call<&Echo::text>(1, 1'000'000).get(60s) == pattern(1, 1'000'000));
  const Mixed mixed{pattern(1, 200'000), std::vector<double>(3), {}};
  CHECK(echo.call<&Echo::more>(mixed).get(60s) == std::vector<Mixed>(5, mixed));
}

// Messages that found no room were lost, and nobody was told: those that came later held it.
TEST_CASE("Messages whose arguments fill another node's store arrive, in order") {
  ::setenv("TROUPE_REGIONS_BYTES", "8000000", 1);
  auto session = two_nodes();
  ::unsetenv("TROUPE_REGIONS_BYTES");
  const auto slow = session.spawn<Slow>({.isolated = true, .node = other_node(session)});
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 0; i < 20; ++i) {
    sizes.push_back(300'000 + i);
    slow.tell<&Slow::size>(numbers(300'000 + i));
  }
  CHECK(slow.call<&Slow::all>().get(60s) == sizes);
  CHECK(eventually([&] { return owned(session) == 0; }, 30s));
}

TEST_CASE("What a store has no room for is one clear error") {
  ::setenv("TROUPE_REGIONS_BYTES", "8000000", 1);
  auto session = two_nodes();
  ::unsetenv("TROUPE_REGIONS_BYTES");
  const auto echo = session.spawn<Echo>({.isolated = true, .node = other_node(session)});
  const auto given = numbers(kMany);
  const auto argument = message_of<LimitExceeded>([&] { echo.call<&Echo::doubled>(given).get(60s); });
  INFO(argument);
  CHECK(argument.find("Echo::doubled: cannot put an object of 20000000 bytes") != std::string::npos);
  CHECK(argument.find("TROUPE_REGION") != std::string::npos);
  const auto answer = message_of<LimitExceeded>([&] { echo.call<&Echo::text>(1, 20'000'000).get(60s); });
  INFO(answer);
  CHECK(answer.find("Echo::text: an answer is too large: cannot put an object of 20000004 bytes") !=
        std::string::npos);
  CHECK(message_of<LimitExceeded>([&] { session.submit<&task>(given, Mixed{}); }).find("an argument of") !=
        std::string::npos);
  CHECK(message_of<LimitExceeded>([&] {
          session.spawn<Echo>({.isolated = true}, given);
        }).find("the constructor arguments of") != std::string::npos);
  // Was: the second argument waited a minute for the first to go, which is of the same call.
  const auto both = message_of<LimitExceeded>([&] {
    const Mixed mixed{pattern(1, 5'000'000), {}, {}};
    session.with({.node = other_node(session)}).submit<&task>(numbers(600'000), mixed).get(60s);
  });
  INFO(both);
  CHECK(both.find("task: no room for an argument") != std::string::npos);
  CHECK(both.find("those of its call take") != std::string::npos);
  CHECK(echo.call<&Echo::doubled>(numbers(300'000)).get(60s).size() == 300'000);
  CHECK(none_left(session, echo));
}

}  // namespace large_arguments_test
