// Objects that tasks compute, on real nodes: they outlive their workers, and are computed again when they are
// lost.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <numeric>
#include <stdexcept>

#include "runtime/objects/objects.hpp"
#include "runtime/tasks/tasks.hpp"
#include "scheduler/init/init.hpp"
#include "tests/e2e/objects.hpp"
#include "tests/e2e/other_node.hpp"

namespace lineage_test {

using namespace troupe;
using namespace troupe::e2e;
using namespace std::chrono_literals;

namespace {

using Numbers = std::vector<double>;
constexpr std::size_t kCount = 200'000;  // 1.6 MB

/// Leaves a byte in the file each time.
void count_run(const std::string& file) {
  std::ofstream(file, std::ios::app) << 'x';
}
Numbers make(const std::string& file, double value) {
  count_run(file);
  return Numbers(kCount, value);
}
Numbers add(const std::string& file, const View<double>& to, const Numbers& more, double value) {
  count_run(file);
  Numbers all(to.begin(), to.end());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] += more[i % more.size()] + value;
  return all;
}
double sum(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}
std::string small(const std::string& text) {
  return text + text;
}
/// A large result and two small ones.
std::tuple<Numbers, double, std::string> make_three(const std::string& file, double value) {
  count_run(file);
  return {Numbers(kCount, value), value, "three"};
}
std::pair<Numbers, Numbers> make_two(const std::string& file) {
  count_run(file);
  return {Numbers(kCount, 1.0), Numbers(kCount, 2.0)};
}
std::tuple<Numbers, double> throw_two(double value) {
  throw std::out_of_range("there is no " + std::to_string(int(value)));
}
/// The same in a task.
double three_inside(const std::string& file) {
  const auto session = this_actor().session();
  const auto [numbers, value, text] = session.compute<&make_three>(file, 2.0);
  return sum(numbers.get(60s)) + value.get(60s) + double(text.get(60s).size());
}
Numbers thrower(double value) {
  throw std::out_of_range("there is no " + std::to_string(int(value)));
}

/// Computes in a task what it waits for.
double chain(const std::string& file) {
  const auto session = this_actor().session();
  const auto one = session.compute<&make>(file, 1.0);
  const auto two = session.compute<&add>(file, one, Numbers{1}, 1.0);
  return session.submit<&sum>(two).get(60s) + sum(two.get(60s));
}
Numbers make_late(const std::string& folder) {
  if (!eventually([&] { return ::access((folder + "/go").c_str(), F_OK) == 0; }, 60s))
    throw std::runtime_error("nobody said go");
  return Numbers(kCount, 1.0);
}
/// Gives a reference on that it was given.
double sum_there(const std::string& folder, const ObjectRef<Numbers>& numbers) {
  const auto session = this_actor().session();
  const auto twice = session.compute<&add>(folder + "/runs", numbers, Numbers{1}, 0.0);
  const auto total = session.submit<&sum>(numbers);
  write_file(folder + "/go", "");
  return total.get(60s) + session.submit<&sum>(twice).get(60s);
}
double sum_parts(const std::vector<ObjectRef<Numbers>>& parts) {
  double total = 0;
  for (const auto& part : parts) total += sum(part.get(90s));
  return total;
}
double sum_at_once(const ObjectRef<Numbers>& numbers) {
  return this_actor().session().submit<&sum>(numbers).get(30s);
}

/// Shares the process that keeps its node's results.
struct Light {
  int pid() { return ::getpid(); }
  std::uint64_t owned() { return this_actor().process().objects()->counts().owned; }
  double total(const View<double>& numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0.0); }
  void keep(const ObjectRef<Numbers>& numbers) { kept = numbers; }
  double kept_total() {
    const auto numbers = kept.view();  // refused until it is here
    return std::accumulate(numbers.begin(), numbers.end(), 0.0);
  }
  ObjectRef<Numbers> kept;
};
/// Computes for others, and dies.
struct Maker {
  ObjectRef<Numbers> made;
  void give(const std::string& file, const ActorHandle<Light>& to) {
    made = this_actor().session().compute<&make>(file, 4.0);
    to.call<&Light::keep>(made).get(60s);
  }
  int pid() { return ::getpid(); }
};

void kill_keeper(const ActorHandle<Light>& light) {
  ::kill(pid_t(light.call<&Light::pid>().get(60s)), SIGKILL);
  CHECK(eventually([&] { return code_of([&] { light.call<&Light::pid>().get(60s); }) != "nothing"; }, 30s));
}
bool nothing_left(const Session& session) {
  return eventually([&] { return owned(session) == 0 && session.process().tasks()->counts().entries == 0; },
                    30s);
}
std::size_t runs(const std::string& file) {
  return read_file(file).size();
}

}  // namespace

TEST_CASE("What a task computed stays when its worker has gone, and other tasks read it") {
  auto session = two_nodes();
  TempFolder folder;
  const std::string file = folder.path() + "/runs";
  {
    for (const NodeId node : {session.node(), other_node(session)}) {
      const auto on = session.with({.node = node});
      const auto one = on.compute<&make>(file, 1.0);
      const auto two = on.compute<&add>(file, one, Numbers{1, 3}, 0.5);
      CHECK(session.submit<&sum>(two).get(60s) == 3.5 * kCount);
      CHECK(no_workers(session));
      CHECK(one.get(60s) == Numbers(kCount, 1.0));
      CHECK(sum(two.get(60s)) == 3.5 * kCount);
      CHECK(session.spawn<Light>({.node = node}).call<&Light::total>(two).get(60s) == 3.5 * kCount);
      CHECK(two.view(60s).size() == kCount);
    }
    CHECK(runs(file) == 4);
    CHECK(session.compute<&small>(session.compute<&small>("ab")).get(60s) == "abababab");
    const auto bad = session.compute<&thrower>(7.0);
    CHECK(message_of<TaskFailed>([&] { bad.get(60s); }).find("there is no 7") != std::string::npos);
    CHECK(message_of<TaskFailed>([&] { session.submit<&sum>(bad).get(60s); }).find("there is no 7") !=
          std::string::npos);
  }
  CHECK(nothing_left(session));
}

TEST_CASE("What is lost with its process is computed again, and what it was computed from") {
  auto session = two_nodes();
  TempFolder folder;
  const std::string first = folder.path() + "/first", second = folder.path() + "/second";
  const auto on = session.with({.node = other_node(session)});
  {
    auto one = on.compute<&make>(first, 1.0);
    const auto more = session.put(Numbers(kCount, 2.0));
    const auto two = on.compute<&add>(second, one, more, 0.0);
    CHECK(sum(two.get(60s)) == 3.0 * kCount);
    auto light = session.spawn<Light>({.node = other_node(session)});
    kill_keeper(light);
    CHECK(runs(first) == 1);  // until somebody wants it
    light = session.spawn<Light>({.node = other_node(session)});
    CHECK(light.call<&Light::total>(two).get(60s) == 3.0 * kCount);
    CHECK(runs(first) == 2);
    CHECK(runs(second) == 2);
    CHECK(one.get(60s) == Numbers(kCount, 1.0));
    CHECK(runs(first) == 2);
    one = {};  // its value goes; its recipe stays
    kill_keeper(light);
    CHECK(session.submit<&sum>(two).get(60s) == 3.0 * kCount);
    CHECK(runs(first) == 3);
    CHECK(runs(second) == 3);
    light = session.spawn<Light>({.node = other_node(session)});
    CHECK(eventually([&] { return light.call<&Light::owned>().get(60s) == 1; }, 30s));
  }
  CHECK(nothing_left(session));
  const auto light = session.spawn<Light>({.node = other_node(session)});
  CHECK(eventually([&] { return light.call<&Light::owned>().get(60s) == 0; }, 30s));
}

TEST_CASE("Each of several results of a task is an object of its own") {
  auto session = two_nodes();
  TempFolder folder;
  const std::string file = folder.path() + "/runs", pairs = folder.path() + "/pairs";
  const auto on = session.with({.node = other_node(session)});
  {
    auto [numbers, value, text] = on.compute<&make_three>(file, 2.0);
    CHECK(session.submit<&sum>(numbers).get(60s) == 2.0 * kCount);
    CHECK(value.get(60s) == 2.0);
    CHECK(session.compute<&small>(text).get(60s) == "threethree");
    CHECK(runs(file) == 1);
    kill_keeper(session.spawn<Light>({.node = other_node(session)}));
    CHECK(value.get(60s) == 2.0);  // a small one is with its owner
    CHECK(runs(file) == 1);
    CHECK(sum(numbers.get(60s)) == 2.0 * kCount);
    CHECK(runs(file) == 2);
    numbers = {};
    CHECK(text.get(60s) == "three");

    const auto [first, second] = on.compute<&make_two>(pairs);
    CHECK(sum(second.get(60s)) == 2.0 * kCount);
    const auto light = session.spawn<Light>({.node = other_node(session)});
    CHECK(light.call<&Light::total>(first).get(60s) == 1.0 * kCount);
    CHECK(light.call<&Light::owned>().get(60s) == 2);  // the numbers went with their reference
    kill_keeper(light);
    CHECK(sum(first.get(60s)) == 1.0 * kCount);
    CHECK(runs(pairs) == 2);
    CHECK(sum(second.get(60s)) == 2.0 * kCount);
    CHECK(runs(pairs) == 2);  // both were lost, and came again together

    const auto [none, neither] = session.compute<&throw_two>(7.0);
    CHECK(message_of<TaskFailed>([&] { none.get(60s); }).find("there is no 7") != std::string::npos);
    CHECK(message_of<TaskFailed>([&] { neither.get(60s); }).find("there is no 7") != std::string::npos);
    CHECK(std::get<1>(session.submit<&make_three>(file, 3.0).get(60s)) == 3.0);
  }
  CHECK(nothing_left(session));
}

TEST_CASE("What is not computed again is lost, with the reason") {
  auto session = two_nodes();
  TempFolder folder;
  const std::string file = folder.path() + "/runs";
  const auto node = other_node(session);
  const auto once = session.with({.max_retries = 0, .node = node}).compute<&make>(file, 1.0);
  const auto after = session.with({.node = node}).compute<&add>(file, once, Numbers{0}, 1.0);
  CHECK(sum(after.get(60s)) == 2.0 * kCount);
  kill_keeper(session.spawn<Light>({.node = node}));
  for (const auto& lost : {once, after}) {
    const auto why = message_of<ObjectLost>([&] { lost.get(60s); });
    INFO(why);
    CHECK(why.find("computed is lost") != std::string::npos);
    CHECK(why.find("is gone: ") != std::string::npos);
    CHECK(why.find("not computed again: its task has max_retries = 0") != std::string::npos);
  }
  CHECK(runs(file) == 2);
}

TEST_CASE("What is lost with its node is computed again on another one") {
  auto session = two_nodes();
  TempFolder folder;
  const std::string file = folder.path() + "/runs";
  std::vector<ObjectRef<Numbers>> all;
  for (int i = 0; i < 4; ++i) all.push_back(session.compute<&make>(file, double(i)));
  for (int i = 0; i < 4; ++i)
    all.push_back(session.compute<&add>(file, all[std::size_t(i)], all[std::size_t(3 - i)], 1.0));
  for (const auto& one : all) CHECK(one.view(60s).size() == kCount);
  ::kill(session.embedded()->node_pids().at(1), SIGKILL);
  for (int i = 0; i < 4; ++i) {
    CHECK(all[std::size_t(i)].get(60s) == Numbers(kCount, double(i)));
    CHECK(all[std::size_t(4 + i)].get(60s) == Numbers(kCount, 4.0));
  }
  all.clear();
  CHECK(nothing_left(session));
}

TEST_CASE("A program whose node dies while it computes objects has no more threads than before") {
  // Was: one more for each death, for good: that of a disk.
  auto session = init(0, nullptr);
  TempFolder folder;
  const auto threads = [] { return names_in("/proc/self/task").size(); };
  std::size_t before = 0;
  for (int deaths = 0; deaths < 3; ++deaths) {
    const auto file = folder.path() + "/" + std::to_string(deaths);
    REQUIRE(eventually([&] {  // it is a while until there is a new node
      try {
        return session.compute<&make>(file, 2.0).get(30s).size() == kCount;
      } catch (const Unavailable&) {
        return false;
      }
    }));
    if (deaths == 0) before = threads();
    ::kill(session.embedded()->node_pids().front(), SIGKILL);
  }
  REQUIRE(eventually([&] {
    try {
      return session.submit<&small>("ab").get(30s) == "abab";
    } catch (const Unavailable&) {
      return false;
    }
  }));
  CHECK(eventually([&] { return threads() <= before; }));
}

TEST_CASE("A task computes what it waits for, on the one CPU that there is") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 1});
  TempFolder folder;
  const std::string file = folder.path() + "/runs";
  CHECK(session.submit<&chain>(file).get(90s) == 6.0 * kCount);
  CHECK(runs(file) == 2);
  CHECK(session.submit<&three_inside>(file).get(90s) == 2.0 * kCount + 7);
  // What it is given belongs to another process, which is asked whether it is there.
  const auto given = session.compute<&make>(file, 1.0);
  CHECK(given.view(60s).size() == kCount);
  CHECK(session.submit<&sum_at_once>(given).get(90s) == 1.0 * kCount);
}

// Was: they held the CPUs that the tasks needed which they waited for, until their get was over.
TEST_CASE("More tasks than CPUs wait for what tasks behind them compute") {
  auto session = init(0, nullptr, {.nodes = 1, .cpus_per_node = 2});
  TempFolder folder;
  const auto late = session.compute<&make_late>(folder.path());
  std::vector<ObjectRef<Numbers>> parts;
  for (int i = 0; i < 3; ++i)
    parts.push_back(session.compute<&add>(folder.path() + "/runs", late, Numbers{1}, double(i)));
  std::vector<Future<double>> sums;
  for (int i = 0; i < 4; ++i) sums.push_back(session.submit<&sum_parts>(parts));
  write_file(folder.path() + "/go", "");  // only now what the parts are made of
  for (const auto& total : sums) CHECK(total.get(60s) == 9.0 * kCount);
}

TEST_CASE("A task gives on what another process still computes") {
  auto session = two_nodes();
  TempFolder folder;
  const auto late = session.compute<&make_late>(folder.path());
  CHECK(session.submit<&sum_there>(folder.path(), late).get(90s) == 3.0 * kCount);
  CHECK(late.get(60s) == Numbers(kCount, 1.0));
}

TEST_CASE("A borrower reads what is computed again, and hears when its owner is gone") {
  auto session = two_nodes();
  TempFolder folder;
  const std::string file = folder.path() + "/runs";
  const auto light = session.spawn<Light>({.node = session.node()});
  const auto maker = session.spawn<Maker>({.isolated = true, .node = other_node(session)});
  maker.call<&Maker::give>(file, light).get(60s);
  const auto read = [&] { return light.call<&Light::kept_total>().get(60s); };
  CHECK(eventually([&] { return code_of(read) == "nothing"; }, 60s));
  CHECK(read() == 4.0 * kCount);
  ::kill(pid_t(maker.call<&Maker::pid>().get(60s)), SIGKILL);
  CHECK(eventually([&] { return code_of(read) == "object lost"; }, 60s));
  const auto why = message_of<ObjectLost>(read);
  INFO(why);
  CHECK(why.find("the process that made it is gone: ") != std::string::npos);
}

TEST_CASE("What is computed while processes die is right") {
  auto session = two_nodes();
  TempFolder folder;
  const std::string file = folder.path() + "/runs";
  const auto retried = session.with({.max_retries = 20});
  for (int round = 0; round < 4; ++round) {
    std::vector<ObjectRef<Numbers>> all;
    for (int i = 0; i < 6; ++i) all.push_back(retried.compute<&make>(file, double(i)));
    for (std::size_t i = 0; i < 12; ++i)
      all.push_back(retried.compute<&add>(file, all[i], Numbers{1}, double(round)));
    const auto total = retried.submit<&sum>(all.back());
    if (round % 2 == 1) CHECK(all[std::size_t(round)].view(60s).size() == kCount);
    kill_keeper(session.spawn<Light>({.node = other_node(session)}));
    for (std::size_t i = 0; i < all.size(); ++i) {
      INFO("round " << round << ", object " << i);
      CHECK(all[i].get(60s) == Numbers(kCount, double(i % 6) + double(i / 6) * (1 + round)));
    }
    CHECK(total.get(60s) == (5.0 + 2.0 * (1 + round)) * kCount);
  }
  CHECK(nothing_left(session));
}

}  // namespace lineage_test
