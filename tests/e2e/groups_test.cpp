// Groups of actors over real nodes, and the process groups that they form.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <mutex>
#include <numeric>
#include <set>

#include "collectives/rendezvous/group_member.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/support.hpp"

namespace groups_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

struct Worker : collectives::GroupMember {
  Worker() = default;
  explicit Worker(std::size_t at) : place(at) {}
  std::size_t place = 0;
  int pid() { return ::getpid(); }
  std::uint64_t node() { return this_actor().address().node.value; }
  std::size_t where() { return place; }
  std::string letter(const std::string& more) {
    if (more == "fail at 7" && place == 7) throw std::out_of_range("no letter");
    return std::string(1, char('a' + place)) + more;
  }
  std::vector<double> numbers(std::uint64_t count) { return std::vector<double>(count, double(place)); }
  std::int64_t slow(std::int64_t ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    return std::int64_t(place);
  }
  /// The sum over the process group, as each member sees it.
  float sum(float mine) {
    auto numbers = process_group()->allocate<float>(1);
    numbers[0] = mine * float(place + 1);
    process_group()->all_reduce(numbers)->wait();
    const float all = numbers[0];
    process_group()->deallocate(numbers);
    return all;
  }
  void room(std::uint64_t bytes) {
    process_group()->deallocate(process_group()->allocate<std::uint8_t>(bytes));
  }
  std::pair<int, int> rank_and_size() { return {process_group()->rank(), process_group()->size()}; }
};

/// In a light actor: it may not wait.
struct Light {
  Task<std::size_t> total(ActorGroup<Worker> group) {
    const auto places = co_await when_all(group.call_all<&Worker::where>());
    const Waited two = co_await troupe::wait(group.call_all<&Worker::where>(), 2, 60s);
    co_return std::accumulate(places.begin(), places.end(), std::size_t{0}) * 10 + two.ready.size();
  }
};

/// Not commutative: the order of places is seen.
std::string append(std::string a, const std::string& b) {
  return std::move(a) + b;
}
std::vector<double> add(std::vector<double> a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

DriverSession two_nodes() {
  return init(0, nullptr, {.nodes = 2, .cpus_per_node = 4});
}

}  // namespace

TEST_CASE("a group over two nodes is called as one, and a death in it is told by member", "[groups]") {
  auto session = two_nodes();
  const auto group = session.spawn_group<Worker>({{"row", 2}, {"column", 2}}, {.isolated = true}, kPlace);
  const auto nodes = group.call_all<&Worker::node>().get(60s);
  CHECK(std::set(nodes.begin(), nodes.end()).size() == 2);
  CHECK(group.call_all<&Worker::where>().get(60s) == std::vector<std::size_t>{0, 1, 2, 3});
  CHECK(session.spawn<Light>().call<&Light::total>(group).get(60s) == 62);
  // The least loaded: none waits behind the slow one.
  const auto slow = group.call_any<&Worker::slow>(600'000);
  std::set<std::int64_t> others;
  for (int i = 0; i < 6; ++i) others.insert(group.call_any<&Worker::slow>(1).get(60s));
  CHECK_FALSE(others.contains(0));

  std::mutex mutex;
  std::map<std::size_t, std::string> dead;
  group.monitor([&](std::size_t place, const std::string& reason) {
    const std::lock_guard lock(mutex);
    dead[place] = reason;
  });
  ::kill(group[2].call<&Worker::pid>().get(60s), SIGKILL);
  CHECK(eventually([&] {
    const std::lock_guard lock(mutex);
    return dead.size() == 1 && dead.contains(2);
  }));
  const auto why = message_of<ActorDied>([&] { group.without({0}).call_all<&Worker::where>().get(60s); });
  CHECK(why.find("member 2 (row=1, column=0)") != std::string::npos);
  CHECK(why.find("signal 9") != std::string::npos);
  const auto outcomes = group.without({0}).call_all<&Worker::where>().outcomes(60s);
  CHECK(outcomes[0].ok());
  CHECK_FALSE(outcomes[1].ok());
  CHECK(outcomes[2].ok());
  group.kill();
  CHECK(eventually([&] {
    const std::lock_guard lock(mutex);
    return dead.size() == 4;
  }));
}

TEST_CASE("the answers of a group are folded in its members, in the order of places", "[groups]") {
  auto session = two_nodes();
  const auto group = session.spawn_group<Worker>(11, {}, kPlace);  // light ones, which may not wait
  CHECK(group.call_fold<&Worker::letter, &append>("").get(60s) == "abcdefghijk");
  CHECK(group.without({0, 5}).call_fold<&Worker::letter, &append>("!").get(60s) == "b!c!d!e!g!h!i!j!k!");
  CHECK(group.without({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}).call_fold<&Worker::letter, &append>("").get(60s) ==
        "a");
  const auto sums = group.call_fold<&Worker::numbers, &add>(std::uint64_t{100'000}).get(60s);  // objects
  CHECK(sums == std::vector<double>(100'000, 55.0));
  const auto why =
      message_of<TaskFailed>([&] { group.call_fold<&Worker::letter, &append>("fail at 7").get(60s); });
  INFO(why);
  CHECK(why.find("member 7") != std::string::npos);
  CHECK(why.find("no letter") != std::string::npos);
  Promise<std::string> death;
  session.monitor(group[9], [death](const std::string& reason) mutable { death.set(reason); });
  session.kill(group[9]);
  CHECK(death.future().get(60s) == "killed by its owner");
  const auto died = message_of<ActorDied>([&] { group.call_fold<&Worker::letter, &append>("").get(60s); });
  INFO(died);
  CHECK(died.find("member 9") != std::string::npos);
  CHECK(group.without({9}).call_fold<&Worker::letter, &append>("").get(60s) == "abcdefghik");
}

TEST_CASE("the answers of a group are taken as they come", "[groups]") {
  auto session = two_nodes();
  const auto group = session.spawn_group<Worker>(3, {.isolated = true}, kPlace);
  ::kill(group[1].call<&Worker::pid>().get(60s), SIGKILL);
  const auto name_of = [](ErrorCode code) { return std::string(error_code_name(code)); };
  std::map<std::size_t, std::string> told;
  group.call_all<&Worker::letter>("").as_they_come(
      [&](std::size_t place, const Result<std::string>& letter) {
        CHECK(told.emplace(place, letter ? *letter : name_of(letter.error().code)).second);
      },
      60s);
  CHECK(told == std::map<std::size_t, std::string>{{0, "a"}, {1, name_of(ErrorCode::kActorDied)}, {2, "c"}});
  // Who gives no answer in time is told as such, and holds up nobody.
  std::vector<std::size_t> order;
  const auto slow = group.without({1}).call_all<&Worker::slow>(60'000);
  slow.as_they_come(
      [&](std::size_t place, const Result<std::int64_t>& answer) {
        order.push_back(place);
        CHECK((!answer && answer.error().code == ErrorCode::kTimeout));
      },
      100ms);
  CHECK(order == std::vector<std::size_t>{0, 1});
}

TEST_CASE("a group that has no room says why, and leaves nothing behind", "[groups]") {
  auto session = two_nodes();
  const auto why = message_of<Refused>(
      [&] { session.spawn_group<Worker>(3, {.num_cpus = 100, .isolated = true}, kPlace); });
  CHECK(why.find("member 0 of 3") != std::string::npos);
  CHECK(session.spawn_group<Worker>(8, {.num_cpus = 1, .isolated = true}, kPlace).size() == 8);
}

// Was: its process had 256 of them under way at the head, which waited for the others: it timed out after two
// minutes, without a reason.
TEST_CASE("a group of hundreds starts", "[groups]") {
  auto session = two_nodes();
  const auto group = session.spawn_group<Worker>(300, {.num_cpus = 0.01});
  CHECK(group.call_all<&Worker::pid>().get(60s).size() == 300);
}

TEST_CASE("members form a process group in a line, and again with those that live", "[groups]") {
  auto session = two_nodes();
  const auto group = session.spawn_group<Worker>(4, {.isolated = true}, kPlace);
  CHECK(message_of<BadConfig>([&] {
          group[0].call<&Worker::sum>(1.0F).get(60s);
        }).find("form_process_group") != std::string::npos);
  CHECK(code_of([&] { session.spawn_group<Worker>(2, {}, kPlace).form_process_group("native", 60s); }) ==
        "bad config");
  group.form_process_group("native", 60s, 4096);
  CHECK(message_of<LimitExceeded>([&] {
          group.call_all<&Worker::room>(4097).get(60s);
        }).find("of the rank's 4096 are left") != std::string::npos);
  for (int i = 0; i < 100; ++i) group.call_all<&Worker::room>(4096).get(60s);  // each gives it back
  CHECK(group.call_all<&Worker::sum>(1.0F).get(60s) == std::vector<float>(4, 10.0F));
  CHECK(group[3].call<&Worker::rank_and_size>().get(60s) == std::pair(3, 4));

  // Rank 0, which served the store, is killed in the middle of it.
  const int victim = group[0].call<&Worker::pid>().get(60s);
  ::kill(victim, SIGKILL);
  const auto failed = group.without({0}).call_all<&Worker::sum>(1.0F).outcomes(60s);
  for (const auto& outcome : failed) CHECK_FALSE(outcome.ok());
  const auto rest = group.without({0});
  rest.form_process_group("native", 60s);
  CHECK(rest.call_all<&Worker::sum>(1.0F).get(60s) == std::vector<float>(3, 9.0F));
  CHECK(rest[0].call<&Worker::rank_and_size>().get(60s) == std::pair(0, 3));
  CHECK(message_of<BadConfig>([&] { rest.form_process_group("none", 60s); }).find("member") !=
        std::string::npos);
}

TEST_CASE("a member that was started again joins the process group again", "[groups]") {
  auto session = two_nodes();
  const auto group =
      session.spawn_group<Worker>(3, {.isolated = true, .max_restarts = 1, .max_task_retries = 3}, kPlace);
  group.form_process_group("native", 60s);
  CHECK(group.call_all<&Worker::sum>(1.0F).get(60s) == std::vector<float>(3, 6.0F));
  ::kill(group[1].call<&Worker::pid>().get(60s), SIGKILL);
  CHECK(group[1].call<&Worker::where>().get(60s) == 1);  // its next life
  group.form_process_group("native", 60s);
  CHECK(group.call_all<&Worker::sum>(2.0F).get(60s) == std::vector<float>(3, 12.0F));
}

}  // namespace groups_test
